// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "csrc/kernels/scratch.h"

namespace pax {
namespace {

// Queries and keys whose logits are computed at once.
constexpr int64_t kQueries = 64;
constexpr int64_t kKeyPanels = 8;
// A call is split into this many tasks, or more, for few examples and heads.
constexpr int64_t kMinTasks = 16;
constexpr int32_t kNoSegment = std::numeric_limits<int32_t>::min();

// Sizes of a call.
struct Shape {
  explicit Shape(const AttentionInputs& in)
      : group(in.kv_heads ? in.heads / in.kv_heads : 0),
        keys(RoundUp(in.length, kQueries)),
        key_panels(keys / kBlock),
        dims(RoundUp(std::max<int64_t>(in.dims, 1), kBlock)),
        dim_panels(dims / kBlock),
        query_blocks(keys / kQueries),
        pairs(in.batch * in.kv_heads),
        splits(
            std::clamp<int64_t>(CeilDiv(kMinTasks, std::max<int64_t>(pairs, 1)),
                                1, std::max<int64_t>(query_blocks, 1))) {}

  int64_t group;         // heads of queries per head of keys
  int64_t keys;          // padded length
  int64_t key_panels;    // of 32 keys
  int64_t dims;          // padded
  int64_t dim_panels;    // of 32 dims
  int64_t query_blocks;  // of kQueries
  int64_t pairs;         // of an example and a head of keys
  int64_t splits;        // tasks per pair, each with a part of the queries
};

// The panels of 32 keys that a block of queries sees: [begin, end).
struct Panels {
  int64_t begin;
  int64_t end;
};

// A matrix of one head, with rows of positions: packed as the operand with
// K = dims, and with K = positions.
class PackedHead {
 public:
  PackedHead(int64_t rows, int64_t dims, bool over_dims, bool over_rows)
      : over_dims_rows_(rows + kSkew),
        over_rows_rows_(dims + kSkew),
        over_dims_(over_dims ? over_dims_rows_ * dims * 4 : 0),
        over_rows_(over_rows ? over_rows_rows_ * rows * 4 : 0),
        has_over_dims_(over_dims),
        has_over_rows_(over_rows) {}

  // Packs rows [begin, end) of x, multiples of kBlock.
  void Pack(const TileOps& ops, const AttentionInputs& in, const void* x,
            int64_t row, int64_t height, Panels rows) {
    for (int64_t p = rows.begin; p < rows.end; ++p) {
      ops.pack_input(
          {x, row, height, in.dims,
           RoundUp(std::max<int64_t>(in.dims, 1), kBlock), p * kBlock,
           has_over_dims_ ? over_dims_.as<void>() : nullptr, over_dims_rows_,
           has_over_rows_ ? over_rows_.as<void>() : nullptr, over_rows_rows_});
    }
  }

  // The rows from `row`, by blocks of dims.
  const char* OverDims(int64_t row) const {
    return over_dims_.as<const char>(row * kBlock * 4);
  }
  int64_t over_dims_bytes() const { return over_dims_rows_ * kBlock * 4; }

  // The dims of all rows from `row`, a multiple of kBlock, by blocks of rows.
  const char* OverRows(int64_t row) const {
    return over_rows_.as<const char>(row * over_rows_rows_ * 4);
  }
  int64_t over_rows_bytes() const { return over_rows_rows_ * kBlock * 4; }

 private:
  int64_t over_dims_rows_;
  int64_t over_rows_rows_;
  Buffer over_dims_;
  Buffer over_rows_;
  bool has_over_dims_;
  bool has_over_rows_;
};

// Part of the queries of all heads that share a head of keys, of one example.
struct Task {
  Task(const AttentionInputs& in, const Shape& shape, int64_t index)
      : pair(index / shape.splits),
        split(index % shape.splits),
        example(pair / in.kv_heads),
        kv_head(pair % in.kv_heads),
        first_block(split * shape.query_blocks / shape.splits),
        end_block((split + 1) * shape.query_blocks / shape.splits) {}

  int64_t pair;
  int64_t split;
  int64_t example;
  int64_t kv_head;
  int64_t first_block;  // of queries
  int64_t end_block;
};

// What is common to the tasks of a worker: the mask and the places of heads.
class Worker {
 public:
  Worker(const AttentionInputs& in, const Shape& shape)
      : in_(in),
        shape_(shape),
        ops_(SelectFloatTileOps(in.dtype)),
        before_(in.before < 0 ? in.length : std::min(in.before, in.length)),
        after_(in.after < 0 ? in.length : std::min(in.after, in.length)),
        ids_(shape.keys, kNoSegment),
        lowest_(ids_.size() / kBlock),
        highest_(ids_.size() / kBlock) {}

