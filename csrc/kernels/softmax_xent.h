// SPDX-License-Identifier: Apache-2.0
// Softmax cross entropy over a vocabulary, fused with the matmul of the logits.
//
//   logits[n, v]  = cap(sum_d x[n, d] table[d, v] + bias[v])
//   logsumexp[n]  = log sum_v exp(logits[n, v])
//   xent[n]       = logsumexp[n] - sum_v q[n, v] logits[n, v]
//
// where cap(l) = c tanh(l / c) and q is 1 - smoothing at the label and
// smoothing / (vocab - 1) elsewhere. A negative label is ignored (xent 0, no
// gradient); a label past the vocabulary yields NaN. NaN and infinity give the
// results of jnp (softmax_partial.h). Without tokens the gradients are 0.
//
// Tokens are processed in chunks. The forward pass stores no logits. The
// gradient stores those of one chunk and multiplies them by x, each strip while
// it is in cache, and by the table. Threads share no sum: results do not depend
// on their number.
#ifndef CSRC_KERNELS_SOFTMAX_XENT_H_
#define CSRC_KERNELS_SOFTMAX_XENT_H_

#include <cstdint>

#include "csrc/kernels/parallel.h"
#include "csrc/kernels/tiles.h"

namespace pax {

struct SoftmaxXentInputs {
  Dtype dtype;  // of x and of the table
  int64_t tokens;
  int64_t dims;
  int64_t vocab;
  const void* x;      // [tokens, dims]
  const void* table;  // [dims, vocab], or [vocab, dims] when transposed
  bool transposed;
  const float* bias;      // [vocab], null: none
  const int32_t* labels;  // [tokens]
  float soft_cap;         // 0: none
  float label_smoothing;
  int64_t chunk;  // tokens per chunk, a multiple of 32
};

struct SoftmaxXentOutputs {
  float* xent;       // [tokens]
  float* logsumexp;  // [tokens]
  int32_t* argmax;   // [tokens]
};

// The gradient of sum_n xent_weight[n] (xent[n] + z logsumexp[n]^2)
// + logsumexp_weight[n] logsumexp[n].
struct SoftmaxXentGradient {
  const float* xent_weight;       // [tokens]
  const float* logsumexp_weight;  // [tokens], null: 0
  // [tokens]: the logsumexp over all classes, of which the table has a part;
  // null: over those of the table. Only the gradients use it.
  const float* normalizer;
  float z_loss_weight;
  void* dx;      // [tokens, dims], dtype
  void* dtable;  // as table, dtype
  float* dbias;  // [vocab]; null: not computed
  // Scratch, sized by SoftmaxXentWorkspace.
  float* logits;
  float* dtable_sums;
};

// Returns what is wrong with the sizes, or null. The other functions need valid
// sizes.
const char* SoftmaxXentError(const SoftmaxXentInputs& in);

// Sizes of the scratch buffers of the gradient, in floats.
struct SoftmaxXentWorkspace {
  int64_t logits;
  int64_t dtable_sums;
};

SoftmaxXentWorkspace SoftmaxXentWorkspaceFor(const SoftmaxXentInputs& in);

void SoftmaxXent(const SoftmaxXentInputs& in, const SoftmaxXentOutputs& out,
                 const Parallel& parallel);

void SoftmaxXentWithGradient(const SoftmaxXentInputs& in,
                             const SoftmaxXentOutputs& out,
                             const SoftmaxXentGradient& grad,
                             const Parallel& parallel);

}  // namespace pax

#endif  // CSRC_KERNELS_SOFTMAX_XENT_H_
