// SPDX-License-Identifier: Apache-2.0
#include "csrc/ffi/softmax_xent_ffi.h"

#include <cstdint>
#include <exception>
#include <initializer_list>
#include <string>
#include <utility>

#include "csrc/ffi/checks.h"
#include "csrc/ffi/thread_pool.h"
#include "csrc/kernels/softmax_xent.h"

namespace pax {
namespace {

namespace ffi = ::xla::ffi;

using Floats = ffi::Buffer<ffi::F32>;
using Ints = ffi::Buffer<ffi::S32>;
using FloatsOut = ffi::Result<Floats>;
using IntsOut = ffi::Result<Ints>;

struct Attributes {
  float soft_cap;
  float label_smoothing;
  bool transposed;
  int64_t chunk;
};

constexpr char kKernel[] = "softmax_xent";

ffi::Error Invalid(const std::string& message) {
  return InvalidCall(kKernel, message);
}

ffi::Error CheckShape(const char* name, ffi::AnyBuffer::Dimensions got,
                      std::initializer_list<int64_t> want) {
  return CheckShapeOf(kKernel, name, got, want);
}

ffi::ErrorOr<Dtype> DtypeOf(ffi::AnyBuffer x, ffi::AnyBuffer table) {
  if (x.element_type() == table.element_type()) {
    if (x.element_type() == ffi::F32) return Dtype::kFloat32;
    if (x.element_type() == ffi::BF16) return Dtype::kBfloat16;
  }
  return ffi::Unexpected(
      Invalid("x and the table must both be float32 or both bfloat16"));
}

ffi::ErrorOr<SoftmaxXentInputs> ReadInputs(ffi::AnyBuffer x,
                                           ffi::AnyBuffer table, Floats bias,
                                           Ints labels,
                                           const Attributes& attributes) {
  auto dtype = DtypeOf(x, table);
  if (dtype.has_error()) return ffi::Unexpected(dtype.error());
  if (x.dimensions().size() != 2 || table.dimensions().size() != 2) {
    return ffi::Unexpected(Invalid("x and the table must be matrices"));
  }
  const int64_t tokens = x.dimensions()[0];
  const int64_t dims = x.dimensions()[1];
  const int64_t vocab = table.dimensions()[attributes.transposed ? 0 : 1];
  const int64_t table_dims = table.dimensions()[attributes.transposed ? 1 : 0];
  if (table_dims != dims) {
    return ffi::Unexpected(Invalid("the table " + Text(table.dimensions()) +
                                   " does not fit x " + Text(x.dimensions())));
  }
  const bool has_bias = bias.element_count() > 0;
  for (auto error :
       {CheckShape("labels", labels.dimensions(), {tokens}),
        CheckShape("bias", bias.dimensions(), {has_bias ? vocab : 0})}) {
    if (error.failure()) return ffi::Unexpected(std::move(error));
  }
  SoftmaxXentInputs in = {};
  in.dtype = *dtype;
  in.tokens = tokens;
  in.dims = dims;
  in.vocab = vocab;
  in.x = x.untyped_data();
  in.table = table.untyped_data();
  in.transposed = attributes.transposed;
  in.bias = has_bias ? bias.typed_data() : nullptr;
  in.labels = labels.typed_data();
  in.soft_cap = attributes.soft_cap;
  in.label_smoothing = attributes.label_smoothing;
  in.chunk = attributes.chunk;
  if (const char* error = SoftmaxXentError(in)) {
    return ffi::Unexpected(Invalid(
        std::string(error) + ", got x " + Text(x.dimensions()) + ", table " +
        Text(table.dimensions()) + ", chunk " + std::to_string(in.chunk)));
  }
  return in;
}

ffi::Error CheckOutputs(int64_t tokens, Floats xent, Floats logsumexp,
                        Ints argmax) {
  for (auto error : {CheckShape("xent", xent.dimensions(), {tokens}),
                     CheckShape("logsumexp", logsumexp.dimensions(), {tokens}),
                     CheckShape("argmax", argmax.dimensions(), {tokens})}) {
    if (error.failure()) return error;
  }
  return ffi::Error::Success();
}

ffi::Error CheckScratch(const char* name, Floats buffer, int64_t want) {
  const int64_t got = static_cast<int64_t>(buffer.element_count());
  if (got >= want) return ffi::Error::Success();
  return Invalid(std::string(name) + " must hold " + std::to_string(want) +
                 " floats, got " + std::to_string(got));
}

ffi::Error Forward(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer table,
                   Floats bias, Ints labels, float soft_cap,
                   float label_smoothing, bool transposed, int64_t chunk,
                   FloatsOut xent, FloatsOut logsumexp, IntsOut argmax) {
  auto in = ReadInputs(x, table, bias, labels,
                       {soft_cap, label_smoothing, transposed, chunk});
  if (in.has_error()) return in.error();
  auto error = CheckOutputs(in->tokens, *xent, *logsumexp, *argmax);
  if (error.failure()) return error;
  try {
    SoftmaxXent(
        *in,
        {xent->typed_data(), logsumexp->typed_data(), argmax->typed_data()},
        OnThreadPool(pool));
  } catch (const std::exception& e) {
    return OutOfMemory(kKernel, e);
  }
  return ffi::Error::Success();
}

ffi::Error Gradient(ffi::ThreadPool pool, ffi::AnyBuffer x,
                    ffi::AnyBuffer table, Floats bias, Ints labels,
                    Floats xent_weight, Floats logsumexp_weight,
                    Floats normalizer, float soft_cap, float label_smoothing,
                    bool transposed, int64_t chunk, float z_loss_weight,
                    FloatsOut xent, FloatsOut logsumexp, IntsOut argmax,
                    ffi::Result<ffi::AnyBuffer> dx,
                    ffi::Result<ffi::AnyBuffer> dtable, FloatsOut dbias,
                    FloatsOut logits, FloatsOut dtable_sums) {
  auto in = ReadInputs(x, table, bias, labels,
                       {soft_cap, label_smoothing, transposed, chunk});
  if (in.has_error()) return in.error();
  const SoftmaxXentWorkspace need = SoftmaxXentWorkspaceFor(*in);
  const auto weights = {in->tokens};
  const bool has_normalizer = normalizer.element_count() > 0;
  for (auto error :
       {CheckOutputs(in->tokens, *xent, *logsumexp, *argmax),
        CheckShape("xent_weight", xent_weight.dimensions(), weights),
        CheckShape("logsumexp_weight", logsumexp_weight.dimensions(), weights),
        CheckShape("normalizer", normalizer.dimensions(),
                   {has_normalizer ? in->tokens : 0}),
        CheckShape("dx", dx->dimensions(), {in->tokens, in->dims}),
        CheckShape("dtable", dtable->dimensions(),
                   {table.dimensions()[0], table.dimensions()[1]}),
        CheckShape("dbias", dbias->dimensions(), {bias.dimensions()[0]}),
        CheckScratch("logits", *logits, need.logits),
        CheckScratch("dtable_sums", *dtable_sums, need.dtable_sums)}) {
    if (error.failure()) return error;
  }
  if (dx->element_type() != x.element_type() ||
      dtable->element_type() != x.element_type()) {
    return Invalid("dx and dtable must have the dtype of x");
  }
  try {
    SoftmaxXentWithGradient(
        *in,
        {xent->typed_data(), logsumexp->typed_data(), argmax->typed_data()},
        {xent_weight.typed_data(), logsumexp_weight.typed_data(),
         has_normalizer ? normalizer.typed_data() : nullptr, z_loss_weight,
         dx->untyped_data(), dtable->untyped_data(),
         in->bias ? dbias->typed_data() : nullptr, logits->typed_data(),
         dtable_sums->typed_data()},
        OnThreadPool(pool));
  } catch (const std::exception& e) {
    return OutOfMemory(kKernel, e);
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(SoftmaxXentHandler, Forward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()  // x
                                  .Arg<ffi::AnyBuffer>()  // table
                                  .Arg<Floats>()          // bias
                                  .Arg<Ints>()            // labels
                                  .Attr<float>("soft_cap")
                                  .Attr<float>("label_smoothing")
                                  .Attr<bool>("transposed")
                                  .Attr<int64_t>("chunk")
                                  .Ret<Floats>()  // xent
                                  .Ret<Floats>()  // logsumexp
                                  .Ret<Ints>());  // argmax

XLA_FFI_DEFINE_HANDLER_SYMBOL(SoftmaxXentGradientHandler, Gradient,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()  // x
                                  .Arg<ffi::AnyBuffer>()  // table
                                  .Arg<Floats>()          // bias
                                  .Arg<Ints>()            // labels
                                  .Arg<Floats>()          // xent_weight
                                  .Arg<Floats>()          // logsumexp_weight
                                  .Arg<Floats>()          // normalizer
                                  .Attr<float>("soft_cap")
                                  .Attr<float>("label_smoothing")
                                  .Attr<bool>("transposed")
                                  .Attr<int64_t>("chunk")
                                  .Attr<float>("z_loss_weight")
                                  .Ret<Floats>()          // xent
                                  .Ret<Floats>()          // logsumexp
                                  .Ret<Ints>()            // argmax
                                  .Ret<ffi::AnyBuffer>()  // dx
                                  .Ret<ffi::AnyBuffer>()  // dtable
                                  .Ret<Floats>()          // dbias
                                  .Ret<Floats>()          // logits
                                  .Ret<Floats>());        // dtable_sums

}  // namespace pax
