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
constexpr int kFloatsPerLoad = 4;  // 16 bytes, the widest load

// Consecutive floats that one instruction loads or stores.
template <int kWidth>
struct alignas(kWidth * sizeof(float)) Floats {
  float values[kWidth];
};

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
// cache if it fits, for the gradient. Rows are multiples of kWidth floats.
template <int kWidth>
__global__ void __launch_bounds__(kThreads) RowsKernel(SoftmaxXentRows rows) {
  const int64_t row = blockIdx.x;
  const float* row_logits = rows.logits + row * rows.vocab;
  const auto* logits = reinterpret_cast<const Floats<kWidth>*>(row_logits);
  const int64_t loads = rows.vocab / kWidth;
  SoftmaxPartial p = EmptyPartial();
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < loads; i += kThreads) {
    const Floats<kWidth> loaded = logits[i];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      p = Join(
          p, PartialOf(loaded.values[j], static_cast<int32_t>(i * kWidth + j)));
    }
  }
  p = JoinBlock(p);
  const float logsumexp = LogSumExp(p.max, p.sum);
  const int32_t label = rows.labels[row];
  const bool ignored = label < 0;
  const float on = 1.0f - rows.label_smoothing;
  const int64_t others = rows.vocab > 1 ? rows.vocab - 1 : 1;
  const float off = rows.label_smoothing / static_cast<float>(others);
  const bool known = !ignored && label < rows.vocab;
  const float picked = known ? row_logits[label] : NAN;
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
  auto* gradient =
      reinterpret_cast<Floats<kWidth>*>(rows.gradient + row * rows.vocab);
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < loads; i += kThreads) {
    Floats<kWidth> loaded = logits[i];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float logit = loaded.values[j];
      const float target = i * kWidth + j == label ? on : off;
      loaded.values[j] =
          (probability * ExpOf(logit - logsumexp) - weight * target) *
          CapSlope(logit, scale);
    }
    gradient[i] = loaded;
  }
}

// Whether every row begins where kFloatsPerLoad floats may be loaded at once.
bool IsAligned(const SoftmaxXentRows& rows) {
  constexpr uintptr_t kBytes = kFloatsPerLoad * sizeof(float);
  return rows.vocab % kFloatsPerLoad == 0 &&
         reinterpret_cast<uintptr_t>(rows.logits) % kBytes == 0 &&
         reinterpret_cast<uintptr_t>(rows.gradient) % kBytes == 0;
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
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(rows.tokens));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return IsAligned(rows)
             ? cudaLaunchKernelEx(&config, RowsKernel<kFloatsPerLoad>, rows)
             : cudaLaunchKernelEx(&config, RowsKernel<1>, rows);
}

}  // namespace pax
