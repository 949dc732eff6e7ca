// SPDX-License-Identifier: Apache-2.0
// Moments and steps of Adam in one pass over memory.
#ifndef CSRC_KERNELS_ADAM_H_
#define CSRC_KERNELS_ADAM_H_

#include <cstdint>

#include "csrc/kernels/parallel.h"

namespace pax {

// Arrays have `rows` rows of `size` floats. Results may be in place of
// operands: step of gradient, m_out of m, v_out of v.
struct AdamUpdate {
  int64_t rows;
  int64_t size;
  float epsilon;
  float epsilon_root;
  bool inf_to_nan;     // replaces infinite gradients by NaN
  const float* beta1;  // [rows], decay of the first moment
  const float* beta2;  // [rows], decay of the second moment
  const float* gradient;
  const float* m;
  const float* v;
  float* step;  // m_out / (sqrt(v_out + epsilon_root) + epsilon)
  float* m_out;
  float* v_out;
};

// Results do not depend on the number of threads.
void RunAdam(const AdamUpdate& args, const Parallel& parallel);

}  // namespace pax

#endif  // CSRC_KERNELS_ADAM_H_
