// SPDX-License-Identifier: Apache-2.0
#include "csrc/ffi/adam_ffi.h"

#include <cstdint>
#include <exception>
#include <string>

#include "csrc/ffi/checks.h"
#include "csrc/ffi/thread_pool.h"
#include "csrc/kernels/adam.h"

namespace pax {
namespace {

namespace ffi = ::xla::ffi;

using Dims = ffi::AnyBuffer::Dimensions;
using Floats = ffi::Buffer<ffi::F32>;
using FloatsOut = ffi::Result<Floats>;

constexpr char kKernel[] = "adam";

ffi::Error CheckShape(const char* name, Dims got, Dims want) {
  if (got == want) return ffi::Error::Success();
  return InvalidCall(kKernel, std::string(name) + " must have shape " +
                                  Text(want) + ", got " + Text(got));
}

ffi::Error Run(ffi::ThreadPool pool, Floats gradient, Floats m, Floats v,
               Floats beta1, Floats beta2, FloatsOut step, FloatsOut m_out,
               FloatsOut v_out, float epsilon, float epsilon_root,
               bool inf_to_nan) {
  const Dims dims = gradient.dimensions();
  const Dims row_dims = beta1.dimensions();
  if (row_dims.size() > dims.size()) {
    return InvalidCall(kKernel, "beta1 must have at most " +
                                    std::to_string(dims.size()) +
                                    " dimensions, got " + Text(row_dims));
  }
  for (auto error : {
           CheckShape("m", m.dimensions(), dims),
           CheckShape("v", v.dimensions(), dims),
           CheckShape("beta1", row_dims, dims.first(row_dims.size())),
           CheckShape("beta2", beta2.dimensions(), row_dims),
           CheckShape("step", step->dimensions(), dims),
           CheckShape("m_out", m_out->dimensions(), dims),
           CheckShape("v_out", v_out->dimensions(), dims),
       }) {
    if (error.failure()) return error;
  }
  int64_t size = 1;
  for (size_t i = row_dims.size(); i < dims.size(); ++i) size *= dims[i];
  const int64_t rows = static_cast<int64_t>(beta1.element_count());
  try {
    RunAdam({rows, size, epsilon, epsilon_root, inf_to_nan, beta1.typed_data(),
             beta2.typed_data(), gradient.typed_data(), m.typed_data(),
             v.typed_data(), step->typed_data(), m_out->typed_data(),
             v_out->typed_data()},
            OnThreadPool(pool));
  } catch (const std::exception& e) {
    return OutOfMemory(kKernel, e);
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(AdamHandler, Run,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()  // gradient
                                  .Arg<Floats>()  // m
                                  .Arg<Floats>()  // v
                                  .Arg<Floats>()  // beta1
                                  .Arg<Floats>()  // beta2
                                  .Ret<Floats>()  // step
                                  .Ret<Floats>()  // m
                                  .Ret<Floats>()  // v
                                  .Attr<float>("epsilon")
                                  .Attr<float>("epsilon_root")
                                  .Attr<bool>("inf_to_nan"));

}  // namespace pax
