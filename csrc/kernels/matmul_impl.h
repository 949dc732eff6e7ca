// SPDX-License-Identifier: Apache-2.0
// Packing of operands, their matmul, and storing of its sums.
// Included by tiles_impl.h, once per instruction set.

namespace pax {
namespace {

// Copies a block of words, transposed: to[c][r] = from[r][c]. Multiples of 8.
PAX_INLINE void TransposeWords(const uint32_t* from, int64_t from_row,
                               int64_t rows, int64_t columns, uint32_t* to,
                               int64_t to_row) {
  for (int64_t r = 0; r < rows; r += 8) {
    for (int64_t c = 0; c < columns; c += 8) {
      const uint32_t* f = from + r * from_row + c;
      Vec8 a[8], b[8];
      for (int i = 0; i < 8; ++i) a[i] = Load<Vec8>(f + i * from_row);
      for (int i = 0; i < 8; i += 2) {
        b[i] =
            __builtin_shufflevector(a[i], a[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        b[i + 1] =
            __builtin_shufflevector(a[i], a[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
      }
      for (int i = 0; i < 8; i += 4) {
        for (int j = 0; j < 2; ++j) {
          a[i + 2 * j] = __builtin_shufflevector(b[i + j], b[i + j + 2], 0, 1,
                                                 8, 9, 4, 5, 12, 13);
          a[i + 2 * j + 1] = __builtin_shufflevector(b[i + j], b[i + j + 2], 2,
                                                     3, 10, 11, 6, 7, 14, 15);
        }
      }
      uint32_t* t = to + c * to_row + r;
      for (int i = 0; i < 4; ++i) {
        Store(t + i * to_row, __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2,
                                                      3, 8, 9, 10, 11));
        Store(t + (i + 4) * to_row,
              __builtin_shufflevector(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14,
                                      15));
      }
    }
  }
}

// Copies 32 columns of `rows` rows with units of u rows interleaved.
PAX_INLINE void ZipRows(const float* from, int64_t from_row, int64_t rows,
                        float* to) {
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(to + r * kBlock, from + r * from_row, kBlock * sizeof(float));
  }
}

PAX_INLINE void ZipRows(const Bfloat16* from, int64_t from_row, int64_t rows,
                        Bfloat16* to) {
  for (int64_t r = 0; r < rows; r += 2) {
    const Bfloat16* even = from + r * from_row;
    const Bfloat16* odd = even + from_row;
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      const WordVec low =
          __builtin_convertvector(Load<HalfVec>(even + i), WordVec);
      const WordVec high =
          __builtin_convertvector(Load<HalfVec>(odd + i), WordVec);
      Store(to + r * kBlock + 2 * i, low | (high << 16));
    }
  }
}

// Copies a rows x columns block into a zero-padded block of the packed type.
template <class In, class Packed>
PAX_INLINE void CopyBlock(const In* from, int64_t from_row, int64_t rows,
                          int64_t columns, Packed* to, int64_t to_rows,
                          int64_t to_columns) {
  for (int64_t r = 0; r < to_rows; ++r, to += to_columns) {
    const int64_t n = r < rows ? columns : 0;
    for (int64_t c = 0; c < n; ++c) Assign(from[r * from_row + c], to + c);
    std::memset(to + n, 0, (to_columns - n) * sizeof(Packed));
  }
}

// Packs 32 dims of the strip as the operand with K = dims.
template <class Packed>
PAX_INLINE void PackOverDims(const PackTableArgs& args, const Packed* block,
                             int64_t d) {
  constexpr int64_t kWords = kBlock * sizeof(Packed) / 4;
  for (int64_t p = 0; p < kPanels; ++p) {
    Packed* to = static_cast<Packed*>(args.over_dims) +
                 (p * args.padded_dims + d) * kBlock;
    if (args.transposed) {
      TransposeWords(
          reinterpret_cast<const uint32_t*>(block) + p * kBlock * kWords,
          kWords, kBlock, kWords, reinterpret_cast<uint32_t*>(to), kBlock);
    } else {
      ZipRows(block + p * kBlock, kStrip, kBlock, to);
    }
  }
}

// Packs 32 dims of the strip as the operand with K = classes.
template <class Packed>
PAX_INLINE void PackOverVocab(const PackTableArgs& args, const Packed* block,
                              int64_t d) {
  constexpr int64_t kWords = kStrip * sizeof(Packed) / 4;
  Packed* to = static_cast<Packed*>(args.over_vocab) + d * kStrip;
  if (args.transposed) {
    ZipRows(block, kBlock, kStrip, to);
  } else {
    TransposeWords(reinterpret_cast<const uint32_t*>(block), kWords, kBlock,
                   kWords, reinterpret_cast<uint32_t*>(to), kBlock);
  }
}

template <class In, class Packed>
void PackTable(const PackTableArgs& args) {
  alignas(64) Packed block[kBlock * kStrip];
  const int64_t width = Clip(args.vocab - args.begin, kStrip);
  const int64_t row = args.transposed ? args.dims : args.vocab;
  const In* table = static_cast<const In*>(args.table) +
                    args.first_dim * (args.transposed ? 1 : row);
  for (int64_t d = 0; d < args.padded_dims; d += kBlock) {
    const int64_t depth = Clip(args.dims - args.first_dim - d, kBlock);
    if (args.transposed) {
      CopyBlock(table + args.begin * row + d, row, width, depth, block, kStrip,
                kBlock);
    } else {
      CopyBlock(table + d * row + args.begin, row, depth, width, block, kBlock,
                kStrip);
    }
    if (args.over_dims) PackOverDims(args, block, d);
    if (args.over_vocab) PackOverVocab(args, block, d);
  }
}

// to[c][r] = from[r][c] of a block.
PAX_INLINE void TransposeBlock(const float* from, float* to) {
  TransposeWords(reinterpret_cast<const uint32_t*>(from), kBlock, kBlock,
                 kBlock, reinterpret_cast<uint32_t*>(to), kBlock);
}

PAX_INLINE void TransposeBlock(const Bfloat16* from, Bfloat16* to) {
  for (int64_t c = 0; c < kBlock; ++c) {
    for (int64_t r = 0; r < kBlock; ++r)
      to[c * kBlock + r] = from[r * kBlock + c];
  }
}

template <class In, class Packed>
void PackInput(const PackInputArgs& args) {
  alignas(64) Packed block[kBlock * kBlock];
  const In* x = static_cast<const In*>(args.x) + args.begin * args.row;
  const int64_t height = Clip(args.rows - args.begin, kBlock);
  for (int64_t d = 0; d < args.padded_dims; d += kBlock) {
    CopyBlock(x + d, args.row, height, Clip(args.dims - d, kBlock), block,
              kBlock, kBlock);
    if (args.over_dims) {
      std::memcpy(static_cast<Packed*>(args.over_dims) +
                      d * args.over_dims_rows + args.begin * kBlock,
                  block, sizeof(block));
    }
    if (args.over_rows) {
      TransposeBlock(block, static_cast<Packed*>(args.over_rows) +
                                args.begin * args.over_rows_rows + d * kBlock);
    }
  }
}

// ---- matmul ----------------------------------------------------------------

PAX_INLINE Vec MultiplyAdd(float, const char* a, Vec b, Vec sum) {
  return sum + Load<float>(a) * b;
}

#if defined(PAX_TARGET_BF16)
PAX_INLINE Vec MultiplyAdd(Bfloat16, const char* a, Vec b, Vec sum) {
  return (Vec)_mm512_dpbf16_ps(
      (__m512)sum, (__m512bh)_mm512_set1_epi32(Load<int32_t>(a)), (__m512bh)b);
}
#endif

// A tile of PAX_TILE_ROWS x 32 sums, held in registers over `blocks` of K.
template <class Packed>
PAX_INLINE void Tile(const MatmulArgs& args, const char* a, const char* b,
                     int64_t blocks, bool accumulate, float* out) {
  constexpr int64_t kRowBytes = kBlock * sizeof(Packed);
  Vec sums[PAX_TILE_ROWS][kVecs];
  for (int r = 0; r < PAX_TILE_ROWS; ++r) {
    for (int v = 0; v < kVecs; ++v) {
      sums[r][v] =
          accumulate ? Load<Vec>(out + r * args.out_row + v * kLanes) : Vec{};
    }
  }
  for (int64_t k = 0; k < blocks; ++k, a += args.a_block_bytes) {
#pragma GCC unroll 4
    for (int64_t i = 0; i < kRowBytes; i += 4, b += kBlock * 4) {
      Vec column[kVecs];
      for (int v = 0; v < kVecs; ++v)
        column[v] = Load<Vec>(b + v * sizeof(Vec));
#pragma GCC unroll 16
      for (int r = 0; r < PAX_TILE_ROWS; ++r) {
        for (int v = 0; v < kVecs; ++v) {
          sums[r][v] = MultiplyAdd(Packed{}, a + r * kRowBytes + i, column[v],
                                   sums[r][v]);
        }
      }
    }
  }
  for (int r = 0; r < PAX_TILE_ROWS; ++r) {
    for (int v = 0; v < kVecs; ++v) {
      Store(out + r * args.out_row + v * kLanes, sums[r][v]);
    }
  }
}

// A part of one panel of B stays in the L1 cache while the rows of A that fit
// the L2 cache are read, once for each panel.
template <class Packed>
void Matmul(const MatmulArgs& args) {
  constexpr int64_t kRowBytes = kBlock * sizeof(Packed);
  constexpr int64_t kPiece = kCacheBytes / (kBlock * kRowBytes);
  constexpr int64_t kRows = kSecondCacheBytes / (kPiece * kRowBytes);
  for (int64_t k = 0; k < args.blocks; k += kPiece) {
    const int64_t blocks = Clip(args.blocks - k, kPiece);
    const char* a = static_cast<const char*>(args.a) + k * args.a_block_bytes;
    const char* b = static_cast<const char*>(args.b) + k * kBlock * kRowBytes;
    for (int64_t begin = 0; begin < args.rows; begin += kRows) {
      const int64_t end = Clip(args.rows, begin + kRows);
      for (int64_t p = 0; p < args.panels; ++p) {
        for (int64_t m = begin; m < end; m += PAX_TILE_ROWS) {
          Tile<Packed>(args, a + m * kRowBytes, b + p * args.b_panel_bytes,
                       blocks, args.accumulate || k > 0,
                       args.out + m * args.out_row + p * args.out_panel);
        }
      }
    }
  }
}

// ---- results -------------------------------------------------------------

template <class In>
void StoreTable(const StoreTableArgs& args) {
  const int64_t width = Clip(args.vocab - args.begin, kStrip);
  In* table = static_cast<In*>(args.table);
  for (int64_t v = 0; v < width; v += kBlock) {
    const float* panel = args.sums + v * args.padded_dims;
    const int64_t columns = Clip(width - v, kBlock);
    const int64_t begin = args.begin + v;
    for (int64_t d = 0; d < args.dims; d += kBlock, panel += kBlock * kBlock) {
      const int64_t depth = Clip(args.dims - d, kBlock);
      if (!args.transposed) {
        for (int64_t i = 0; i < depth; ++i) {
          StoreRow(panel + i * kBlock, columns, args.add,
                   table + (d + i) * args.row + begin);
        }
        continue;
      }
      alignas(64) float block[kBlock * kBlock];
      TransposeBlock(panel, block);
      for (int64_t i = 0; i < columns; ++i) {
        StoreRow(block + i * kBlock, depth, args.add,
                 table + (begin + i) * args.row + d);
      }
    }
  }
}

}  // namespace
}  // namespace pax
