// SPDX-License-Identifier: Apache-2.0
#include "csrc/host/packing.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>

namespace pax {
namespace {

// The pieces of a block of documents, and the rows of the block.
struct Block {
  std::vector<int64_t> documents;
  std::vector<int64_t> offsets;
  std::vector<int32_t> sizes;
  std::vector<int64_t> rows;
  std::vector<int32_t> columns;
  // The pieces in the order of their placement: in a row by column.
  std::vector<int64_t> order;
  int64_t num_rows = 0;

  void Clear() {
    documents.clear();
    offsets.clear();
    sizes.clear();
    order.clear();
    num_rows = 0;
  }
};

// A set of integers below a limit with a fast search for the next element: a
// tree of bitmaps, where a bit marks a word of the level below as not empty.
class IntegerSet {
 public:
  explicit IntegerSet(int64_t limit) {
    do {
      limit = (limit + 63) / 64;
      levels_.emplace_back(limit, 0);
    } while (limit > 1);
  }

  void Insert(int64_t value) {
    for (auto& words : levels_) {
      words[value / 64] |= uint64_t{1} << value % 64;
      value /= 64;
    }
  }

  void Erase(int64_t value) {
    for (auto& words : levels_) {
      words[value / 64] &= ~(uint64_t{1} << value % 64);
      if (words[value / 64] != 0) return;
      value /= 64;
    }
  }

  // The least element that is not below `value`, or -1.
  int64_t Next(int64_t value) const {
    for (size_t level = 0; level < levels_.size(); ++level) {
      const auto& words = levels_[level];
      if (value / 64 >= static_cast<int64_t>(words.size())) return -1;
      const uint64_t rest = words[value / 64] >> value % 64;
      if (rest != 0) {
        value += __builtin_ctzll(rest);
        while (level-- > 0) {
          value = value * 64 + __builtin_ctzll(levels_[level][value]);
        }
        return value;
      }
      value = value / 64 + 1;
    }
    return -1;
  }

 private:
  std::vector<std::vector<uint64_t>> levels_;
};

// The rows with free positions, by their number.
class Gaps {
 public:
  explicit Gaps(int64_t seq_len) : sizes_(seq_len), slots_(seq_len, -1) {}

  void Clear() {
    for (int64_t free : used_) {
      if (!heaps_[slots_[free]].empty()) sizes_.Erase(free);
      slots_[free] = -1;
    }
    used_.clear();
    heaps_.clear();
  }

  void Add(int64_t free, int64_t row) {
    if (slots_[free] < 0) {
      slots_[free] = static_cast<int32_t>(heaps_.size());
      heaps_.emplace_back();
      used_.push_back(free);
    }
    auto& heap = heaps_[slots_[free]];
    if (heap.empty()) sizes_.Insert(free);
    heap.push_back(row);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  }

  // Takes the first of the rows with the least sufficient space. Returns its
  // free positions, or -1 if no row has `size`.
  int64_t Take(int64_t size, int64_t* row) {
    const int64_t free = sizes_.Next(size);
    if (free < 0) return -1;
    auto& heap = heaps_[slots_[free]];
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    *row = heap.back();
    heap.pop_back();
    if (heap.empty()) sizes_.Erase(free);
    return free;
  }

