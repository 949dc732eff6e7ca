// SPDX-License-Identifier: Apache-2.0
// XLA FFI handler of integer_matmul on the CPU.
#ifndef CSRC_FFI_INTEGER_MATMUL_FFI_H_
#define CSRC_FFI_INTEGER_MATMUL_FFI_H_

#include "xla/ffi/api/ffi.h"

namespace pax {

// x [M, K] float32 or bfloat16 -> out [M, N] as x. w is [K, N] int8 with
// bits=8; with bits=4 [K / 2, N] int8 or [K / 8, N] int32, as int4_packing
// packs it. With transposed=true it is [N, K], [N / 2, K] or [N / 8, K].
XLA_FFI_DECLARE_HANDLER_SYMBOL(IntegerMatmulHandler);

}  // namespace pax

#endif  // CSRC_FFI_INTEGER_MATMUL_FFI_H_
