// SPDX-License-Identifier: Apache-2.0
// CUDA kernel of softmax_xent. XLA computes the matmuls. The kernel computes
// loss and gradient of a chunk of logits in one launch.
#ifndef CSRC_KERNELS_SOFTMAX_XENT_CUDA_H_
#define CSRC_KERNELS_SOFTMAX_XENT_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace pax {

// As SoftmaxXentInputs and SoftmaxXentGradient, with logits instead of x and
// the table. All pointers are device pointers.
struct SoftmaxXentRows {
  int64_t tokens;
  int64_t vocab;
  const float* logits;            // [tokens, vocab], capped
  const int32_t* labels;          // [tokens]
  const float* xent_weight;       // [tokens]
  const float* logsumexp_weight;  // [tokens]
  float soft_cap;                 // 0: none
  float label_smoothing;
  float z_loss_weight;
  float* xent;       // [tokens]
  float* logsumexp;  // [tokens]
  int32_t* argmax;   // [tokens]
  float* gradient;   // [tokens, vocab], may be logits
};

cudaError_t LaunchSoftmaxXentRows(const SoftmaxXentRows& rows,
                                  cudaStream_t stream);

}  // namespace pax

#endif  // CSRC_KERNELS_SOFTMAX_XENT_CUDA_H_
