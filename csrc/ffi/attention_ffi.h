// SPDX-License-Identifier: Apache-2.0
// XLA FFI handlers of attention on the CPU.
#ifndef CSRC_FFI_ATTENTION_FFI_H_
#define CSRC_FFI_ATTENTION_FFI_H_

#include "xla/ffi/api/ffi.h"

namespace pax {

// query [B, T, N, H], key and value [B, T, K, H], all float32 or bfloat16,
// segment_ids [B, T]; attributes soft_cap, before, after
// -> out [B, T, N, H], logsumexp [B, N, T]
XLA_FFI_DECLARE_HANDLER_SYMBOL(AttentionHandler);

// The same operands, dout [B, T, N, H], logsumexp and delta [B, N, T]
// -> gradients as query, key and value; scratch memory
XLA_FFI_DECLARE_HANDLER_SYMBOL(AttentionGradientHandler);

}  // namespace pax

#endif  // CSRC_FFI_ATTENTION_FFI_H_
