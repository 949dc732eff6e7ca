// SPDX-License-Identifier: Apache-2.0
// Reductions of logits that softmax_xent uses on CPUs and on GPUs, with NaN and
// infinity as in jnp: the argmax is the first NaN, else the first maximum; the
// logsumexp is that maximum if it is not finite.
#ifndef CSRC_KERNELS_SOFTMAX_PARTIAL_H_
#define CSRC_KERNELS_SOFTMAX_PARTIAL_H_

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define PAX_HOST_DEVICE __host__ __device__
#else
#define PAX_HOST_DEVICE
#endif

namespace pax {

// Reduction of a set of logits. The sum has no meaning unless the maximum is
// finite or -infinity, which has the sum 0.
struct SoftmaxPartial {
  float max;
  float sum;  // of exp(logit - max)
  float total;
  int32_t argmax;
};

PAX_HOST_DEVICE inline SoftmaxPartial EmptyPartial() {
  return {-INFINITY, 0.0f, 0.0f, INT32_MAX};
}

PAX_HOST_DEVICE inline bool IsFinite(float x) { return x - x == 0; }

PAX_HOST_DEVICE inline float ExpOf(float x) {
#if defined(__CUDA_ARCH__)
  return __expf(x);
#else
  return std::exp(x);
#endif
}

// Whether logit `a` of class `i` precedes logit `b` of class `j` in the argmax.
PAX_HOST_DEVICE inline bool Precedes(float a, int32_t i, float b, int32_t j) {
  const bool a_is_nan = a != a;
  const bool b_is_nan = b != b;
  if (a_is_nan != b_is_nan) return a_is_nan;
  if (!a_is_nan && a != b) return a > b;
  return i < j;
}

PAX_HOST_DEVICE inline SoftmaxPartial Join(const SoftmaxPartial& a,
                                           const SoftmaxPartial& b) {
  const bool a_first = Precedes(a.max, a.argmax, b.max, b.argmax);
  const float low = a_first ? b.max : a.max;
  const float high = a_first ? a.max : b.max;
  // Equal maxima may both be -infinity.
  const float scale = low == high ? 1.0f : ExpOf(low - high);
  const float sum = a_first ? a.sum + b.sum * scale : b.sum + a.sum * scale;
  return {high, sum, a.total + b.total, a_first ? a.argmax : b.argmax};
}

PAX_HOST_DEVICE inline SoftmaxPartial PartialOf(float logit, int32_t column) {
  return {logit, logit == -INFINITY ? 0.0f : 1.0f, logit, column};
}

// log(sum(exp(logit))) of a maximum and a sum relative to it.
template <class Sum>
PAX_HOST_DEVICE inline float LogSumExp(float max, Sum sum) {
  return IsFinite(max) ? static_cast<float>(max + std::log(sum)) : max;
}

// The derivative of c tanh(l / c) at logit = c tanh(l / c); 1 without a cap.
PAX_HOST_DEVICE inline float CapSlope(float logit, float inverse_cap) {
  if (!(inverse_cap > 0)) return 1.0f;
  const float ratio = logit * inverse_cap;
  return 1.0f - ratio * ratio;
}

}  // namespace pax

#endif  // CSRC_KERNELS_SOFTMAX_PARTIAL_H_
