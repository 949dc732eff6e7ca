// SPDX-License-Identifier: Apache-2.0
// Softmax of blocks of attention logits, and its gradient.
// Included by tiles_impl.h, once per instruction set.

namespace pax {
namespace {

// The keys that one query sees.
struct VisibleKeys {
  const int32_t* segment_ids;  // of the keys
  int32_t segment_id;
  int32_t first;
  int32_t last;
};

PAX_INLINE VisibleKeys KeysOf(const AttentionMask& mask, int64_t query) {
  return {mask.segment_ids, mask.segment_ids[query],
          static_cast<int32_t>(query - mask.before),
          static_cast<int32_t>(Clip(query + mask.after, mask.length - 1))};
}

// All bits are set for the visible ones of kLanes keys from `key`.
PAX_INLINE IntVec IsVisible(const VisibleKeys& visible, int64_t key) {
  const IntVec keys = Iota() + static_cast<int32_t>(key);
  const IntVec in_reach = (keys >= visible.first) & (keys <= visible.last);
  return in_reach &
         (Load<IntVec>(visible.segment_ids + key) == visible.segment_id);
}

// Applies soft cap and mask to one row; returns its maximum.
PAX_INLINE float FinishRow(const AttentionBlock& block, int64_t r) {
  const VisibleKeys keys = KeysOf(block.mask, block.first_query + r);
  Vec most = Splat(-kInfinity);
  for (int64_t p = 0; p < block.panels; ++p) {
    const bool is_masked = block.masked >> p & 1;
    float* logits = block.logits + (p * block.rows + r) * kBlock;
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      Vec x = Load<Vec>(logits + i);
      if (block.soft_cap > 0) x = Cap(x, block.soft_cap);
      if (is_masked) {
        const IntVec visible =
            IsVisible(keys, block.first_key + p * kBlock + i);
        x = visible ? x : Splat(-kInfinity);
      }
      if (is_masked || block.soft_cap > 0) Store(logits + i, x);
      most = x > most ? x : most;
    }
  }
  return MaxOf(most);
}

// Replaces logits by their exponentials; returns the sum of these.
PAX_INLINE float ExponentialRow(const AttentionBlock& block, int64_t r,
                                float max) {
  // Without a visible key the maximum is -infinity.
  const float base = max == -kInfinity ? 0.0f : max;
  Vec sum = {};
  for (int64_t p = 0; p < block.panels; ++p) {
    const bool is_masked = block.masked >> p & 1;
    float* logits = block.logits + (p * block.rows + r) * kBlock;
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      const Vec x = Load<Vec>(logits + i);
      Vec e = Exp(x - base);
      if (is_masked) e = x == Splat(-kInfinity) ? Vec{} : e;
      Store(logits + i, e);
      sum += e;
    }
  }
  return SumOf(sum);
}

void AttentionSoftmax(const AttentionSoftmaxArgs& args) {
  const AttentionBlock& block = args.block;
  for (int64_t r = 0; r < block.rows; ++r) {
    const float before = args.max[r];
    float max = FinishRow(block, r);
    max = before > max ? before : max;
    const float sum = ExponentialRow(block, r, max);
    if (max == before) {
      args.sum[r] += sum;
      continue;
    }
    const float scale =
        before == -kInfinity ? 0.0f : Exp(Splat(before - max))[0];
    args.max[r] = max;
    args.sum[r] = args.sum[r] * scale + sum;
    for (int64_t p = 0; args.out && p < args.columns; ++p) {
      float* out = args.out + (p * block.rows + r) * kBlock;
      for (int64_t i = 0; i < kBlock; i += kLanes) {
        Store(out + i, Load<Vec>(out + i) * scale);
      }
    }
  }
}

void AttentionGradient(const AttentionGradientArgs& args) {
  const AttentionBlock& block = args.block;
  const float inverse_cap = block.soft_cap > 0 ? 1 / block.soft_cap : 0.0f;
  for (int64_t r = 0; r < block.rows; ++r) {
    const VisibleKeys keys = KeysOf(block.mask, block.first_query + r);
    for (int64_t p = 0; p < block.panels; ++p) {
      const bool is_masked = block.masked >> p & 1;
      const int64_t at = (p * block.rows + r) * kBlock;
      for (int64_t i = 0; i < kBlock; i += kLanes) {
        Vec x = Load<Vec>(block.logits + at + i);
        if (block.soft_cap > 0) x = Cap(x, block.soft_cap);
        Vec probability = Exp(x - args.logsumexp[r]);
        Vec gradient = Load<Vec>(args.gradients + at + i) - args.delta[r];
        gradient *= probability;
        if (block.soft_cap > 0) {
          gradient *= 1.0f - (x * inverse_cap) * (x * inverse_cap);
        }
        if (is_masked) {
          const IntVec visible =
              IsVisible(keys, block.first_key + p * kBlock + i);
          probability = visible ? probability : Vec{};
          gradient = visible ? gradient : Vec{};
        }
        Store(block.logits + at + i, probability);
        Store(args.gradients + at + i, gradient);
      }
    }
  }
}

}  // namespace
}  // namespace pax
