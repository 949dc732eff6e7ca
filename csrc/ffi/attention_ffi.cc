// SPDX-License-Identifier: Apache-2.0
#include "csrc/ffi/attention_ffi.h"

#include <cstdint>
#include <exception>
#include <initializer_list>
#include <string>
#include <utility>

#include "csrc/ffi/checks.h"
#include "csrc/ffi/thread_pool.h"
#include "csrc/kernels/attention.h"

namespace pax {
namespace {

namespace ffi = ::xla::ffi;

using Array = ffi::AnyBuffer;
using Floats = ffi::Buffer<ffi::F32>;
using Ints = ffi::Buffer<ffi::S32>;
using ArrayOut = ffi::Result<Array>;
using FloatsOut = ffi::Result<Floats>;

constexpr char kKernel[] = "attention";

// Checks that an array has the shape and the dtype of another one.
ffi::Error CheckLike(const char* name, Array got, Array want) {
  if (got.element_type() == want.element_type() &&
      got.dimensions() == want.dimensions()) {
    return ffi::Error::Success();
  }
  return InvalidCall(kKernel, std::string(name) + " must be as its operand, " +
                                  Text(want.dimensions()) + ", got " +
                                  Text(got.dimensions()));
}

// The operands of both handlers.
struct Operands {
  Array query;
  Array key;
  Array value;
  Ints segment_ids;
};

ffi::Error CheckOperands(const Operands& operands) {
  const Array& query = operands.query;
  const Array& key = operands.key;
  if (query.element_type() != ffi::F32 && query.element_type() != ffi::BF16) {
    return InvalidCall(kKernel, "query must be float32 or bfloat16");
  }
  if (key.element_type() != query.element_type()) {
    return InvalidCall(kKernel, "key must have the dtype of query");
  }
  if (query.dimensions().size() != 4 || key.dimensions().size() != 4) {
    return InvalidCall(kKernel, "query and key must have 4 dimensions");
  }
  const int64_t batch = query.dimensions()[0];
  const int64_t length = query.dimensions()[1];
  for (auto error :
       {CheckShapeOf(
            kKernel, "key", key.dimensions(),
            {batch, length, key.dimensions()[2], query.dimensions()[3]}),
        CheckLike("value", operands.value, key),
        CheckShapeOf(kKernel, "segment_ids", operands.segment_ids.dimensions(),
                     {batch, length})}) {
    if (error.failure()) return error;
  }
  return ffi::Error::Success();
}

ffi::ErrorOr<AttentionInputs> ReadInputs(const Operands& operands,
                                         float soft_cap, int64_t before,
                                         int64_t after) {
  auto error = CheckOperands(operands);
  if (error.failure()) return ffi::Unexpected(std::move(error));
  const auto dims = operands.query.dimensions();
  AttentionInputs in = {};
  in.dtype = operands.query.element_type() == ffi::F32 ? Dtype::kFloat32
                                                       : Dtype::kBfloat16;
  in.batch = dims[0];
  in.length = dims[1];
  in.heads = dims[2];
  in.kv_heads = operands.key.dimensions()[2];
  in.dims = dims[3];
  in.query = operands.query.untyped_data();
  in.key = operands.key.untyped_data();
  in.value = operands.value.untyped_data();
  in.segment_ids = operands.segment_ids.typed_data();
  in.before = before;
  in.after = after;
  in.soft_cap = soft_cap;
  if (const char* text = AttentionError(in)) {
    return ffi::Unexpected(InvalidCall(
        kKernel, std::string(text) + ", got query " + Text(dims) + " and key " +
                     Text(operands.key.dimensions())));
  }
  return in;
}

ffi::Error CheckStatistics(const char* name, Floats got,
                           const AttentionInputs& in) {
  return CheckShapeOf(kKernel, name, got.dimensions(),
                      {in.batch, in.heads, in.length});
}

ffi::Error Forward(ffi::ThreadPool pool, Array query, Array key, Array value,
                   Ints segment_ids, float soft_cap, int64_t before,
                   int64_t after, ArrayOut out, FloatsOut logsumexp) {
  auto in =
      ReadInputs({query, key, value, segment_ids}, soft_cap, before, after);
  if (in.has_error()) return in.error();
  for (auto error : {CheckLike("out", *out, query),
                     CheckStatistics("logsumexp", *logsumexp, *in)}) {
    if (error.failure()) return error;
  }
  try {
    Attention(*in, {out->untyped_data(), logsumexp->typed_data()},
              OnThreadPool(pool));
  } catch (const std::exception& e) {
    return OutOfMemory(kKernel, e);
  }
  return ffi::Error::Success();
}

ffi::Error Gradient(ffi::ThreadPool pool, Array query, Array key, Array value,
                    Ints segment_ids, Array dout, Floats logsumexp,
                    Floats delta, float soft_cap, int64_t before, int64_t after,
                    ArrayOut dquery, ArrayOut dkey, ArrayOut dvalue,
                    FloatsOut sums) {
  auto in =
      ReadInputs({query, key, value, segment_ids}, soft_cap, before, after);
  if (in.has_error()) return in.error();
  for (auto error :
       {CheckLike("dout", dout, query), CheckLike("dquery", *dquery, query),
        CheckLike("dkey", *dkey, key), CheckLike("dvalue", *dvalue, value),
        CheckStatistics("logsumexp", logsumexp, *in),
        CheckStatistics("delta", delta, *in)}) {
    if (error.failure()) return error;
  }
  const int64_t need = AttentionScratch(*in);
  if (static_cast<int64_t>(sums->element_count()) < need) {
    return InvalidCall(kKernel,
                       "sums must hold " + std::to_string(need) + " floats");
  }
  try {
    AttentionGradient(
        *in,
        {dout.untyped_data(), logsumexp.typed_data(), delta.typed_data(),
         dquery->untyped_data(), dkey->untyped_data(), dvalue->untyped_data(),
         sums->typed_data()},
        OnThreadPool(pool));
  } catch (const std::exception& e) {
    return OutOfMemory(kKernel, e);
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(AttentionHandler, Forward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Array>()  // query
                                  .Arg<Array>()  // key
                                  .Arg<Array>()  // value
                                  .Arg<Ints>()   // segment_ids
                                  .Attr<float>("soft_cap")
                                  .Attr<int64_t>("before")
                                  .Attr<int64_t>("after")
                                  .Ret<Array>()     // out
                                  .Ret<Floats>());  // logsumexp

XLA_FFI_DEFINE_HANDLER_SYMBOL(AttentionGradientHandler, Gradient,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Array>()   // query
                                  .Arg<Array>()   // key
                                  .Arg<Array>()   // value
                                  .Arg<Ints>()    // segment_ids
                                  .Arg<Array>()   // dout
                                  .Arg<Floats>()  // logsumexp
                                  .Arg<Floats>()  // delta
                                  .Attr<float>("soft_cap")
                                  .Attr<int64_t>("before")
                                  .Attr<int64_t>("after")
                                  .Ret<Array>()     // dquery
                                  .Ret<Array>()     // dkey
                                  .Ret<Array>()     // dvalue
                                  .Ret<Floats>());  // sums

}  // namespace pax
