// SPDX-License-Identifier: Apache-2.0
// Softmax attention of a sequence to itself, in blocks of queries and keys.
//
//   logits[i, j]  = cap(sum_h query[i, h] key[j, h])       of visible keys j
//   logsumexp[i]  = log sum_j exp(logits[i, j])
//   out[i, h]     = sum_j exp(logits[i, j] - logsumexp[i]) value[j, h]
//
// where cap(l) = c tanh(l / c). A query sees the keys of its segment and
// window, its own among them. Products and softmax are float32. The memory does
// not contain the logits of more than one block per thread: it is linear in the
// length, also in the gradient, which computes the logits again. Blocks without
// a visible key are skipped. Threads share no sum: results do not depend on
// their number.
//
// Reference: FlashAttention-2, arXiv:2307.08691.
#ifndef CSRC_KERNELS_ATTENTION_H_
#define CSRC_KERNELS_ATTENTION_H_

#include <cstdint>

#include "csrc/kernels/parallel.h"
#include "csrc/kernels/tiles.h"

namespace pax {

struct AttentionInputs {
  Dtype dtype;  // of queries, keys and values
  int64_t batch;
  int64_t length;
  int64_t heads;
  int64_t kv_heads;  // divides heads; head n of queries has keys n / group
  int64_t dims;
  const void* query;           // [batch, length, heads, dims], scaled
  const void* key;             // [batch, length, kv_heads, dims]
  const void* value;           // as key
  const int32_t* segment_ids;  // [batch, length]
  int64_t before;  // visible keys before the query's own position; < 0: all
  int64_t after;   // the same after it
  float soft_cap;  // 0: none
};

struct AttentionOutputs {
  void* out;         // as query
  float* logsumexp;  // [batch, heads, length]
};

struct AttentionGradients {
  const void* dout;        // as query
  const float* logsumexp;  // [batch, heads, length]
  const float* delta;      // [batch, heads, length], of sum_h dout out
  void* dquery;
  void* dkey;
  void* dvalue;
  float* sums;  // AttentionScratch floats
};

// Returns what is wrong with the sizes, or null. The other functions need valid
// sizes.
const char* AttentionError(const AttentionInputs& in);

// Size of the scratch buffer of the gradient, in floats.
int64_t AttentionScratch(const AttentionInputs& in);

void Attention(const AttentionInputs& in, const AttentionOutputs& out,
               const Parallel& parallel);

void AttentionGradient(const AttentionInputs& in,
                       const AttentionGradients& grad,
                       const Parallel& parallel);

}  // namespace pax

#endif  // CSRC_KERNELS_ATTENTION_H_
