// SPDX-License-Identifier: Apache-2.0
// XLA FFI handler of the CUDA kernel of softmax_xent.
#ifndef CSRC_FFI_SOFTMAX_XENT_CUDA_FFI_H_
#define CSRC_FFI_SOFTMAX_XENT_CUDA_FFI_H_

#include "xla/ffi/api/ffi.h"

namespace pax {

// logits [N, V], labels, xent_weight, logsumexp_weight [N]
//   -> xent, logsumexp, argmax [N], gradient [N, V] (may alias logits)
XLA_FFI_DECLARE_HANDLER_SYMBOL(SoftmaxXentRowsCudaHandler);

}  // namespace pax

#endif  // CSRC_FFI_SOFTMAX_XENT_CUDA_FFI_H_
