// SPDX-License-Identifier: Apache-2.0
// XLA FFI handlers of softmax_xent on the CPU.
#ifndef CSRC_FFI_SOFTMAX_XENT_FFI_H_
#define CSRC_FFI_SOFTMAX_XENT_FFI_H_

#include "xla/ffi/api/ffi.h"

namespace pax {

// x [N, D], table, bias [V] or [0], labels [N]
//   -> xent, logsumexp, argmax [N]
XLA_FFI_DECLARE_HANDLER_SYMBOL(SoftmaxXentHandler);

// The same, then xent_weight [N], logsumexp_weight [N], normalizer [N] or [0]
//   -> xent, logsumexp, argmax, dx, dtable, dbias (as bias),
//      and scratch: logits, dtable_sums (float32, any shape)
XLA_FFI_DECLARE_HANDLER_SYMBOL(SoftmaxXentGradientHandler);

}  // namespace pax

#endif  // CSRC_FFI_SOFTMAX_XENT_FFI_H_
