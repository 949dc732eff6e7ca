// SPDX-License-Identifier: Apache-2.0
// Softmax of strips of logits, and its gradient.
// Included by tiles_impl.h, once per instruction set.

namespace pax {
namespace {

// Applies bias, soft cap and padding; returns the sum of the logits inside the
// vocabulary.
PAX_INLINE float FinishLogits(const StatsArgs& args, Vec* row) {
  const StripArgs& strip = args.strip;
  Vec total = {};
  for (int64_t i = 0; i < kStripVecs; ++i) {
    if (args.bias) row[i] += Load<Vec>(args.bias + i * kLanes);
    if (strip.soft_cap > 0) row[i] = Cap(row[i], strip.soft_cap);
    if (strip.width == kStrip) {
      total += row[i];
      continue;
    }
    // Padding columns are NaN if an activation is infinite.
    const IntVec column = Iota() + static_cast<int32_t>(i * kLanes);
    const IntVec is_inside = column < static_cast<int32_t>(strip.width);
    total += is_inside ? row[i] : Vec{};
    row[i] = is_inside ? row[i] : Splat(-kInfinity);
  }
  return SumOf(total);
}

// Reduces a row with NaN: its first NaN is the maximum.
PAX_INLINE bool ReduceNan(const StatsArgs& args, const Vec* row, int64_t r) {
  for (int64_t v = 0; v < args.strip.width; ++v) {
    const float logit = row[v / kLanes][v % kLanes];
    if (logit == logit) continue;
    args.max[r] = args.sum[r] = logit;
    args.argmax[r] = static_cast<int32_t>(args.strip.begin + v);
    return true;
  }
  return false;
}

PAX_INLINE void ReduceRow(const StatsArgs& args, const Vec* row, int64_t r) {
  // A sum is NaN if a term is, but also for infinity - infinity.
  const bool may_have_nan = args.total[r] != args.total[r];
  if (may_have_nan && ReduceNan(args, row, r)) return;
  Vec most = row[0];
  for (int64_t i = 1; i < kStripVecs; ++i) most = row[i] > most ? row[i] : most;
  const float max = MaxOf(most);
  Vec sum = {};
  IntVec first = IntVec{} + static_cast<int32_t>(kStrip - 1);
  for (int64_t i = kStripVecs - 1; i >= 0; --i) {
    const IntVec column = Iota() + static_cast<int32_t>(i * kLanes);
    first = row[i] == Splat(max) ? column : first;
    sum += Exp(row[i] - max);
  }
  args.max[r] = max;
  // If all logits are masked, the differences from the maximum are NaN.
  args.sum[r] = max == -kInfinity ? 0.0f : SumOf(sum);
  args.argmax[r] = static_cast<int32_t>(args.strip.begin) + MinOf(first);
}

void Stats(const StatsArgs& args) {
  const StripArgs& strip = args.strip;
  const bool changed = args.bias || strip.soft_cap > 0 || strip.width < kStrip;
  for (int64_t r = 0; r < strip.rows; ++r) {
    float* logits = strip.logits + r * kBlock;
    Vec row[kStripVecs];
    for (int64_t i = 0; i < kStripVecs; ++i) {
      row[i] = Load<Vec>(logits + i / kVecs * strip.panel + i % kVecs * kLanes);
    }
    args.total[r] = FinishLogits(args, row);
    for (int64_t i = 0; changed && i < kStripVecs; ++i) {
      Store(logits + i / kVecs * strip.panel + i % kVecs * kLanes, row[i]);
    }
    ReduceRow(args, row, r);
    const int64_t label = args.labels[r] - strip.begin;
    if (label >= 0 && label < strip.width) {
      args.label_logit[r] =
          logits[label / kBlock * strip.panel + label % kBlock];
    }
  }
}

// Computes the gradient of one row in one panel, in float32.
PAX_INLINE void RowGradient(const GradientArgs& args, int64_t panel, int64_t r,
                            const float* logits, float* gradient) {
  const StripArgs& strip = args.strip;
  if (r >= args.height) {
    // The logits of padding are NaN if the table is not finite.
    std::memset(gradient, 0, kBlock * sizeof(float));
    return;
  }
  const float scale = strip.soft_cap > 0 ? 1 / strip.soft_cap : 0.0f;
  for (int64_t i = 0; i < kBlock; i += kLanes) {
    const Vec l = Load<Vec>(logits + i);
    Vec g = args.probability[r] * Exp(l - args.logsumexp[r]) - args.offset[r];
    if (scale > 0) g *= 1.0f - (l * scale) * (l * scale);
    Store(gradient + i, g);
  }
  const int64_t begin = panel * kBlock;
  const int64_t label = args.labels[r] - strip.begin - begin;
  if (label >= 0 && label < kBlock && label + begin < strip.width) {
    gradient[label] -= args.label[r] * CapSlope(logits[label], scale);
  }
  for (int64_t i = kBlock - 1; i >= 0 && begin + i >= strip.width; --i) {
    gradient[i] = 0;
  }
}

PAX_INLINE void StoreGradient(float, const GradientArgs&, float* panel,
                              int64_t r, const float* gradient) {
  std::memcpy(panel + r * kBlock, gradient, 2 * kBlock * sizeof(float));
}

// Writes A over the logits of processed rows, and B to scratch memory until the
// panel is complete.
PAX_INLINE void StoreGradient(Bfloat16, const GradientArgs& args, float* panel,
                              int64_t r, const float* gradient) {
  Bfloat16* a = reinterpret_cast<Bfloat16*>(panel) + r * kBlock;
  Bfloat16* b = static_cast<Bfloat16*>(args.scratch) + r * kBlock;
  for (int64_t i = 0; i < kBlock; i += kLanes) {
    const WordVec even = RoundToBfloat16(Load<Vec>(gradient + i));
    const WordVec odd = RoundToBfloat16(Load<Vec>(gradient + kBlock + i));
    Store(a + i, __builtin_convertvector(even, HalfVec));
    Store(a + kBlock + i, __builtin_convertvector(odd, HalfVec));
    Store(b + 2 * i, even | (odd << 16));
  }
}

template <class Packed>
void Gradient(const GradientArgs& args) {
  const StripArgs& strip = args.strip;
  for (int64_t p = 0; p < kPanels; ++p) {
    float* panel = strip.logits + p * strip.panel;
    Vec sums[kVecs] = {};
    for (int64_t r = 0; r < strip.rows; r += 2) {
      alignas(64) float pair[2 * kBlock];
      for (int64_t i = 0; i < 2; ++i) {
        RowGradient(args, p, r + i, panel + (r + i) * kBlock,
                    pair + i * kBlock);
        for (int v = 0; v < kVecs; ++v) {
          sums[v] += Load<Vec>(pair + i * kBlock + v * kLanes);
        }
      }
      StoreGradient(Packed{}, args, panel, r, pair);
    }
    for (int v = 0; v < kVecs; ++v) {
      Store(args.column_sums + p * kBlock + v * kLanes, sums[v]);
    }
    if (sizeof(Packed) == 2) {
      std::memcpy(reinterpret_cast<Bfloat16*>(panel) + strip.rows * kBlock,
                  args.scratch, strip.rows * kBlock * 2);
    }
  }
}

}  // namespace
}  // namespace pax
