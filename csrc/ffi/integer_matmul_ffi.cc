// SPDX-License-Identifier: Apache-2.0
#include "csrc/ffi/integer_matmul_ffi.h"

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "csrc/ffi/thread_pool.h"
#include "csrc/kernels/integer_matmul.h"

namespace pax {
namespace {

namespace ffi = ::xla::ffi;

ffi::Error Invalid(const char* message) {
  return ffi::Error::InvalidArgument(std::string("integer_matmul: ") + message);
}

std::optional<IntegerFormat> FormatOf(ffi::DataType type, int64_t bits) {
  if (type == ffi::S8 && bits == 8) return IntegerFormat::kInt8;
  if (type == ffi::S8 && bits == 4) return IntegerFormat::kInt4InInt8;
  if (type == ffi::S32 && bits == 4) return IntegerFormat::kInt4InInt32;
  return std::nullopt;
}

ffi::Error Run(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer w,
               ffi::Result<ffi::AnyBuffer> out, int64_t bits, bool transposed) {
  const auto type = x.element_type();
  if (type != ffi::F32 && type != ffi::BF16) {
    return Invalid("x must be float32 or bfloat16");
  }
  if (out->element_type() != type) return Invalid("out must be as x");
  const auto format = FormatOf(w.element_type(), bits);
  if (!format) return Invalid("w must be int8, or int4 in int8 or int32");
  const auto x_dims = x.dimensions();
  const auto w_dims = w.dimensions();
  const auto out_dims = out->dimensions();
  if (x_dims.size() != 2 || w_dims.size() != 2 || out_dims.size() != 2) {
    return Invalid("x, w and out must be matrices");
  }
  const int64_t rows_per_element = RowsPerElement(*format);
  const int64_t packed = transposed ? out_dims[1] : x_dims[1];
  const int64_t whole = transposed ? x_dims[1] : out_dims[1];
  if (packed % rows_per_element != 0 ||
      packed / rows_per_element != w_dims[0] || whole != w_dims[1] ||
      out_dims[0] != x_dims[0]) {
    return Invalid(
        "x [M, K] and w, [K / packed, N] or transposed [N / packed, K], must "
        "give out [M, N]");
  }
  try {
    RunIntegerMatmul({type == ffi::F32 ? Dtype::kFloat32 : Dtype::kBfloat16,
                      *format, transposed, x_dims[0], x_dims[1], out_dims[1],
                      x.untyped_data(), w.untyped_data(), out->untyped_data()},
                     OnThreadPool(pool));
  } catch (const std::exception& e) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted,
                      std::string("integer_matmul: ") + e.what());
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(IntegerMatmulHandler, Run,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()  // x
                                  .Arg<ffi::AnyBuffer>()  // w
                                  .Ret<ffi::AnyBuffer>()  // out
                                  .Attr<int64_t>("bits")
                                  .Attr<bool>("transposed"));

}  // namespace pax
