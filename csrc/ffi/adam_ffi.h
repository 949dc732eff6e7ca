// SPDX-License-Identifier: Apache-2.0
// XLA FFI handler of adam on the CPU.
#ifndef CSRC_FFI_ADAM_FFI_H_
#define CSRC_FFI_ADAM_FFI_H_

#include "xla/ffi/api/ffi.h"

namespace pax {

// gradient, m, v [rows..., size...] and beta1, beta2 [rows...] -> step, m, v as
// gradient (AdamUpdate), all float32. They may alias gradient, m and v.
XLA_FFI_DECLARE_HANDLER_SYMBOL(AdamHandler);

}  // namespace pax

#endif  // CSRC_FFI_ADAM_FFI_H_
