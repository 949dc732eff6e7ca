// SPDX-License-Identifier: Apache-2.0
// Body of tiles_<isa>.cc; included once by each, which defines
//   PAX_VECTOR_BYTES  width of a vector register
//   PAX_TILE_ROWS     rows of a register tile (its accumulators must fit)
//   PAX_TARGET        target string of the instruction set, absent: the
//   baseline
// All functions have internal linkage: the linker must not select a function
// that is compiled for another instruction set.

#include <cstdint>
#include <cstring>

#include "csrc/kernels/softmax_partial.h"
#include "csrc/kernels/tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(PAX_TARGET) && defined(__clang__)
#define PAX_PRAGMA(x) _Pragma(#x)
#define PAX_PUSH(t) \
  PAX_PRAGMA(       \
      clang attribute push(__attribute__((target(t))), apply_to = function))
PAX_PUSH(PAX_TARGET)
#elif defined(PAX_TARGET)
#define PAX_PRAGMA(x) _Pragma(#x)
#define PAX_PUSH(t) PAX_PRAGMA(GCC target(t))
#pragma GCC push_options
PAX_PUSH(PAX_TARGET)
#endif

// Vectors are passed only between inlined functions.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

#define PAX_INLINE static inline __attribute__((always_inline))

namespace pax {
namespace {

typedef float Vec __attribute__((vector_size(PAX_VECTOR_BYTES)));
typedef int32_t IntVec __attribute__((vector_size(PAX_VECTOR_BYTES)));
typedef uint32_t WordVec __attribute__((vector_size(PAX_VECTOR_BYTES)));
typedef uint16_t HalfVec __attribute__((vector_size(PAX_VECTOR_BYTES / 2)));
typedef float Vec8 __attribute__((vector_size(32)));

constexpr int64_t kLanes = PAX_VECTOR_BYTES / 4;
constexpr int64_t kVecs = kBlock / kLanes;
constexpr int64_t kStripVecs = kVecs * kPanels;
// Bytes of the L1 and L2 cache for reused operands.
constexpr int64_t kCacheBytes = 32 * 1024;
constexpr int64_t kSecondCacheBytes = 256 * 1024;
constexpr int64_t kCacheLine = 64;
constexpr float kInfinity = __builtin_inff();

template <class V>
PAX_INLINE V Load(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof(V));
  return v;
}

template <class V>
PAX_INLINE void Store(void* to, const V& v) {
  std::memcpy(to, &v, sizeof(V));
}

PAX_INLINE Vec Splat(float x) { return Vec{} + x; }

PAX_INLINE IntVec Iota() {
  IntVec v;
  for (int i = 0; i < kLanes; ++i) v[i] = i;
  return v;
}

// e^x to 2 ulp for x <= 88; below -87 it returns e^-87. NaN stays NaN.
PAX_INLINE Vec Exp(Vec argument) {
  const Vec x = argument < Splat(-87.0f) ? Splat(-87.0f) : argument;
  // Adding 1.5 * 2^23 rounds to an integer, kept in the low bits.
  const Vec shifted = x * 1.44269504f + 12582912.0f;
  const Vec n = shifted - 12582912.0f;
  Vec r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Vec p = Splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // The addition to the exponent would make a number of some NaNs.
  const Vec result = (Vec)((WordVec)p + ((WordVec)shifted << 23));
  return argument == argument ? result : argument;
}

// c tanh(x / c)
PAX_INLINE Vec Cap(Vec x, float cap) {
  Vec y = x * (2.0f / cap);
  y = y > Splat(40.0f) ? Splat(40.0f) : y;
  return cap - (2.0f * cap) / (Exp(y) + 1.0f);
}

PAX_INLINE float MaxOf(Vec v) {
  float m = v[0];
  for (int i = 1; i < kLanes; ++i) m = v[i] > m ? v[i] : m;
  return m;
}

PAX_INLINE int32_t MinOf(IntVec v) {
  int32_t m = v[0];
  for (int i = 1; i < kLanes; ++i) m = v[i] < m ? v[i] : m;
  return m;
}

PAX_INLINE float SumOf(Vec v) {
  float lanes[kLanes];
  Store(lanes, v);
  for (int64_t w = kLanes / 2; w > 0; w /= 2) {
    for (int64_t i = 0; i < w; ++i) lanes[i] += lanes[i + w];
  }
  return lanes[0];
}

// ---- element types ---------------------------------------------------------

PAX_INLINE float ToFloat(float x) { return x; }

PAX_INLINE float ToFloat(Bfloat16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  return Load<float>(&bits);
}

PAX_INLINE void Assign(float x, float* to) { *to = x; }
PAX_INLINE void Assign(Bfloat16 x, float* to) { *to = ToFloat(x); }
PAX_INLINE void Assign(Bfloat16 x, Bfloat16* to) { *to = x; }

// The bits of x as bfloat16, rounded to nearest even, in the low half.
PAX_INLINE WordVec RoundToBfloat16(Vec x) {
  const WordVec bits = (WordVec)x;
  // Rounding would overflow the mantissa of some NaNs.
  const WordVec rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return (x == x ? rounded : (WordVec{} + 0x7fc00000u)) >> 16;
}

// ---- packing ---------------------------------------------------------------

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

PAX_INLINE int64_t Clip(int64_t n, int64_t most) { return n < most ? n : most; }

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

template <class In, class Packed>
void PackInput(const PackInputArgs& args) {
  alignas(64) Packed block[kBlock * kBlock];
  const In* x = static_cast<const In*>(args.x) + args.begin * args.dims;
  const int64_t height = Clip(args.rows - args.begin, kBlock);
  for (int64_t d = 0; d < args.padded_dims; d += kBlock) {
    CopyBlock(x + d, args.dims, height, Clip(args.dims - d, kBlock), block,
              kBlock, kBlock);
    std::memcpy(static_cast<Packed*>(args.over_dims) + d * args.over_dims_rows +
                    args.begin * kBlock,
                block, sizeof(block));
    if (!args.over_rows) continue;
    Packed* to = static_cast<Packed*>(args.over_rows) +
                 args.begin * args.over_rows_rows + d * kBlock;
    for (int64_t c = 0; c < kBlock; ++c) {
      for (int64_t r = 0; r < kBlock; ++r)
        to[c * kBlock + r] = block[r * kBlock + c];
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

// ---- gradient of the table -------------------------------------------------

PAX_INLINE void StoreRow(const float* sums, int64_t width, bool add,
                         float* to) {
  for (int64_t i = 0; i < width; ++i) to[i] = add ? to[i] + sums[i] : sums[i];
}

PAX_INLINE void StoreRow(const float* sums, int64_t width, bool, Bfloat16* to) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const HalfVec halves =
        __builtin_convertvector(RoundToBfloat16(Load<Vec>(sums + i)), HalfVec);
    std::memcpy(to + i, &halves, Clip(width - i, kLanes) * sizeof(Bfloat16));
  }
}

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
                   table + (d + i) * args.vocab + begin);
        }
        continue;
      }
      alignas(64) float block[kBlock * kBlock];
      TransposeWords(reinterpret_cast<const uint32_t*>(panel), kBlock, kBlock,
                     kBlock, reinterpret_cast<uint32_t*>(block), kBlock);
      for (int64_t i = 0; i < columns; ++i) {
        StoreRow(block + i * kBlock, depth, args.add,
                 table + (begin + i) * args.dims + d);
      }
    }
  }
}