 protected:
  // Reads the segments of an example.
  void LoadSegments(int64_t example) {
    std::copy_n(in_.segment_ids + example * in_.length, in_.length,
                ids_.begin());
    for (size_t p = 0; p < lowest_.size(); ++p) {
      const auto begin = ids_.begin() + p * kBlock;
      const int64_t filled =
          std::clamp<int64_t>(in_.length - p * kBlock, 0, kBlock);
      const auto end = begin + std::max<int64_t>(filled, 1);
      lowest_[p] = *std::min_element(begin, end);
      highest_[p] = *std::max_element(begin, end);
    }
  }

  // Returns the panels with keys that a block of queries may see: its own are
  // among them.
  Panels VisiblePanels(int64_t block) const {
    const int64_t first = block * kQueries;
    const int64_t last = std::min(first + kQueries, in_.length) - 1;
    Panels seen = {std::max<int64_t>(first - before_, 0) / kBlock,
                   std::min(last + after_, in_.length - 1) / kBlock + 1};
    while (!MayShareSegment(block, seen.begin)) ++seen.begin;
    while (!MayShareSegment(block, seen.end - 1)) --seen.end;
    return seen;
  }

  // Returns the panels with keys that a task may see.
  Panels VisiblePanels(const Task& task) const {
    Panels all = {shape_.key_panels, 0};
    for (int64_t b = task.first_block; b < task.end_block; ++b) {
      const Panels seen = VisiblePanels(b);
      all = {std::min(all.begin, seen.begin), std::max(all.end, seen.end)};
    }
    return all;
  }

  AttentionBlock Block(int64_t query_block, Panels panels,
                       float* logits) const {
    AttentionBlock block = {};
    block.logits = logits;
    block.rows = kQueries;
    block.panels = panels.end - panels.begin;
    block.first_query = query_block * kQueries;
    block.first_key = panels.begin * kBlock;
    block.mask = {ids_.data(), in_.length, before_, after_};
    block.soft_cap = in_.soft_cap;
    for (int64_t p = 0; p < block.panels; ++p) {
      if (HidesKeys(query_block, panels.begin + p)) {
        block.masked |= uint64_t{1} << p;
      }
    }
    return block;
  }

  // Byte offset of a head in queries; their rows are `query_row` elements.
  int64_t QueryOffset(const Task& task, int64_t head) const {
    return (task.example * in_.length * in_.heads +
            task.kv_head * shape_.group + head) *
           in_.dims * Bytes(in_.dtype);
  }
  int64_t KeyOffset(const Task& task) const {
    return (task.example * in_.length * in_.kv_heads + task.kv_head) *
           in_.dims * Bytes(in_.dtype);
  }
  int64_t query_row() const { return in_.heads * in_.dims; }
  int64_t key_row() const { return in_.kv_heads * in_.dims; }

  // Index of the first query of a block in statistics of queries.
  int64_t StatisticsOffset(const Task& task, int64_t head,
                           int64_t block) const {
    return (task.example * in_.heads + task.kv_head * shape_.group + head) *
               in_.length +
           block * kQueries;
  }
  int64_t Height(int64_t block) const {
    return std::min(kQueries, in_.length - block * kQueries);
  }

  static const void* At(const void* x, int64_t bytes) {
    return static_cast<const char*>(x) + bytes;
  }
  static void* At(void* x, int64_t bytes) {
    return static_cast<char*>(x) + bytes;
  }

  // Packs a block of queries, or of arrays of their shape.
  void PackQueries(const void* x, const Task& task, int64_t head, int64_t block,
                   PackedHead* to) const {
    const int64_t first = block * kQueries * query_row() * Bytes(in_.dtype);
    to->Pack(ops_, in_, At(x, QueryOffset(task, head) + first), query_row(),
             Height(block), {0, kQueries / kBlock});
  }

  // out += a b, of a block of queries and panels of keys; b has K = keys.
  void AddKeys(const float* a, Panels panels, const PackedHead& b,
               bool accumulate, float* out) const {
    ops_.matmul({a, kQueries * kBlock * 4, kQueries, panels.end - panels.begin,
                 b.OverDims(panels.begin * kBlock), b.over_dims_bytes(),
                 shape_.dim_panels, out, kBlock, kQueries * kBlock,
                 accumulate});
  }

