// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <limits>

#include "csrc/kernels/softmax_partial.h"
#include "csrc/kernels/softmax_xent_cuda.h"

namespace pax {
namespace {

constexpr int kThreads = 512;
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
constexpr unsigned kAll = 0xffffffffu;

__device__ SoftmaxPartial JoinWarp(SoftmaxPartial p) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    p = Join(p, {__shfl_xor_sync(kAll, p.max, offset),
                 __shfl_xor_sync(kAll, p.sum, offset),
                 __shfl_xor_sync(kAll, p.total, offset),
                 __shfl_xor_sync(kAll, p.argmax, offset)});
  }
  return p;
}

// Reduces over the thread block; every thread gets the result.
__device__ SoftmaxPartial JoinBlock(SoftmaxPartial p) {
  __shared__ SoftmaxPartial warps[kWarps];
  p = JoinWarp(p);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = p;
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  return JoinWarp(lane < kWarps ? warps[lane] : EmptyPartial());
}

// One thread block per row: reads the row once for the sums, and once, from the
// cache if it fits, for the gradient.
__global__ void __launch_bounds__(kThreads) RowsKernel(SoftmaxXentRows rows) {
  const int64_t row = blockIdx.x;
  const float* logits = rows.logits + row * rows.vocab;
  SoftmaxPartial p = EmptyPartial();
  for (int64_t v = threadIdx.x; v < rows.vocab; v += kThreads) {
    p = Join(p, PartialOf(logits[v], static_cast<int32_t>(v)));
  }
  p = JoinBlock(p);
  const float logsumexp = LogSumExp(p.max, p.sum);
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
    gradient[v] = (probability * __expf(logit - logsumexp) - weight * target) *
                  CapSlope(logit, scale);
  }
}

}  // namespace

cudaError_t LaunchSoftmaxXentRows(const SoftmaxXentRows& rows,
                                  cudaStream_t stream) {
  if (rows.tokens == 0) return cudaSuccess;
  // Classes are int32 and blocks of a grid too.
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (rows.tokens < 0 || rows.tokens > kMost || rows.vocab < 1 ||
      rows.vocab > kMost) {
    return cudaErrorInvalidValue;
  }
  RowsKernel<<<static_cast<unsigned>(rows.tokens), kThreads, 0, stream>>>(rows);
  return cudaGetLastError();
}

}  // namespace pax
