// SPDX-License-Identifier: Apache-2.0
// The Python extension: every kernel's XLA FFI handler, by platform and name.
#include <nanobind/nanobind.h>

#include "csrc/ffi/adam_ffi.h"
#include "csrc/ffi/attention_ffi.h"
#include "csrc/ffi/integer_matmul_ffi.h"
#include "csrc/ffi/softmax_xent_ffi.h"
#include "csrc/kernels/tiles.h"
#ifdef PAX_CUDA
#include "csrc/ffi/softmax_xent_cuda_ffi.h"
#endif

namespace nb = nanobind;

namespace {

nb::capsule Encapsulate(XLA_FFI_Handler* handler) {
  return nb::capsule(reinterpret_cast<void*>(handler),
                     "xla._CUSTOM_CALL_TARGET");
}

// Maps 'platform:name' to the handler.
nb::dict Registrations() {
  nb::dict handlers;
  handlers["cpu:pax_adam"] = Encapsulate(pax::AdamHandler);
  handlers["cpu:pax_attention"] = Encapsulate(pax::AttentionHandler);
  handlers["cpu:pax_attention_gradient"] =
      Encapsulate(pax::AttentionGradientHandler);
  handlers["cpu:pax_integer_matmul"] = Encapsulate(pax::IntegerMatmulHandler);
  handlers["cpu:pax_softmax_xent"] = Encapsulate(pax::SoftmaxXentHandler);
  handlers["cpu:pax_softmax_xent_gradient"] =
      Encapsulate(pax::SoftmaxXentGradientHandler);
#ifdef PAX_CUDA
  handlers["CUDA:pax_softmax_xent_rows"] =
      Encapsulate(pax::SoftmaxXentRowsCudaHandler);
#endif
  return handlers;
}

}  // namespace

NB_MODULE(_native, m) {
  m.def("registrations", &Registrations);
  m.def("cpu_isa",
        [] { return pax::SelectTileOps(pax::Dtype::kFloat32).name; });
}