  // out = a b, of a block of queries and panels of keys; b has K = dims.
  void MultiplyKeys(const PackedHead& a, const PackedHead& b, Panels panels,
                    float* out) const {
    ops_.matmul({a.OverDims(0), a.over_dims_bytes(), kQueries,
                 shape_.dim_panels, b.OverRows(panels.begin * kBlock),
                 b.over_rows_bytes(), panels.end - panels.begin, out, kBlock,
                 kQueries * kBlock, false});
  }

  // Stores sums [dim_panels][kQueries][32] of a block of queries.
  void StoreQueries(const float* sums, const Task& task, int64_t head,
                    int64_t block, void* to) const {
    const int64_t first = block * kQueries * query_row() * Bytes(in_.dtype);
    StoreTableArgs args = {};
    args.sums = sums;
    args.table = At(to, QueryOffset(task, head) + first);
    args.row = query_row();
    args.dims = Height(block);
    args.vocab = in_.dims;
    args.padded_dims = kQueries;
    for (; args.begin < in_.dims; args.begin += kStrip) {
      args.sums = sums + args.begin * kQueries;
      ops_.store_table(args);
    }
  }

  const AttentionInputs& in_;
  const Shape& shape_;
  const TileOps& ops_;

 private:
  bool MayShareSegment(int64_t block, int64_t panel) const {
    for (int64_t p = block * kQueries / kBlock;
         p < (block + 1) * kQueries / kBlock && p * kBlock < in_.length; ++p) {
      if (lowest_[p] <= highest_[panel] && lowest_[panel] <= highest_[p]) {
        return true;
      }
    }
    return false;
  }

  // Whether some query of a block does not see some key of a panel.
  bool HidesKeys(int64_t block, int64_t panel) const {
    const int64_t first = block * kQueries;
    const int64_t last = first + kQueries - 1;
    const int64_t last_key = panel * kBlock + kBlock - 1;
    if (last_key >= in_.length || last - before_ > panel * kBlock ||
        first + after_ < last_key) {
      return true;
    }
    bool differs = lowest_[panel] != highest_[panel];
    for (int64_t p = first / kBlock; p <= last / kBlock; ++p) {
      differs |= lowest_[p] != lowest_[panel] || highest_[p] != lowest_[panel];
    }
    return differs;
  }

  const int64_t before_;
  const int64_t after_;
  std::vector<int32_t> ids_;
  std::vector<int32_t> lowest_;  // segment of a panel
  std::vector<int32_t> highest_;
};

class ForwardWorker : public Worker {
 public:
  ForwardWorker(const AttentionInputs& in, const AttentionOutputs& out,
                const Shape& shape)
      : Worker(in, shape),
        out_(out),
        keys_(shape.keys, shape.dims, false, true),
        values_(shape.keys, shape.dims, true, false),
        queries_(kQueries, shape.dims, true, false),
        logits_(kQueries * kKeyPanels * kBlock * 4),
        sums_(kQueries * shape.dims * 4) {}

  void Run(const Task& task) {
    LoadSegments(task.example);
    const Panels all = VisiblePanels(task);
    keys_.Pack(ops_, in_, At(in_.key, KeyOffset(task)), key_row(), in_.length,
               all);
    values_.Pack(ops_, in_, At(in_.value, KeyOffset(task)), key_row(),
                 in_.length, all);
    for (int64_t b = task.first_block; b < task.end_block; ++b) {
      for (int64_t h = 0; h < shape_.group; ++h) Attend(task, h, b);
    }
  }

 private:
  void Attend(const Task& task, int64_t head, int64_t block) {
    PackQueries(in_.query, task, head, block, &queries_);
    float max[kQueries], sum[kQueries] = {};
    std::fill_n(max, kQueries, -std::numeric_limits<float>::infinity());
    float* logits = logits_.as<float>();
    float* sums = sums_.as<float>();
    const Panels seen = VisiblePanels(block);
    for (int64_t p = seen.begin; p < seen.end; p += kKeyPanels) {
      const Panels panels = {p, std::min(p + kKeyPanels, seen.end)};
      const bool is_first = p == seen.begin;
      MultiplyKeys(queries_, keys_, panels, logits);
      ops_.attention_softmax({Block(block, panels, logits), max, sum,
                              is_first ? nullptr : sums, shape_.dim_panels});
      AddKeys(logits, panels, values_, !is_first, sums);
    }
    Finish(task, head, block, max, sum);
  }

