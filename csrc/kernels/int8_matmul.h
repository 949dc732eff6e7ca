// SPDX-License-Identifier: Apache-2.0
// out = x w for few rows of x and a weight of int8, as in decoding: the weight
// is read once, and never written as floats.
#ifndef CSRC_KERNELS_INT8_MATMUL_H_
#define CSRC_KERNELS_INT8_MATMUL_H_

#include <cstdint>

#include "csrc/kernels/parallel.h"
#include "csrc/kernels/tiles.h"

namespace pax {

struct Int8Matmul {
  Dtype dtype;  // of x and of out
  int64_t rows;
  int64_t depth;
  int64_t columns;
  const void* x;    // [rows, depth]
  const int8_t* w;  // [depth, columns]
  void* out;        // [rows, columns]
};

// Sums in float32. Results do not depend on the number of threads.
void RunInt8Matmul(const Int8Matmul& args, const Parallel& parallel);

}  // namespace pax

#endif  // CSRC_KERNELS_INT8_MATMUL_H_
