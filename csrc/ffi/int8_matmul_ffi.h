// SPDX-License-Identifier: Apache-2.0
// XLA FFI handler of int8_matmul on the CPU.
#ifndef CSRC_FFI_INT8_MATMUL_FFI_H_
#define CSRC_FFI_INT8_MATMUL_FFI_H_

#include "xla/ffi/api/ffi.h"

namespace pax {

// x [M, K] float32 or bfloat16, w [K, N] int8 -> out [M, N] as x
XLA_FFI_DECLARE_HANDLER_SYMBOL(Int8MatmulHandler);

}  // namespace pax

#endif  // CSRC_FFI_INT8_MATMUL_FFI_H_