// ---- softmax ---------------------------------------------------------------

// Applies bias, soft cap and padding; returns the sum of the logits inside the
// vocabulary.
PAX_INLINE float FinishLogits(const StatsArgs& args, Vec* row) {
  const StripArgs& strip = args.strip;
  Vec total = {};
  for (int64_t i = 0; i < kStripVecs; ++i) {
    if (args.bias) row[i] += Load<Vec>(args.bias + i * kLanes);
    if (strip.soft_cap > 0) row[i] = Cap(row[i], strip.soft_cap);
    if (strip.width == kStrip) {
      total += row[i];
      continue;
    }
    // Padding columns are NaN if an activation is infinite.
    const IntVec column = Iota() + static_cast<int32_t>(i * kLanes);
    const IntVec is_inside = column < static_cast<int32_t>(strip.width);
    total += is_inside ? row[i] : Vec{};
    row[i] = is_inside ? row[i] : Splat(-kInfinity);
  }
  return SumOf(total);
}

// Reduces a row with NaN: its first NaN is the maximum.
PAX_INLINE bool ReduceNan(const StatsArgs& args, const Vec* row, int64_t r) {
  for (int64_t v = 0; v < args.strip.width; ++v) {
    const float logit = row[v / kLanes][v % kLanes];
    if (logit == logit) continue;
    args.max[r] = args.sum[r] = logit;
    args.argmax[r] = static_cast<int32_t>(args.strip.begin + v);
    return true;
  }
  return false;
}

