// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/softmax_xent.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "csrc/kernels/scratch.h"
#include "csrc/kernels/softmax_partial.h"

namespace pax {
namespace {

// Rows of dx for which a strip of the table is packed, at least.
constexpr int64_t kMinInputRows = 128;

void StoreAs(Dtype dtype, float value, void* to, int64_t index) {
  if (dtype == Dtype::kFloat32) {
    static_cast<float*>(to)[index] = value;
    return;
  }
  uint32_t bits = 0x7fc00000u;
  if (value == value) {
    std::memcpy(&bits, &value, sizeof(bits));
    bits += 0x7fffu + ((bits >> 16) & 1u);
  }
  static_cast<Bfloat16*>(to)[index].bits = static_cast<uint16_t>(bits >> 16);
}

// The smoothed target distribution: `on` at the label, `off` elsewhere.
struct Target {
  float on;
  float off;
};

Target TargetFor(const SoftmaxXentInputs& in) {
  if (in.label_smoothing == 0) return {1.0f, 0.0f};
  return {1.0f - in.label_smoothing,
          in.label_smoothing /
              static_cast<float>(std::max<int64_t>(in.vocab - 1, 1))};
}

// State and scratch memory of one call.
class Pass {
 public:
  Pass(const SoftmaxXentInputs& in, const SoftmaxXentOutputs& out,
       const SoftmaxXentGradient* grad, const Parallel& parallel);
  void Run();

 private:
  // Partial results of every strip for every row of the chunk.
  struct Partials {
    std::vector<float> max, sum, total;
    std::vector<int32_t> argmax;
  };
  // Gradient coefficients of every row of the chunk.
  struct Rows {
    std::vector<int32_t> label;
    std::vector<float> label_logit, logsumexp, probability, offset,
        label_weight;
  };

  void LoadChunk(int64_t begin);
  void Forward(int64_t strip, int64_t worker);
  void Combine(int64_t begin, int64_t row);
  void WeighRow(int64_t token, int64_t row, bool ignored);
  void LogitGradient(int64_t strip, int64_t worker);
  void TableGradient(int64_t strip, int64_t worker);
  void InputGradients(int64_t begin);
  void InputGradient(int64_t begin, int64_t row, int64_t rows, int64_t dim,
                     int64_t worker);

  StripArgs Strip(int64_t strip, float* logits) const;
  float* StripLogits(int64_t strip) const;
  PackTableArgs TableArgs(int64_t strip) const;