 private:
  IntegerSet sizes_;
  // The heap of each number of free positions, or -1; and those with a heap.
  std::vector<int32_t> slots_;
  std::vector<int64_t> used_;
  std::vector<std::vector<int64_t>> heaps_;
};

void CheckArguments(const int64_t* lengths, int64_t num_documents,
                    int64_t seq_len, int64_t block_size) {
  if (seq_len < 1 || seq_len > kMaxSeqLen) {
    throw std::invalid_argument("seq_len must be within 1 and " +
                                std::to_string(kMaxSeqLen) + ", got " +
                                std::to_string(seq_len));
  }
  if (block_size < 1) {
    throw std::invalid_argument("block_size must be at least 1, got " +
                                std::to_string(block_size));
  }
  int64_t pieces = 0;
  for (int64_t i = 0; i < num_documents; ++i) {
    if (lengths[i] < 1) continue;
    const int64_t count = (lengths[i] - 1) / seq_len + 1;
    pieces = std::min(count, kMaxPieces + 1) + pieces;
    if (pieces > kMaxPieces) {
      throw std::invalid_argument(
          "the documents must have at most " + std::to_string(kMaxPieces) +
          " pieces of seq_len, but document " + std::to_string(i) + " has " +
          std::to_string(lengths[i]) + " labels");
    }
  }
}

void Cut(const int64_t* lengths, int64_t first, int64_t end, int64_t seq_len,
         Block* block) {
  block->Clear();
  int64_t count = 0;
  for (int64_t document = first; document < end; ++document) {
    if (lengths[document] > 0) count += (lengths[document] - 1) / seq_len + 1;
  }
  block->documents.reserve(count);
  block->offsets.reserve(count);
  block->sizes.reserve(count);
  block->order.reserve(count);
  for (int64_t document = first; document < end; ++document) {
    const int64_t length = lengths[document];
    for (int64_t offset = 0; offset < length; offset += seq_len) {
      block->documents.push_back(document);
      block->offsets.push_back(offset);
      block->sizes.push_back(
          static_cast<int32_t>(std::min(seq_len, length - offset)));
    }
  }
  block->rows.resize(block->sizes.size());
  block->columns.resize(block->sizes.size());
}

// Indices of the pieces shorter than a row, by decreasing length, stable.
std::vector<int64_t> ByDecreasingSize(const std::vector<int32_t>& sizes,
                                      int64_t seq_len) {
  const auto count = static_cast<int64_t>(sizes.size());
  std::vector<int64_t> order;
  if (seq_len > 8 * count + 1024) {
    for (int64_t i = 0; i < count; ++i) {
      if (sizes[i] != seq_len) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return sizes[a] > sizes[b]; });
    return order;
  }
  std::vector<int64_t> ends(seq_len + 1, 0);
  for (int32_t size : sizes) ++ends[size];
  const int64_t num_full = ends[seq_len];
  ends[seq_len] = 0;
  // Becomes the number of longer pieces, where those of a size begin.
  int64_t longer = 0;
  for (int64_t size = seq_len - 1; size >= 0; --size) {
    const int64_t count_of_size = ends[size];
    ends[size] = longer;
    longer += count_of_size;
  }
  order.resize(count - num_full);
  for (int64_t i = 0; i < count; ++i) {
    if (sizes[i] != seq_len) order[ends[sizes[i]]++] = i;
  }
  return order;
}

void BestFit(int64_t seq_len, Gaps* gaps, Block* block) {
  for (size_t i = 0; i < block->sizes.size(); ++i) {
    if (block->sizes[i] != seq_len) continue;
    block->rows[i] = block->num_rows++;
    block->columns[i] = 0;
    block->order.push_back(static_cast<int64_t>(i));
  }
  gaps->Clear();
  for (int64_t piece : ByDecreasingSize(block->sizes, seq_len)) {
    const int32_t size = block->sizes[piece];
    int64_t row = 0;
    int64_t free = gaps->Take(size, &row);
    if (free < 0) {
      free = seq_len;
      row = block->num_rows++;
    }
    block->rows[piece] = row;
    block->columns[piece] = static_cast<int32_t>(seq_len - free);
    block->order.push_back(piece);
    if (free > size) gaps->Add(free - size, row);
  }
}

void FirstFit(int64_t seq_len, Block* block) {
  const auto count = static_cast<int64_t>(block->sizes.size());
  int64_t leaves = 1;
  while (leaves < count) leaves *= 2;
  // A tree of the most free positions of a row; rows are leaves.
  std::vector<int32_t> most(2 * leaves, static_cast<int32_t>(seq_len));
  for (int64_t piece = 0; piece < count; ++piece) {
    const int32_t size = block->sizes[piece];
    int64_t node = 1;
    while (node < leaves) {
      node *= 2;
      if (most[node] < size) ++node;
    }
    const int64_t row = node - leaves;
    block->rows[piece] = row;
    block->columns[piece] = static_cast<int32_t>(seq_len) - most[node];
    block->num_rows = std::max(block->num_rows, row + 1);
    block->order.push_back(piece);
    most[node] -= size;
    for (node /= 2; node > 0; node /= 2) {
      most[node] = std::max(most[2 * node], most[2 * node + 1]);
    }
  }
}

// Appends the pieces of a block, sorted by row and column, to a plan.
void Append(const Block& block, PackingPlan* plan) {
  const auto base = static_cast<int64_t>(plan->documents.size());
  // The place of the next piece of each row.
  std::vector<int64_t> ends(block.num_rows + 1, base);
  for (int64_t row : block.rows) ++ends[row + 1];
  for (int64_t row = 0; row < block.num_rows; ++row) {
    ends[row + 1] += ends[row] - base;
  }
  plan->row_starts.insert(plan->row_starts.end(), ends.begin(), ends.end() - 1);
  const size_t size = base + block.order.size();
  plan->documents.resize(size);
  plan->offsets.resize(size);
  plan->lengths.resize(size);
  plan->columns.resize(size);
  for (int64_t piece : block.order) {
    const int64_t place = ends[block.rows[piece]]++;
    plan->documents[place] = block.documents[piece];
    plan->offsets[place] = block.offsets[piece];
    plan->lengths[place] = block.sizes[piece];
    plan->columns[place] = block.columns[piece];
  }
}

// The row of a batch at `place`, as a batch of one row.
Batch RowOf(const Batch& batch, int64_t place) {
  const int64_t start = place * batch.seq_len;
  return {batch.ids + start,
          batch.labels + start,
          batch.segment_ids + start,
          batch.segment_pos + start,
          batch.paddings + start,
          batch.weights + start,
          /*num_rows=*/1,
          batch.seq_len};
}

void WritePadding(int64_t begin, int64_t end, const Batch& row) {
  for (int32_t* array :
       {row.ids, row.labels, row.segment_ids, row.segment_pos}) {
    std::fill(array + begin, array + end, 0);
  }
  std::fill(row.paddings + begin, row.paddings + end, 1.0f);
  std::fill(row.weights + begin, row.weights + end, 0.0f);
}

template <class Token>
void WritePiece(const Token* tokens, int64_t size, int32_t segment,
                int64_t column, const Batch& row) {
  // One loop for each array: compilers vectorize them.
  const auto to_id = [](Token token) { return static_cast<int32_t>(token); };
  std::transform(tokens, tokens + size, row.ids + column, to_id);
  std::transform(tokens + 1, tokens + 1 + size, row.labels + column, to_id);
  std::fill_n(row.segment_ids + column, size, segment);
  std::iota(row.segment_pos + column, row.segment_pos + column + size, 0);
  std::fill_n(row.paddings + column, size, 0.0f);
  std::fill_n(row.weights + column, size, 1.0f);
}

void CheckIndex(const char* name, int64_t index, int64_t limit) {
  if (index >= 0 && index < limit) return;
  throw std::out_of_range(std::string(name) + " must be within 0 and " +
                          std::to_string(limit) + " (exclusive), got " +
                          std::to_string(index));
}

template <class Token>
void WriteRow(const PackedCorpus<Token>& corpus, int64_t index,
              const Batch& row) {
  const int64_t first = corpus.row_starts[index];
  const int64_t last = corpus.row_starts[index + 1];
  if (first < 0 || last < first || last > corpus.num_pieces) {
    throw std::out_of_range("the pieces of row " + std::to_string(index) +
                            " are outside of the plan");
  }
  // Positions below `end` are written.
  int64_t end = 0;
  for (int64_t piece = first; piece < last; ++piece) {
    const int64_t document = corpus.documents[piece];
    const int64_t offset = corpus.offsets[piece];
    const int64_t size = corpus.lengths[piece];
    const int64_t column = corpus.columns[piece];
    CheckIndex("document", document, corpus.num_documents);
    const int64_t start = corpus.starts[document];
    if (size < 0 || column < end || column > row.seq_len - size || start < 0 ||
        offset < 0 || start > corpus.num_tokens ||
        offset > corpus.num_tokens - start ||
        size >= corpus.num_tokens - start - offset) {
      throw std::out_of_range("a piece of document " +
                              std::to_string(document) +
                              " is outside of its tokens or its row");
    }
    WritePadding(end, column, row);
    WritePiece(corpus.tokens + start + offset, size,
               static_cast<int32_t>(piece - first + 1), column, row);
    end = column + size;
  }
  WritePadding(end, row.seq_len, row);
}

}  // namespace