  void Finish(const Task& task, int64_t head, int64_t block, const float* max,
              const float* sum) {
    float* logsumexp = out_.logsumexp + StatisticsOffset(task, head, block);
    for (int64_t r = 0; r < Height(block); ++r) {
      logsumexp[r] = max[r] + std::log(sum[r]);
      const float scale = 1 / sum[r];
      for (int64_t p = 0; p < shape_.dim_panels; ++p) {
        float* row = sums_.as<float>() + (p * kQueries + r) * kBlock;
        for (int64_t i = 0; i < kBlock; ++i) row[i] *= scale;
      }
    }
    StoreQueries(sums_.as<float>(), task, head, block, out_.out);
  }

  const AttentionOutputs& out_;
  PackedHead keys_;
  PackedHead values_;
  PackedHead queries_;
  Buffer logits_;
  Buffer sums_;
};

class BackwardWorker : public Worker {
 public:
  BackwardWorker(const AttentionInputs& in, const AttentionGradients& grad,
                 const Shape& shape)
      : Worker(in, shape),
        grad_(grad),
        keys_(shape.keys, shape.dims, true, true),
        values_(shape.keys, shape.dims, false, true),
        queries_(kQueries, shape.dims, true, true),
        douts_(kQueries, shape.dims, true, true),
        probabilities_(kQueries * kKeyPanels * kBlock * 4),
        gradients_(kQueries * kKeyPanels * kBlock * 4),
        dquery_(kQueries * shape.dims * 4) {}

  // Sums the gradients of keys and values into a part of the scratch memory.
  void Run(const Task& task) {
    LoadSegments(task.example);
    const Panels all = VisiblePanels(task);
    keys_.Pack(ops_, in_, At(in_.key, KeyOffset(task)), key_row(), in_.length,
               all);
    values_.Pack(ops_, in_, At(in_.value, KeyOffset(task)), key_row(),
                 in_.length, all);
    const int64_t size = shape_.keys * shape_.dims;
    float* dkey = Sums(task.pair, task.split);
    std::fill_n(dkey, 2 * size, 0.0f);
    for (int64_t b = task.first_block; b < task.end_block; ++b) {
      for (int64_t h = 0; h < shape_.group; ++h) {
        Differentiate(task, h, b, dkey, dkey + size);
      }
    }
  }

  // Adds the sums of all tasks of a pair, and stores them.
  void Reduce(int64_t pair) {
    const int64_t size = 2 * shape_.keys * shape_.dims;
    float* total = Sums(pair, 0);
    for (int64_t split = 1; split < shape_.splits; ++split) {
      const float* sums = Sums(pair, split);
      for (int64_t i = 0; i < size; ++i) total[i] += sums[i];
    }
    const int64_t offset = KeyOffset(Task(in_, shape_, pair * shape_.splits));
    StoreKeys(total, At(grad_.dkey, offset));
    StoreKeys(total + size / 2, At(grad_.dvalue, offset));
  }

 private:
  // The sums of one task: the gradients of keys, then of values, each
  // [key_panels][dims][32].
  float* Sums(int64_t pair, int64_t split) const {
    return grad_.sums +
           (pair * shape_.splits + split) * 2 * shape_.keys * shape_.dims;
  }

  void StoreKeys(const float* sums, void* to) const {
    StoreTableArgs args = {};
    args.table = to;
    args.row = key_row();
    args.transposed = true;
    args.dims = in_.dims;
    args.vocab = in_.length;
    args.padded_dims = shape_.dims;
    for (; args.begin < in_.length; args.begin += kStrip) {
      args.sums = sums + args.begin * shape_.dims;
      ops_.store_table(args);
    }
  }

