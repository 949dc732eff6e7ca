// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "csrc/kernels/softmax_xent_cuda.h"

namespace pax {
namespace {

constexpr int kThreads = 512;
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
constexpr unsigned kAll = 0xffffffffu;

// Reduction of a set of logits; sum is that of exp(logit - max).
struct Partial {
  float max;
  float sum;
  float total;
  int32_t argmax;
};

__device__ Partial Empty() { return {-INFINITY, 0.0f, 0.0f, INT32_MAX}; }

__device__ void Add(float logit, int32_t column, Partial& p) {
  if (logit > p.max) {
    p.sum = p.sum * __expf(p.max - logit) + 1.0f;
    p.max = logit;
    p.argmax = column;
  } else if (logit != -INFINITY) {
    p.sum += __expf(logit - p.max);
  }
  p.total += logit;
}

__device__ Partial Join(const Partial& a, const Partial& b) {
  const bool first = a.max > b.max || (a.max == b.max && a.argmax < b.argmax);
  const Partial& high = first ? a : b;
  const Partial& low = first ? b : a;
  const float scale = low.max == -INFINITY ? 0.0f : __expf(low.max - high.max);
  return {high.max, high.sum + low.sum * scale, a.total + b.total, high.argmax};
}

__device__ Partial JoinWarp(Partial p) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    p = Join(p, {__shfl_xor_sync(kAll, p.max, offset),
                 __shfl_xor_sync(kAll, p.sum, offset),
                 __shfl_xor_sync(kAll, p.total, offset),
                 __shfl_xor_sync(kAll, p.argmax, offset)});
  }
  return p;
}

// Reduces over the thread block; every thread gets the result.
__device__ Partial JoinBlock(Partial p) {
  __shared__ Partial warps[kWarps];
  p = JoinWarp(p);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = p;
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  return JoinWarp(lane < kWarps ? warps[lane] : Empty());
}

// One thread block per row: reads the row once for the sums, and once, from the
// cache if it fits, for the gradient.
__global__ void __launch_bounds__(kThreads) RowsKernel(SoftmaxXentRows rows) {
  const int64_t row = blockIdx.x;
  const float* logits = rows.logits + row * rows.vocab;
  Partial p = Empty();
  for (int64_t v = threadIdx.x; v < rows.vocab; v += kThreads) {
    Add(logits[v], static_cast<int32_t>(v), p);
  }
  p = JoinBlock(p);
  const float logsumexp = p.max + logf(p.sum);
  const int32_t label = rows.labels[row];
  const bool ignored = label < 0;
  const float on = 1.0f - rows.label_smoothing;
  const float off = rows.label_smoothing /
                    static_cast<float>(max(rows.vocab - 1, int64_t{1}));
  const bool known = !ignored && label < rows.vocab;
  const float picked = known ? logits[label] : NAN;
  const float weight = ignored ? 0.0f : rows.xent_weight[row];
  const float probability =
      weight * (1.0f + 2.0f * rows.z_loss_weight * logsumexp) +
      rows.logsumexp_weight[row];
  // The label's logit is read before any thread may overwrite it in place.
  __syncthreads();
  if (threadIdx.x == 0) {
    const float smoothed = off > 0 ? off * (p.total - picked) : 0.0f;
    rows.xent[row] = ignored ? 0.0f : logsumexp - on * picked - smoothed;
    rows.logsumexp[row] = logsumexp;
    rows.argmax[row] = p.argmax;
  }
  const float scale = rows.soft_cap > 0 ? 1.0f / rows.soft_cap : 0.0f;
  float* gradient = rows.gradient + row * rows.vocab;
  for (int64_t v = threadIdx.x; v < rows.vocab; v += kThreads) {
    const float logit = logits[v];
    const float target = v == label ? on : off;
    const float ratio = logit * scale;
    gradient[v] = (probability * __expf(logit - logsumexp) - weight * target) *
                  (1.0f - ratio * ratio);
  }
}

}  // namespace

cudaError_t LaunchSoftmaxXentRows(const SoftmaxXentRows& rows,
                                  cudaStream_t stream) {
  if (rows.tokens == 0) return cudaSuccess;
  RowsKernel<<<static_cast<unsigned>(rows.tokens), kThreads, 0, stream>>>(rows);
  return cudaGetLastError();
}

}  // namespace pax