PackingPlan Pack(const int64_t* lengths, int64_t num_documents, int64_t seq_len,
                 Fit fit, int64_t block_size) {
  CheckArguments(lengths, num_documents, seq_len, block_size);
  PackingPlan plan;
  Block block;
  Gaps gaps(fit == Fit::kBestFit ? seq_len : 1);
  for (int64_t first = 0; first < num_documents;) {
    const int64_t end = first + std::min(block_size, num_documents - first);
    Cut(lengths, first, end, seq_len, &block);
    if (fit == Fit::kBestFit) {
      BestFit(seq_len, &gaps, &block);
    } else {
      FirstFit(seq_len, &block);
    }
    Append(block, &plan);
    first = end;
  }
  plan.row_starts.push_back(static_cast<int64_t>(plan.documents.size()));
  return plan;
}

template <class Token>
void WriteRows(const PackedCorpus<Token>& corpus, const int64_t* rows,
               const int64_t* places, int64_t count, const Batch& batch) {
  for (int64_t i = 0; i < count; ++i) {
    CheckIndex("row", rows[i], corpus.num_rows);
    CheckIndex("place", places[i], batch.num_rows);
    WriteRow(corpus, rows[i], RowOf(batch, places[i]));
  }
}

template void WriteRows(const PackedCorpus<uint8_t>&, const int64_t*,
                        const int64_t*, int64_t, const Batch&);
template void WriteRows(const PackedCorpus<uint16_t>&, const int64_t*,
                        const int64_t*, int64_t, const Batch&);
template void WriteRows(const PackedCorpus<uint32_t>&, const int64_t*,
                        const int64_t*, int64_t, const Batch&);
template void WriteRows(const PackedCorpus<int32_t>&, const int64_t*,
                        const int64_t*, int64_t, const Batch&);
template void WriteRows(const PackedCorpus<int64_t>&, const int64_t*,
                        const int64_t*, int64_t, const Batch&);

}  // namespace pax