  void Differentiate(const Task& task, int64_t head, int64_t block, float* dkey,
                     float* dvalue) {
    PackQueries(in_.query, task, head, block, &queries_);
    PackQueries(grad_.dout, task, head, block, &douts_);
    float logsumexp[kQueries] = {}, delta[kQueries] = {};
    const int64_t at = StatisticsOffset(task, head, block);
    std::copy_n(grad_.logsumexp + at, Height(block), logsumexp);
    std::copy_n(grad_.delta + at, Height(block), delta);
    float* probabilities = probabilities_.as<float>();
    float* gradients = gradients_.as<float>();
    float* dquery = dquery_.as<float>();
    const Panels seen = VisiblePanels(block);
    for (int64_t p = seen.begin; p < seen.end; p += kKeyPanels) {
      const Panels panels = {p, std::min(p + kKeyPanels, seen.end)};
      MultiplyKeys(queries_, keys_, panels, probabilities);
      MultiplyKeys(douts_, values_, panels, gradients);
      ops_.attention_gradient(
          {Block(block, panels, probabilities), gradients, logsumexp, delta});
      AddQueries(queries_, gradients, panels, dkey);
      AddQueries(douts_, probabilities, panels, dvalue);
      AddKeys(gradients, panels, keys_, p > seen.begin, dquery);
    }
    StoreQueries(dquery, task, head, block, grad_.dquery);
  }

  // out += a^T b of panels of keys; a has K = queries.
  void AddQueries(const PackedHead& a, const float* b, Panels panels,
                  float* out) const {
    ops_.matmul({a.OverRows(0), a.over_rows_bytes(), shape_.dims,
                 kQueries / kBlock, b, kQueries * kBlock * 4,
                 panels.end - panels.begin,
                 out + panels.begin * shape_.dims * kBlock, kBlock,
                 shape_.dims * kBlock, true});
  }

  const AttentionGradients& grad_;
  PackedHead keys_;
  PackedHead values_;
  PackedHead queries_;
  PackedHead douts_;
  Buffer probabilities_;
  Buffer gradients_;
  Buffer dquery_;
};

bool IsEmpty(const AttentionInputs& in) {
  return in.batch == 0 || in.length == 0 || in.kv_heads == 0;
}

}  // namespace

const char* AttentionError(const AttentionInputs& in) {
  // Positions are int32, and so are their sums with a window.
  constexpr int64_t kMostPositions = std::numeric_limits<int32_t>::max() / 4;
  for (const int64_t size :
       {in.batch, in.length, in.heads, in.kv_heads, in.dims}) {
    if (size < 0) return "sizes must not be negative";
  }
  if (in.length > kMostPositions) return "a sequence must be below 2^29 long";
  if (in.kv_heads == 0 ? in.heads > 0 : in.heads % in.kv_heads > 0) {
    return "the heads of keys must divide those of queries";
  }
  if (!(in.soft_cap >= 0)) return "soft_cap must not be negative";
  for (const int64_t size : {in.batch, in.heads, in.kv_heads, in.dims}) {
    if (size > kMostPositions) return "sizes overflow";
  }
  // Every number of bytes is at most this product.
  const Shape shape(in);
  int64_t bytes = 2 * sizeof(float) * kMinTasks;
  const bool fits =
      MultiplyBy(shape.keys + kSkew, &bytes) &&
      MultiplyBy(shape.dims + kSkew, &bytes) &&
      MultiplyBy(std::max<int64_t>({in.heads, in.kv_heads, 1}), &bytes) &&
      MultiplyBy(std::max<int64_t>(in.batch, 1), &bytes);
  return fits ? nullptr : "sizes overflow";
}

int64_t AttentionScratch(const AttentionInputs& in) {
  const Shape shape(in);
  return shape.pairs * shape.splits * 2 * shape.keys * shape.dims;
}

void Attention(const AttentionInputs& in, const AttentionOutputs& out,
               const Parallel& parallel) {
  if (IsEmpty(in)) return;
  const Shape shape(in);
  std::vector<ForwardWorker> workers;
  for (int64_t w = 0; w < parallel.workers; ++w) {
    workers.emplace_back(in, out, shape);
  }
  parallel.run(shape.pairs * shape.splits, [&](int64_t task, int64_t worker) {
    workers[worker].Run(Task(in, shape, task));
  });
}

void AttentionGradient(const AttentionInputs& in,
                       const AttentionGradients& grad,
                       const Parallel& parallel) {
  if (IsEmpty(in)) return;
  const Shape shape(in);
  std::vector<BackwardWorker> workers;
  for (int64_t w = 0; w < parallel.workers; ++w) {
    workers.emplace_back(in, grad, shape);
  }
  parallel.run(shape.pairs * shape.splits, [&](int64_t task, int64_t worker) {
    workers[worker].Run(Task(in, shape, task));
  });
  parallel.run(shape.pairs, [&](int64_t pair, int64_t worker) {
    workers[worker].Reduce(pair);
  });
}

}  // namespace pax