  const SoftmaxXentInputs& in_;
  const SoftmaxXentOutputs& out_;
  const SoftmaxXentGradient* grad_;
  const Parallel& parallel_;
  const TileOps& ops_;
  const Target target_;
  const int64_t padded_dims_;
  const int64_t strips_;
  const int64_t packed_bytes_;
  const bool keep_sums_;
  int64_t chunk_ = 0;   // index of the current chunk
  int64_t height_ = 0;  // tokens in it
  int64_t rows_ = 0;    // the same, padded
  Partials partials_;
  Rows row_;
  std::vector<float> bias_;  // padded; empty without bias
  Buffer x_over_dims_;
  Buffer x_over_rows_;
  std::vector<Buffer> table_;  // one packed strip per worker
  std::vector<Buffer> local_;  // logits or sums of one strip per worker
};

bool KeepsSums(const SoftmaxXentInputs& in) {
  return in.dtype == Dtype::kBfloat16 && in.tokens > in.chunk;
}

// At least one block, so that logits without dims are sums of zeros.
int64_t PaddedDims(const SoftmaxXentInputs& in) {
  return RoundUp(std::max<int64_t>(in.dims, 1), kBlock);
}

Pass::Pass(const SoftmaxXentInputs& in, const SoftmaxXentOutputs& out,
           const SoftmaxXentGradient* grad, const Parallel& parallel)
    : in_(in),
      out_(out),
      grad_(grad),
      parallel_(parallel),
      ops_(SelectTileOps(in.dtype)),
      target_(TargetFor(in)),
      padded_dims_(PaddedDims(in)),
      strips_(CeilDiv(in.vocab, kStrip)),
      packed_bytes_(Bytes(ops_.packed)),
      keep_sums_(KeepsSums(in)),
      x_over_dims_((in.chunk + kSkew) * padded_dims_ * packed_bytes_),
      x_over_rows_(grad ? (padded_dims_ + kSkew) * in.chunk * packed_bytes_
                        : 0) {
  partials_.max.resize(strips_ * in.chunk);
  partials_.sum.resize(strips_ * in.chunk);
  partials_.total.resize(strips_ * in.chunk);
  partials_.argmax.resize(strips_ * in.chunk);
  row_.label.resize(in.chunk);
  for (auto* v : {&row_.label_logit, &row_.logsumexp, &row_.probability,
                  &row_.offset, &row_.label_weight}) {
    v->resize(in.chunk);
  }
  if (in.bias) {
    bias_.assign(in.bias, in.bias + in.vocab);
    bias_.resize(strips_ * kStrip);
  }
  const int64_t local = grad ? std::max(padded_dims_, in.chunk) : in.chunk;
  for (int64_t i = 0; i < parallel.workers; ++i) {
    table_.emplace_back(padded_dims_ * kStrip * packed_bytes_);
    local_.emplace_back(local * kStrip * sizeof(float));
  }
}

void Pass::Run() {
  for (int64_t begin = 0; begin < in_.tokens; begin += in_.chunk, ++chunk_) {
    LoadChunk(begin);
    parallel_.run(strips_, [this](int64_t s, int64_t w) { Forward(s, w); });
    parallel_.run(rows_ / kBlock, [this, begin](int64_t b, int64_t) {
      for (int64_t i = 0; i < kBlock; ++i) Combine(begin, b * kBlock + i);
    });
    if (!grad_) continue;
    parallel_.run(strips_,
                  [this](int64_t s, int64_t w) { TableGradient(s, w); });
    InputGradients(begin);
  }
}

void Pass::LoadChunk(int64_t begin) {
  height_ = std::min(in_.chunk, in_.tokens - begin);
  rows_ = RoundUp(height_, kBlock);
  for (int64_t r = 0; r < rows_; ++r) {
    row_.label[r] = r < height_ ? in_.labels[begin + r] : -1;
    row_.label_logit[r] = std::numeric_limits<float>::quiet_NaN();
  }
  const char* x =
      static_cast<const char*>(in_.x) + begin * in_.dims * Bytes(in_.dtype);
  parallel_.run(rows_ / kBlock, [this, x](int64_t b, int64_t) {
    ops_.pack_input({x, in_.dims, height_, in_.dims, padded_dims_, b * kBlock,
                     x_over_dims_.as<void>(), rows_ + kSkew,
                     grad_ ? x_over_rows_.as<void>() : nullptr,
                     padded_dims_ + kSkew});
  });
}

PackTableArgs Pass::TableArgs(int64_t strip) const {
  PackTableArgs args = {};
  args.table = in_.table;
  args.transposed = in_.transposed;
  args.dims = in_.dims;
  args.vocab = in_.vocab;
  args.padded_dims = padded_dims_;
  args.begin = strip * kStrip;
  return args;
}

float* Pass::StripLogits(int64_t strip) const {
  return grad_->logits + strip * kStrip * in_.chunk;
}

StripArgs Pass::Strip(int64_t strip, float* logits) const {
  const int64_t begin = strip * kStrip;
  return {logits,
          rows_ * kBlock,
          rows_,
          begin,
          std::min(kStrip, in_.vocab - begin),
          in_.soft_cap};
}

void Pass::Forward(int64_t strip, int64_t worker) {
  PackTableArgs pack = TableArgs(strip);
  pack.over_dims = table_[worker].as<void>();
  ops_.pack_table(pack);
  float* logits = grad_ ? StripLogits(strip) : local_[worker].as<float>();
  ops_.matmul({x_over_dims_.as<void>(),
               (rows_ + kSkew) * kBlock * packed_bytes_, rows_,
               padded_dims_ / kBlock, pack.over_dims,
               padded_dims_ * kBlock * packed_bytes_, kPanels, logits, kBlock,
               rows_ * kBlock, false});
  const int64_t at = strip * in_.chunk;
  ops_.stats({Strip(strip, logits),
              bias_.empty() ? nullptr : bias_.data() + strip * kStrip,
              row_.label.data(), partials_.max.data() + at,
              partials_.sum.data() + at, partials_.total.data() + at,
              partials_.argmax.data() + at, row_.label_logit.data()});
}

// Reduces the strips of one row; writes its outputs and coefficients.
void Pass::Combine(int64_t begin, int64_t row) {
  int64_t best = row;
  for (int64_t s = 1, i = row + in_.chunk; s < strips_; ++s, i += in_.chunk) {
    if (Precedes(partials_.max[i], partials_.argmax[i], partials_.max[best],
                 partials_.argmax[best])) {
      best = i;
    }
  }
  const float max = partials_.max[best];
  double sum = 0;
  double total = 0;
  for (int64_t s = 0, i = row; s < strips_; ++s, i += in_.chunk) {
    sum += partials_.sum[i] * std::exp(partials_.max[i] - max);
    total += partials_.total[i];
  }
  const float logsumexp = LogSumExp(max, sum);
  row_.logsumexp[row] = logsumexp;
  if (grad_ && grad_->normalizer && row < height_) {
    row_.logsumexp[row] = grad_->normalizer[begin + row];
  }
  const bool ignored = row_.label[row] < 0;
  if (row < height_) {
    const float others = static_cast<float>(total) - row_.label_logit[row];
    out_.logsumexp[begin + row] = logsumexp;
    out_.argmax[begin + row] = partials_.argmax[best];
    out_.xent[begin + row] =
        ignored ? 0.0f
                : logsumexp - target_.on * row_.label_logit[row] -
                      (target_.off > 0 ? target_.off * others : 0.0f);
  }
  if (grad_) WeighRow(begin + row, row, ignored || row >= height_);
}

void Pass::WeighRow(int64_t token, int64_t row, bool ignored) {
  const float xent = ignored ? 0.0f : grad_->xent_weight[token];
  float normalizer = 0.0f;
  if (row < height_ && grad_->logsumexp_weight) {
    normalizer = grad_->logsumexp_weight[token];
  }
  normalizer += 2.0f * grad_->z_loss_weight * xent * row_.logsumexp[row];
  row_.probability[row] = xent + normalizer;
  row_.offset[row] = xent * target_.off;
  row_.label_weight[row] = xent * (target_.on - target_.off);
}

// Replaces the logits of a strip by their gradient.
void Pass::LogitGradient(int64_t strip, int64_t worker) {
  float sums[kStrip];
  ops_.gradient({Strip(strip, StripLogits(strip)), height_, row_.label.data(),
                 row_.logsumexp.data(), row_.probability.data(),
                 row_.offset.data(), row_.label_weight.data(), sums,
                 local_[worker].as<void>()});
  if (!grad_->dbias) return;
  const int64_t begin = strip * kStrip;
  for (int64_t i = 0; i < std::min(kStrip, in_.vocab - begin); ++i) {
    grad_->dbias[begin + i] = sums[i] + (chunk_ ? grad_->dbias[begin + i] : 0);
  }
}

void Pass::TableGradient(int64_t strip, int64_t worker) {
  LogitGradient(strip, worker);
  const float* logits = StripLogits(strip);
  const bool half = ops_.packed == Dtype::kBfloat16;
  const char* as_b = reinterpret_cast<const char*>(logits) +
                     (half ? rows_ * kBlock * packed_bytes_ : 0);
  float* sums = keep_sums_ ? grad_->dtable_sums + strip * kStrip * padded_dims_
                           : local_[worker].as<float>();
  ops_.matmul({x_over_rows_.as<void>(),
               (padded_dims_ + kSkew) * kBlock * packed_bytes_, padded_dims_,
               rows_ / kBlock, as_b, rows_ * kBlock * 4, kPanels, sums, kBlock,
               padded_dims_ * kBlock, keep_sums_ && chunk_ > 0});
  const bool last = (chunk_ + 1) * in_.chunk >= in_.tokens;
  if (keep_sums_ && !last) return;
  ops_.store_table({sums, grad_->dtable, in_.transposed ? in_.dims : in_.vocab,
                    in_.transposed, !keep_sums_ && chunk_ > 0, in_.dims,
                    in_.vocab, padded_dims_, strip * kStrip});
}

// Tasks are blocks of dx: of up to kStrip dims, and of rows where the dims are
// too few for all workers.
void Pass::InputGradients(int64_t begin) {
  const int64_t columns = CeilDiv(padded_dims_, kStrip);
  const int64_t wanted = CeilDiv(2 * parallel_.workers, columns);
  const int64_t height =
      RoundUp(std::max(CeilDiv(rows_, wanted), kMinInputRows), kBlock);
  parallel_.run(CeilDiv(rows_, height) * columns,
                [&](int64_t task, int64_t worker) {
                  const int64_t row = task / columns * height;
                  InputGradient(begin, row, std::min(height, rows_ - row),
                                task % columns * kStrip, worker);
                });
}

void Pass::InputGradient(int64_t begin, int64_t row, int64_t rows, int64_t dim,
                         int64_t worker) {
  const int64_t dims = std::min(padded_dims_ - dim, kStrip);
  float* sums = local_[worker].as<float>();
  for (int64_t strip = 0; strip < strips_; ++strip) {
    PackTableArgs pack = TableArgs(strip);
    pack.first_dim = dim;
    pack.padded_dims = dims;
    pack.over_vocab = table_[worker].as<void>();
    ops_.pack_table(pack);
    const char* gradient = reinterpret_cast<const char*>(StripLogits(strip));
    ops_.matmul({gradient + row * kBlock * packed_bytes_, rows_ * kBlock * 4,
                 rows, kPanels, pack.over_vocab,
                 kStrip * kBlock * packed_bytes_, dims / kBlock, sums, kBlock,
                 rows * kBlock, strip > 0});
  }
  const int64_t width = std::min(dims, in_.dims - dim);
  for (int64_t r = 0; r < std::min(rows, height_ - row); ++r) {
    const int64_t first = (begin + row + r) * in_.dims + dim;
    for (int64_t d = 0; d < width; ++d) {
      StoreAs(in_.dtype, sums[(d / kBlock * rows + r) * kBlock + d % kBlock],
              grad_->dx, first + d);
    }
  }
}

}  // namespace

const char* SoftmaxXentError(const SoftmaxXentInputs& in) {
  // Classes are int32, and those of padding columns too.
  constexpr int64_t kMostClasses =
      std::numeric_limits<int32_t>::max() - 2 * kStrip;
  if (in.tokens < 0 || in.dims < 0) return "sizes must not be negative";
  if (in.vocab < 1 || in.vocab > kMostClasses) {
    return "the table must have between 1 and 2^31 - 257 classes";
  }
  if (in.tokens > kMostBytes || in.dims > kMostBytes) return "sizes overflow";
  if (in.chunk < kBlock || in.chunk % kBlock != 0 ||
      in.chunk > RoundUp(std::max<int64_t>(in.tokens, 1), kBlock)) {
    return "chunk must be a multiple of 32 and not exceed the tokens";
  }
  // Every index and every number of bytes is at most one of these products.
  const int64_t columns = RoundUp(in.vocab, kStrip);
  const int64_t dims = PaddedDims(in) + kSkew;
  int64_t logits = sizeof(float);
  int64_t sums = sizeof(float);
  int64_t x = sizeof(float);
  const bool fits =
      MultiplyBy(columns, &logits) && MultiplyBy(in.chunk, &logits) &&
      MultiplyBy(columns, &sums) && MultiplyBy(dims, &sums) &&
      MultiplyBy(RoundUp(in.tokens, kBlock), &x) && MultiplyBy(dims, &x);
  return fits ? nullptr : "sizes overflow";
}

SoftmaxXentWorkspace SoftmaxXentWorkspaceFor(const SoftmaxXentInputs& in) {
  const int64_t columns = RoundUp(in.vocab, kStrip);
  return {columns * in.chunk, KeepsSums(in) ? columns * PaddedDims(in) : 0};
}

void SoftmaxXent(const SoftmaxXentInputs& in, const SoftmaxXentOutputs& out,
                 const Parallel& parallel) {
  Pass(in, out, nullptr, parallel).Run();
}

void SoftmaxXentWithGradient(const SoftmaxXentInputs& in,
                             const SoftmaxXentOutputs& out,
                             const SoftmaxXentGradient& grad,
                             const Parallel& parallel) {
  if (in.tokens == 0) {
    const int64_t size = in.dims * in.vocab * Bytes(in.dtype);
    if (size > 0) std::memset(grad.dtable, 0, size);
    if (grad.dbias) std::memset(grad.dbias, 0, in.vocab * sizeof(float));
    return;
  }
  Pass(in, out, &grad, parallel).Run();
}

}  // namespace pax
