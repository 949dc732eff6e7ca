// SPDX-License-Identifier: Apache-2.0
// out = x w for few rows of x and a weight of int8 or int4, as in decoding: the
// weight is read once, and never written as floats.
#ifndef CSRC_KERNELS_INTEGER_MATMUL_H_
#define CSRC_KERNELS_INTEGER_MATMUL_H_

#include <cstdint>

#include "csrc/kernels/parallel.h"
#include "csrc/kernels/tiles.h"

namespace pax {

struct IntegerMatmul {
  Dtype dtype;  // of x and of out
  IntegerFormat format;
  bool transposed;
  int64_t rows;
  // A multiple of RowsPerElement(format), or when transposed the columns are.
  int64_t depth;
  int64_t columns;
  const void* x;  // [rows, depth]
  // [depth / RowsPerElement(format), columns], or when transposed
  // [columns / RowsPerElement(format), depth]
  const void* w;
  void* out;  // [rows, columns]
};

// Sums in float32. Results do not depend on the number of threads.
void RunIntegerMatmul(const IntegerMatmul& args, const Parallel& parallel);

}  // namespace pax

#endif  // CSRC_KERNELS_INTEGER_MATMUL_H_
