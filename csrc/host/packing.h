// SPDX-License-Identifier: Apache-2.0
// Packing of documents into rows of equal length.
#ifndef PAX_CSRC_HOST_PACKING_H_
#define PAX_CSRC_HOST_PACKING_H_

#include <cstdint>
#include <vector>

namespace pax {

enum class Fit { kBestFit, kFirstFit };

// Limits of arguments, which bound the memory of Pack.
constexpr int64_t kMaxSeqLen = int64_t{1} << 24;
constexpr int64_t kMaxPieces = int64_t{1} << 36;

// Placement of the pieces of documents, sorted by row and column.
struct PackingPlan {
  // Of each piece: document, offset in it, length, and column in the row.
  std::vector<int64_t> documents;
  std::vector<int64_t> offsets;
  std::vector<int32_t> lengths;
  std::vector<int32_t> columns;
  // First piece of each row, and the number of pieces.
  std::vector<int64_t> row_starts;
};

// Cuts documents into pieces of at most `seq_len` labels, and places them.
//
// Best-fit places the pieces of a block by decreasing length, each in the row
// with the least sufficient space. First-fit places them in their order, each
// in the first row with sufficient space. A block is `block_size` documents;
// rows hold documents of one block. Lengths below 1 have no pieces.
//
// Throws std::invalid_argument if an argument is outside of its limits.
PackingPlan Pack(const int64_t* lengths, int64_t num_documents, int64_t seq_len,
                 Fit fit, int64_t block_size);

// Documents, and a plan of their rows as in PackingPlan.
template <class Token>
struct PackedCorpus {
  const Token* tokens;
  int64_t num_tokens;
  // Start of each document in `tokens`.
  const int64_t* starts;
  int64_t num_documents;
  const int64_t* documents;
  const int64_t* offsets;
  const int32_t* lengths;
  const int32_t* columns;
  int64_t num_pieces;
  const int64_t* row_starts;
  int64_t num_rows;
};

// Arrays of shape [num_rows, seq_len].
struct Batch {
  int32_t* ids;
  int32_t* labels;
  int32_t* segment_ids;
  int32_t* segment_pos;
  float* paddings;
  float* weights;
  int64_t num_rows;
  int64_t seq_len;
};

// Writes row `rows[i]` of the corpus into row `places[i]` of the batch, for
// each i below `count`: ids, the next token as label, segments from 1, and
// padding where no piece is.
//
// Throws std::out_of_range if a row, place or piece is outside of its arrays,
// or overlaps the piece before it; the batch is then written in part.
template <class Token>
void WriteRows(const PackedCorpus<Token>& corpus, const int64_t* rows,
               const int64_t* places, int64_t count, const Batch& batch);

}  // namespace pax

#endif  // PAX_CSRC_HOST_PACKING_H_
