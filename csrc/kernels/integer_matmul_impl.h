// SPDX-License-Identifier: Apache-2.0
// Matmul of few rows with a weight of int8 or int4.
// Included by tiles_impl.h, once per instruction set.

namespace pax {
namespace {

// Rows of the weight that are multiplied at once with each row of x.
constexpr int64_t kIntegerDepth = 8;
// From one row of floats of the weight to the next: strides of a power of two
// would map columns to one cache set.
constexpr int64_t kIntegerRow = kIntegerColumns + 16;
// Columns of a transposed weight that are converted at once.
constexpr int64_t kTransposedDepth = 64;
// Up to this many rows of x are multiplied with a transposed weight as it is.
// Vectors of less than 8 words are not transposed.
constexpr int64_t kDotRows = kLanes < 8 ? kIntegerRows : 4;

// The integers of a vector of 32-bit words: a word has kColumns elements of
// `Stored`, and each of these has kRows integers of kBits, the lowest first.
template <class Stored, int64_t kRows>
struct IntegerWords {
  static constexpr int64_t kColumns = 4 / sizeof(Stored);
  static constexpr int64_t kRun = kColumns * kLanes;
  static constexpr int kBits = 32 / (kColumns * kRows);
  static_assert(kIntegerColumns % kRun == 0 && kIntegerDepth % kRows == 0, "");
  static_assert(kTransposedDepth % kRun == 0 && kBlock % kRows == 0, "");

  // The place in a row of floats of column n: a vector has every kColumns-th
  // column of a run, so that no lane moves.
  static constexpr int64_t Place(int64_t n) {
    return n / kRun * kRun + n % kColumns * kLanes + n % kRun / kColumns;
  }

  // Converts the kRows rows at w.
  PAX_INLINE void ToFloats(const Stored* w, int64_t width, int64_t row,
                           float* rows) {
    for (int64_t n = 0; n < width; n += kRun) {
      IntVec words = {};
      if (width - n >= kRun) {
        words = Load<IntVec>(w + n);
      } else {
        std::memcpy(&words, w + n, (width - n) * sizeof(Stored));
      }
      for (int64_t c = 0; c < kColumns; ++c) {
        for (int64_t r = 0; r < kRows; ++r) {
          const int above = 32 - kBits * static_cast<int>(c * kRows + r + 1);
          const IntVec values =
              (IntVec)((WordVec)words << above) >> (32 - kBits);
          Store(rows + r * row + n + c * kLanes,
                __builtin_convertvector(values, Vec));
        }
      }
    }
  }

  // Transposes the floats of a run of kBlock rows, which become rows in order.
  PAX_INLINE void TransposeRun(const float* from, int64_t from_row, float* to,
                               int64_t to_row) {
    for (int64_t c = 0; c < kColumns; ++c) {
      TransposeWords(reinterpret_cast<const uint32_t*>(from) + c * kLanes,
                     from_row, kBlock, kLanes,
                     reinterpret_cast<uint32_t*>(to) + c * to_row,
                     kColumns * to_row);
    }
  }
};

// sums += x[:, k : k + depth] block
template <class In>
PAX_INLINE void AddProducts(const IntegerMatmulArgs& args, int64_t k,
                            const float* block, int64_t width, float* sums) {
  const In* x = static_cast<const In*>(args.x) + k;
  const int64_t depth = Clip(args.depth - k, kIntegerDepth);
  for (int64_t r = 0; r < args.rows; ++r) {
    // The block has rows of an earlier step past the end.
    float factors[kIntegerDepth] = {};
    for (int64_t i = 0; i < depth; ++i) {
      factors[i] = ToFloat(x[r * args.depth + i]);
    }
    for (int64_t n = 0; n < width; n += kLanes) {
      float* to = sums + r * kIntegerColumns + n;
      Vec sum = Load<Vec>(to);
      for (int64_t i = 0; i < kIntegerDepth; ++i) {
        sum += factors[i] * Load<Vec>(block + i * kIntegerRow + n);
      }
      Store(to, sum);
    }
  }
}

template <class In, class Stored, int64_t kRows>
void IntegerMatmulAs(const IntegerMatmulArgs& args) {
  using Words = IntegerWords<Stored, kRows>;
  alignas(64) float sums[kIntegerRows * kIntegerColumns] = {};
  alignas(64) float block[kIntegerDepth * kIntegerRow] = {};
  const int64_t width = Clip(args.columns - args.begin, kIntegerColumns);
  const int64_t padded = (width + Words::kRun - 1) / Words::kRun * Words::kRun;
  const Stored* w = static_cast<const Stored*>(args.w) + args.begin;
  for (int64_t k = 0; k < args.depth; k += kIntegerDepth) {
    for (int64_t i = 0; i < kIntegerDepth && k + i < args.depth; i += kRows) {
      constexpr int64_t kElements = kCacheLine / sizeof(Stored);
      for (int64_t n = 0; n < width; n += kElements) {
        __builtin_prefetch(w + kIntegerDepth / kRows * args.columns + n);
      }
      Words::ToFloats(w, width, kIntegerRow, block + i * kIntegerRow);
      w += args.columns;
    }
    AddProducts<In>(args, k, block, padded, sums);
  }
  In* out = static_cast<In*>(args.out) + args.begin;
  for (int64_t r = 0; r < args.rows; ++r) {
    // The block is free: one of its rows takes the columns in order.
    for (int64_t n = 0; n < width; ++n) {
      block[n] = sums[r * kIntegerColumns + Words::Place(n)];
    }
    StoreRow(block, width, false, out + r * args.columns);
  }
}

// Writes x[:, k : k + depth] as floats, in the order of the columns of `Words`
// and padded with zeros.
template <class In, class Words>
PAX_INLINE void PlaceRows(const IntegerMatmulArgs& args, int64_t k,
                          int64_t depth, float* rows) {
  std::memset(rows, 0, args.rows * kIntegerColumns * sizeof(float));
  const In* x = static_cast<const In*>(args.x) + k;
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t n = 0; n < depth; ++n) {
      rows[r * kIntegerColumns + Words::Place(n)] =
          ToFloat(x[r * args.depth + n]);
    }
  }
}

