// SPDX-License-Identifier: Apache-2.0
// Moments and steps of Adam.
// Included by tiles_impl.h, once per instruction set.

namespace pax {
namespace {

struct AdamVecs {
  Vec step;
  Vec m;
  Vec v;
};

PAX_INLINE AdamVecs AdamVec(const AdamArgs& args, Vec g, Vec m, Vec v) {
  if (args.inf_to_nan) {
    const auto is_infinite = (g == Splat(kInfinity)) | (g == Splat(-kInfinity));
    g = is_infinite ? Splat(__builtin_nanf("")) : g;
  }
  m = args.beta1 * m + (1.0f - args.beta1) * g;
  v = args.beta2 * v + (1.0f - args.beta2) * (g * g);
  return {m / (Sqrt(v + args.epsilon_root) + args.epsilon), m, v};
}

void Adam(const AdamArgs& args) {
  int64_t i = 0;
  for (; i + kLanes <= args.size; i += kLanes) {
    const AdamVecs out = AdamVec(args, Load<Vec>(args.gradient + i),
                                 Load<Vec>(args.m + i), Load<Vec>(args.v + i));
    Store(args.step + i, out.step);
    Store(args.m_out + i, out.m);
    Store(args.v_out + i, out.v);
  }
  if (const size_t bytes = (args.size - i) * sizeof(float)) {
    Vec g = {}, m = {}, v = {};
    std::memcpy(&g, args.gradient + i, bytes);
    std::memcpy(&m, args.m + i, bytes);
    std::memcpy(&v, args.v + i, bytes);
    const AdamVecs out = AdamVec(args, g, m, v);
    std::memcpy(args.step + i, &out.step, bytes);
    std::memcpy(args.m_out + i, &out.m, bytes);
    std::memcpy(args.v_out + i, &out.v, bytes);
  }
}

}  // namespace
}  // namespace pax