PAX_INLINE void ReduceRow(const StatsArgs& args, const Vec* row, int64_t r) {
  // A sum is NaN if a term is, but also for infinity - infinity.
  const bool may_have_nan = args.total[r] != args.total[r];
  if (may_have_nan && ReduceNan(args, row, r)) return;
  Vec most = row[0];
  for (int64_t i = 1; i < kStripVecs; ++i) most = row[i] > most ? row[i] : most;
  const float max = MaxOf(most);
  Vec sum = {};
  IntVec first = IntVec{} + static_cast<int32_t>(kStrip - 1);
  for (int64_t i = kStripVecs - 1; i >= 0; --i) {
    const IntVec column = Iota() + static_cast<int32_t>(i * kLanes);
    first = row[i] == Splat(max) ? column : first;
    sum += Exp(row[i] - max);
  }
  args.max[r] = max;
  // If all logits are masked, the differences from the maximum are NaN.
  args.sum[r] = max == -kInfinity ? 0.0f : SumOf(sum);
  args.argmax[r] = static_cast<int32_t>(args.strip.begin) + MinOf(first);
}

void Stats(const StatsArgs& args) {
  const StripArgs& strip = args.strip;
  const bool changed = args.bias || strip.soft_cap > 0 || strip.width < kStrip;
  for (int64_t r = 0; r < strip.rows; ++r) {
    float* logits = strip.logits + r * kBlock;
    Vec row[kStripVecs];
    for (int64_t i = 0; i < kStripVecs; ++i) {
      row[i] = Load<Vec>(logits + i / kVecs * strip.panel + i % kVecs * kLanes);
    }
    args.total[r] = FinishLogits(args, row);
    for (int64_t i = 0; changed && i < kStripVecs; ++i) {
      Store(logits + i / kVecs * strip.panel + i % kVecs * kLanes, row[i]);
    }
    ReduceRow(args, row, r);
    const int64_t label = args.labels[r] - strip.begin;
    if (label >= 0 && label < strip.width) {
      args.label_logit[r] =
          logits[label / kBlock * strip.panel + label % kBlock];
    }
  }
}

// Computes the gradient of one row in one panel, in float32.
PAX_INLINE void RowGradient(const GradientArgs& args, int64_t panel, int64_t r,
                            const float* logits, float* gradient) {
  const StripArgs& strip = args.strip;
  if (r >= args.height) {
    // The logits of padding are NaN if the table is not finite.
    std::memset(gradient, 0, kBlock * sizeof(float));
    return;
  }
  const float scale = strip.soft_cap > 0 ? 1 / strip.soft_cap : 0.0f;
  for (int64_t i = 0; i < kBlock; i += kLanes) {
    const Vec l = Load<Vec>(logits + i);
    Vec g = args.probability[r] * Exp(l - args.logsumexp[r]) - args.offset[r];
    if (scale > 0) g *= 1.0f - (l * scale) * (l * scale);
    Store(gradient + i, g);
  }
  const int64_t begin = panel * kBlock;
  const int64_t label = args.labels[r] - strip.begin - begin;
  if (label >= 0 && label < kBlock && label + begin < strip.width) {
    gradient[label] -= args.label[r] * CapSlope(logits[label], scale);
  }
  for (int64_t i = kBlock - 1; i >= 0 && begin + i >= strip.width; --i) {
    gradient[i] = 0;
  }
}

PAX_INLINE void StoreGradient(float, const GradientArgs&, float* panel,
                              int64_t r, const float* gradient) {
  std::memcpy(panel + r * kBlock, gradient, 2 * kBlock * sizeof(float));
}

