// SPDX-License-Identifier: Apache-2.0
// The inner loops of the kernels, compiled once per instruction set.
//
// Matrices are split into panels of 32 columns. The operands of the matmul
// C[M, N] = A[M, K] B[K, N] have two packed layouts:
//
//   A: [K / 32][M][32]            rows of 32 consecutive k
//   B: [N / 32][K / u][32][u]     u = 1 (float32) or 2 (bfloat16) consecutive k
//
// so a float32 matrix in layout [V / 32][C][32] is both an A with K = V and a B
// with K = C: the logits are replaced by their gradient in place, which is the
// operand of both matmuls without further packing.
#ifndef CSRC_KERNELS_TILES_H_
#define CSRC_KERNELS_TILES_H_

#include <cstdint>

namespace pax {

inline constexpr int64_t kBlock = 32;
inline constexpr int64_t kPanels = 4;
inline constexpr int64_t kStrip = kBlock * kPanels;
// Padding rows between blocks: power-of-two strides would map the same row of
// every block to one cache set.
inline constexpr int64_t kSkew = 8;

enum class Dtype { kFloat32, kBfloat16 };

struct Bfloat16 {
  uint16_t bits;
};

// The columns [begin, begin + kStrip) of the table in both packed layouts,
// zero-padded past the vocabulary and past `dims`. Packs `padded_dims` dims, a
// multiple of kBlock, from `first_dim`.
struct PackTableArgs {
  const void* table;  // [dims, vocab], or [vocab, dims] when transposed
  bool transposed;
  int64_t dims;
  int64_t vocab;
  int64_t first_dim;
  int64_t padded_dims;
  int64_t begin;
  void* over_dims;   // B with K = dims, N = kStrip; null: not packed
  void* over_vocab;  // B with K = kStrip, N = dims; null: not packed
};

// Rows [begin, begin + kBlock) of the chunk of activations in both layouts.
struct PackInputArgs {
  const void* x;  // [rows, dims]
  int64_t row;    // elements of x from one row to the next
  int64_t rows;
  int64_t dims;
  int64_t padded_dims;
  int64_t begin;
  void* over_dims;         // A with M = rows, K = dims; null: not packed
  int64_t over_dims_rows;  // rows from one of its blocks to the next
  void* over_rows;         // A with M = dims, K = rows; null: not packed
  int64_t over_rows_rows;
};

struct MatmulArgs {
  const void* a;
  int64_t a_block_bytes;  // from one block of 32 k to the next
  int64_t rows;           // M, a multiple of 8
  int64_t blocks;         // K / 32
  const void* b;
  int64_t b_panel_bytes;  // from one panel of 32 columns to the next
  int64_t panels;         // N / 32
  float* out;             // element (m, n) at m * row + n / 32 * panel + n % 32
  int64_t out_row;
  int64_t out_panel;
  bool accumulate;  // add to out instead of overwriting it
};

// Copies a strip of sums [kPanels][padded_dims][32] to the table's gradient.
struct StoreTableArgs {
  const float* sums;
  void* table;  // [dims, vocab], or [vocab, dims] when transposed
  int64_t row;  // elements of the table from one row to the next
  bool transposed;
  bool add;  // to the previous value (float32 only)
  int64_t dims;
  int64_t vocab;
  int64_t padded_dims;
  int64_t begin;  // class of the strip's first column
};

// One strip of logits: element (r, v) at v / 32 * panel + r * 32 + v % 32.
struct StripArgs {
  float* logits;
  int64_t panel;
  int64_t rows;
  int64_t begin;   // class of the strip's first column
  int64_t width;   // columns inside the vocabulary, at most kStrip
  float soft_cap;  // 0: none
};

// Applies bias and soft cap in place, and reduces each row of the strip.
struct StatsArgs {
  StripArgs strip;
  const float* bias;      // [kStrip], null: none
  const int32_t* labels;  // [rows]
  float* max;             // [rows]
  float* sum;             // [rows], of exp(logit - max)
  float* total;           // [rows], of the logits
  int32_t* argmax;        // [rows], the first one
  float* label_logit;     // [rows], written if the strip has the label
};

// Replaces logits l by their gradient,
//   (probability * exp(l - logsumexp) - offset - label * [v == label]) * cap'.
struct GradientArgs {
  StripArgs strip;
  int64_t height;            // rows that are not padding; of others it is 0
  const int32_t* labels;     // [rows]
  const float* logsumexp;    // [rows]
  const float* probability;  // [rows]
  const float* offset;       // [rows]
  const float* label;        // [rows]
  float* column_sums;        // [kStrip]
  void* scratch;             // rows * 64 bytes
};

// Query i sees key j if i - before <= j <= i + after, and if both are of one
// segment.
struct AttentionMask {
  const int32_t* segment_ids;  // [length], padded to whole blocks
  int64_t length;
  int64_t before;  // keys before the query's own position, at most length
  int64_t after;   // keys after it, at most length
};

// Logits of queries and keys: element (r, j) at (j / 32 * rows + r) * 32 + j %
// 32.
struct AttentionBlock {
  float* logits;
  int64_t rows;         // queries
  int64_t panels;       // keys / 32, at most 64
  int64_t first_query;  // position of the first row
  int64_t first_key;    // position of the first column
  uint64_t masked;      // bit p: panel p has keys that a query does not see
  AttentionMask mask;
  float soft_cap;  // 0: none
};

// Replaces logits by exp(logit - max), where max is that of this block and the
// blocks before, of which the results are scaled.
struct AttentionSoftmaxArgs {
  AttentionBlock block;
  float* max;       // [rows]
  float* sum;       // [rows]
  float* out;       // [panels][rows][32]; null in the first block
  int64_t columns;  // panels of out
};

// Replaces logits by probabilities exp(logit - logsumexp), and the gradients of
// the probabilities by those of the logits,
//   probability * (gradient - delta) * cap'.
struct AttentionGradientArgs {
  AttentionBlock block;
  float* gradients;        // as the logits
  const float* logsumexp;  // [rows]
  const float* delta;      // [rows]
};

inline constexpr int64_t kIntegerRows = 32;
inline constexpr int64_t kIntegerColumns = 256;

// How a weight is stored. Elements have rows below one another, the first in
// the lowest bits.
enum class IntegerFormat { kInt8, kInt4InInt8, kInt4InInt32 };

constexpr int64_t RowsPerElement(IntegerFormat format) {
  return format == IntegerFormat::kInt8         ? 1
         : format == IntegerFormat::kInt4InInt8 ? 2
                                                : 8;
}

// The columns [begin, begin + kIntegerColumns) of out = x w, with sums in
// float32.
struct IntegerMatmulArgs {
  IntegerFormat format;
  bool transposed;
  const void* x;  // [rows, depth]
  // [depth / RowsPerElement(format), columns], or when transposed
  // [columns / RowsPerElement(format), depth]
  const void* w;
  void* out;     // [rows, columns], as x
  int64_t rows;  // at most kIntegerRows
  int64_t depth;
  int64_t columns;
  int64_t begin;
};

// The moments and steps of Adam (adam.h) of consecutive elements.
struct AdamArgs {
  int64_t size;
  float beta1;
  float beta2;
  float epsilon;
  float epsilon_root;
  bool inf_to_nan;
  const float* gradient;
  const float* m;
  const float* v;
  float* step;
  float* m_out;
  float* v_out;
};

// The functions of one instruction set for one input type.
struct TileOps {
  const char* name;
  Dtype packed;  // type of packed operands
  void (*pack_table)(const PackTableArgs&);
  void (*pack_input)(const PackInputArgs&);
  void (*matmul)(const MatmulArgs&);
  void (*store_table)(const StoreTableArgs&);
  void (*stats)(const StatsArgs&);
  // Writes, per panel of the strip, the gradient as A and B operand: one
  // float32 block for both; for bfloat16 A in its first half, B in its second.
  void (*gradient)(const GradientArgs&);
  void (*attention_softmax)(const AttentionSoftmaxArgs&);
  void (*attention_gradient)(const AttentionGradientArgs&);
  void (*integer_matmul)(const IntegerMatmulArgs&);
  void (*adam)(const AdamArgs&);
};

// The fastest instruction set of this processor. The environment variable
// PAX_KERNEL_ISA (portable, avx2, avx512, avx512_bf16) selects a lower one;
// unsupported names are ignored.
const TileOps& SelectTileOps(Dtype input);

// The same, with packed operands of float32.
const TileOps& SelectFloatTileOps(Dtype input);

const TileOps& PortableTileOps(Dtype input);
#if defined(__x86_64__)
const TileOps& Avx2TileOps(Dtype input);
const TileOps& Avx512TileOps(Dtype input);
const TileOps& Avx512Bf16TileOps();
#endif

}  // namespace pax

#endif  // CSRC_KERNELS_TILES_H_
