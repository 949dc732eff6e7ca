// SPDX-License-Identifier: Apache-2.0
#include "csrc/ffi/softmax_xent_cuda_ffi.h"

#include <cstdint>
#include <string>

#include "csrc/kernels/softmax_xent_cuda.h"

namespace pax {
namespace {

namespace ffi = ::xla::ffi;

using Matrix = ffi::BufferR2<ffi::F32>;
using Floats = ffi::BufferR1<ffi::F32>;
using Ints = ffi::BufferR1<ffi::S32>;

template <class B>
bool Holds(const B& buffer, int64_t count) {
  return static_cast<int64_t>(buffer.element_count()) == count;
}

ffi::Error Rows(cudaStream_t stream, Matrix logits, Ints labels,
                Floats xent_weight, Floats logsumexp_weight, float soft_cap,
                float label_smoothing, float z_loss_weight,
                ffi::Result<Floats> xent, ffi::Result<Floats> logsumexp,
                ffi::Result<Ints> argmax, ffi::Result<Matrix> gradient) {
  const int64_t tokens = logits.dimensions()[0];
  const int64_t vocab = logits.dimensions()[1];
  if (!Holds(labels, tokens) || !Holds(xent_weight, tokens) ||
      !Holds(logsumexp_weight, tokens) || !Holds(*xent, tokens) ||
      !Holds(*logsumexp, tokens) || !Holds(*argmax, tokens) ||
      gradient->dimensions()[0] != tokens ||
      gradient->dimensions()[1] != vocab) {
    return ffi::Error::InvalidArgument(
        "softmax_xent: labels, weights and results must have one value for "
        "each of the " +
        std::to_string(tokens) + " rows of logits");
  }
  const cudaError_t error = LaunchSoftmaxXentRows(
      {tokens, vocab, logits.typed_data(), labels.typed_data(),
       xent_weight.typed_data(), logsumexp_weight.typed_data(), soft_cap,
       label_smoothing, z_loss_weight, xent->typed_data(),
       logsumexp->typed_data(), argmax->typed_data(), gradient->typed_data()},
      stream);
  if (error == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("softmax_xent: ") +
                              cudaGetErrorString(error));
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(SoftmaxXentRowsCudaHandler, Rows,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<Matrix>()  // logits
                                  .Arg<Ints>()    // labels
                                  .Arg<Floats>()  // xent_weight
                                  .Arg<Floats>()  // logsumexp_weight
                                  .Attr<float>("soft_cap")
                                  .Attr<float>("label_smoothing")
                                  .Attr<float>("z_loss_weight")
                                  .Ret<Floats>()   // xent
                                  .Ret<Floats>()   // logsumexp
                                  .Ret<Ints>()     // argmax
                                  .Ret<Matrix>(),  // gradient
                              // Only launches on the stream.
                              {ffi::Traits::kCmdBufferCompatible});

}  // namespace pax