PAX_INLINE float Dot(const float* a, const float* b, int64_t size) {
  Vec sum = {};
  for (int64_t i = 0; i < size; i += kLanes) {
    sum += Load<Vec>(a + i) * Load<Vec>(b + i);
  }
  return SumOf(sum);
}

// A row of the weight has all factors of kRows columns of out.
template <class In, class Stored, int64_t kRows>
void DotTransposedAs(const IntegerMatmulArgs& args) {
  using Words = IntegerWords<Stored, kRows>;
  alignas(64) float sums[kIntegerRows * kIntegerColumns] = {};
  alignas(64) float x[kIntegerRows * kIntegerColumns];
  alignas(64) float block[kRows * kIntegerColumns];
  const int64_t width = Clip(args.columns - args.begin, kIntegerColumns);
  for (int64_t k = 0; k < args.depth; k += kIntegerColumns) {
    const int64_t depth = Clip(args.depth - k, kIntegerColumns);
    const int64_t padded =
        (depth + Words::kRun - 1) / Words::kRun * Words::kRun;
    PlaceRows<In, Words>(args, k, depth, x);
    const Stored* w = static_cast<const Stored*>(args.w) +
                      args.begin / kRows * args.depth + k;
    for (int64_t n = 0; n < width; n += kRows) {
      Words::ToFloats(w, depth, kIntegerColumns, block);
      w += args.depth;
      for (int64_t i = 0; i < kRows; ++i) {
        for (int64_t r = 0; r < args.rows; ++r) {
          sums[r * kIntegerColumns + n + i] +=
              Dot(x + r * kIntegerColumns, block + i * kIntegerColumns, padded);
        }
      }
    }
  }
  In* out = static_cast<In*>(args.out) + args.begin;
  for (int64_t r = 0; r < args.rows; ++r) {
    StoreRow(sums + r * kIntegerColumns, width, false, out + r * args.columns);
  }
}

// Converts columns [k, k + depth) of the weight to rows of kIntegerColumns.
template <class Stored, int64_t kRows>
PAX_INLINE void TransposeWeight(const IntegerMatmulArgs& args, int64_t k,
                                int64_t depth, int64_t width, float* block) {
  using Words = IntegerWords<Stored, kRows>;
  alignas(64) float rows[kBlock * kTransposedDepth] = {};
  const Stored* w =
      static_cast<const Stored*>(args.w) + args.begin / kRows * args.depth + k;
  for (int64_t n = 0; n < width; n += kBlock) {
    for (int64_t i = 0; i < kBlock && n + i < width; i += kRows) {
      Words::ToFloats(w, depth, kTransposedDepth, rows + i * kTransposedDepth);
      w += args.depth;
    }
    for (int64_t i = 0; i < depth; i += Words::kRun) {
      Words::TransposeRun(rows + i, kTransposedDepth,
                          block + i * kIntegerRow + n, kIntegerRow);
    }
  }
}

template <class In, class Stored, int64_t kRows>
void IntegerMatmulTransposedAs(const IntegerMatmulArgs& args) {
  alignas(64) float sums[kIntegerRows * kIntegerColumns] = {};
  alignas(64) float block[kTransposedDepth * kIntegerRow] = {};
  const int64_t width = Clip(args.columns - args.begin, kIntegerColumns);
  const int64_t padded = (width + kLanes - 1) / kLanes * kLanes;
  for (int64_t k = 0; k < args.depth; k += kTransposedDepth) {
    const int64_t depth = Clip(args.depth - k, kTransposedDepth);
    TransposeWeight<Stored, kRows>(args, k, depth, width, block);
    for (int64_t i = 0; i < depth; i += kIntegerDepth) {
      AddProducts<In>(args, k + i, block + i * kIntegerRow, padded, sums);
    }
  }
  In* out = static_cast<In*>(args.out) + args.begin;
  for (int64_t r = 0; r < args.rows; ++r) {
    StoreRow(sums + r * kIntegerColumns, width, false, out + r * args.columns);
  }
}

template <class In, class Stored, int64_t kRows>
void IntegerMatmulOf(const IntegerMatmulArgs& args) {
  if (!args.transposed) return IntegerMatmulAs<In, Stored, kRows>(args);
  return args.rows <= kDotRows
             ? DotTransposedAs<In, Stored, kRows>(args)
             : IntegerMatmulTransposedAs<In, Stored, kRows>(args);
}

template <class In>
void IntegerMatmul(const IntegerMatmulArgs& args) {
  switch (args.format) {
    case IntegerFormat::kInt8:
      return IntegerMatmulOf<In, int8_t, 1>(args);
    case IntegerFormat::kInt4InInt8:
      return IntegerMatmulOf<In, int8_t, 2>(args);
    case IntegerFormat::kInt4InInt32:
      return IntegerMatmulOf<In, int32_t, 8>(args);
  }
}

}  // namespace
}  // namespace pax
