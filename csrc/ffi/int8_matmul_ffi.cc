// SPDX-License-Identifier: Apache-2.0
#include "csrc/ffi/int8_matmul_ffi.h"

#include <cstdint>
#include <exception>
#include <string>

#include "csrc/ffi/thread_pool.h"
#include "csrc/kernels/int8_matmul.h"

namespace pax {
namespace {

namespace ffi = ::xla::ffi;

ffi::Error Invalid(const char* message) {
  return ffi::Error::InvalidArgument(std::string("int8_matmul: ") + message);
}

ffi::Error Run(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Buffer<ffi::S8> w,
               ffi::Result<ffi::AnyBuffer> out) {
  const auto type = x.element_type();
  if (type != ffi::F32 && type != ffi::BF16) {
    return Invalid("x must be float32 or bfloat16");
  }
  if (out->element_type() != type) return Invalid("out must be as x");
  const auto x_dims = x.dimensions();
  const auto w_dims = w.dimensions();
  const auto out_dims = out->dimensions();
  if (x_dims.size() != 2 || w_dims.size() != 2 || out_dims.size() != 2) {
    return Invalid("x, w and out must be matrices");
  }
  if (x_dims[1] != w_dims[0] || out_dims[0] != x_dims[0] ||
      out_dims[1] != w_dims[1]) {
    return Invalid("x [M, K] and w [K, N] must give out [M, N]");
  }
  try {
    RunInt8Matmul({type == ffi::F32 ? Dtype::kFloat32 : Dtype::kBfloat16,
                   x_dims[0], x_dims[1], w_dims[1], x.untyped_data(),
                   w.typed_data(), out->untyped_data()},
                  OnThreadPool(pool));
  } catch (const std::exception& e) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted,
                      std::string("int8_matmul: ") + e.what());
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(Int8MatmulHandler, Run,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()        // x
                                  .Arg<ffi::Buffer<ffi::S8>>()  // w
                                  .Ret<ffi::AnyBuffer>());      // out

}  // namespace pax