// Writes A over the logits of processed rows, and B to scratch memory until the
// panel is complete.
PAX_INLINE void StoreGradient(Bfloat16, const GradientArgs& args, float* panel,
                              int64_t r, const float* gradient) {
  Bfloat16* a = reinterpret_cast<Bfloat16*>(panel) + r * kBlock;
  Bfloat16* b = static_cast<Bfloat16*>(args.scratch) + r * kBlock;
  for (int64_t i = 0; i < kBlock; i += kLanes) {
    const WordVec even = RoundToBfloat16(Load<Vec>(gradient + i));
    const WordVec odd = RoundToBfloat16(Load<Vec>(gradient + kBlock + i));
    Store(a + i, __builtin_convertvector(even, HalfVec));
    Store(a + kBlock + i, __builtin_convertvector(odd, HalfVec));
    Store(b + 2 * i, even | (odd << 16));
  }
}

template <class Packed>
void Gradient(const GradientArgs& args) {
  const StripArgs& strip = args.strip;
  for (int64_t p = 0; p < kPanels; ++p) {
    float* panel = strip.logits + p * strip.panel;
    Vec sums[kVecs] = {};
    for (int64_t r = 0; r < strip.rows; r += 2) {
      alignas(64) float pair[2 * kBlock];
      for (int64_t i = 0; i < 2; ++i) {
        RowGradient(args, p, r + i, panel + (r + i) * kBlock,
                    pair + i * kBlock);
        for (int v = 0; v < kVecs; ++v) {
          sums[v] += Load<Vec>(pair + i * kBlock + v * kLanes);
        }
      }
      StoreGradient(Packed{}, args, panel, r, pair);
    }
    for (int v = 0; v < kVecs; ++v) {
      Store(args.column_sums + p * kBlock + v * kLanes, sums[v]);
    }
    if (sizeof(Packed) == 2) {
      std::memcpy(reinterpret_cast<Bfloat16*>(panel) + strip.rows * kBlock,
                  args.scratch, strip.rows * kBlock * 2);
    }
  }
}

// ---- matmul with a weight of int8 ------------------------------------------

// Rows of the weight that are converted once for all rows of x.
constexpr int64_t kInt8Depth = 8;

template <class In>
void Int8Matmul(const Int8MatmulArgs& args) {
  alignas(64) float sums[kInt8Rows * kInt8Columns] = {};
  alignas(64) float block[kInt8Depth * kInt8Columns] = {};
  const In* x = static_cast<const In*>(args.x);
  const int64_t width = Clip(args.columns - args.begin, kInt8Columns);
  for (int64_t k = 0; k < args.depth; k += kInt8Depth) {
    const int64_t depth = Clip(args.depth - k, kInt8Depth);
    for (int64_t i = 0; i < depth; ++i) {
      const int8_t* w = args.w + (k + i) * args.columns + args.begin;
      for (int64_t n = 0; n < width; n += kCacheLine) {
        __builtin_prefetch(w + kInt8Depth * args.columns + n);
      }
      for (int64_t n = 0; n < width; ++n) block[i * kInt8Columns + n] = w[n];
    }
    for (int64_t r = 0; r < args.rows; ++r) {
      // The block has rows of an earlier step past the end.
      float factors[kInt8Depth] = {};
      for (int64_t i = 0; i < depth; ++i) {
        factors[i] = ToFloat(x[r * args.depth + k + i]);
      }
      for (int64_t n = 0; n < width; n += kLanes) {
        float* to = sums + r * kInt8Columns + n;
        Vec sum = Load<Vec>(to);
        for (int64_t i = 0; i < kInt8Depth; ++i) {
          sum += factors[i] * Load<Vec>(block + i * kInt8Columns + n);
        }
        Store(to, sum);
      }
    }
  }
  In* out = static_cast<In*>(args.out) + args.begin;
  for (int64_t r = 0; r < args.rows; ++r) {
    StoreRow(sums + r * kInt8Columns, width, false, out + r * args.columns);
  }
}

template <class In, class Packed>
constexpr TileOps MakeTileOps(const char* name, Dtype packed) {
  return {name,
          packed,
          PackTable<In, Packed>,
          PackInput<In, Packed>,
          Matmul<Packed>,
          StoreTable<In>,
          Stats,
          Gradient<Packed>,
          Int8Matmul<In>};
}

}  // namespace
}  // namespace pax

#if defined(PAX_TARGET) && defined(__clang__)
#pragma clang attribute pop
#elif defined(PAX_TARGET)
#pragma GCC pop_options
#endif

#pragma GCC diagnostic pop
