// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/adam.h"

#include <algorithm>

#include "csrc/kernels/scratch.h"
#include "csrc/kernels/tiles.h"

namespace pax {
namespace {

// Elements of one task.
constexpr int64_t kElements = 16384;

}  // namespace

void RunAdam(const AdamUpdate& args, const Parallel& parallel) {
  const TileOps& ops = SelectTileOps(Dtype::kFloat32);
  const int64_t parts = CeilDiv(args.size, kElements);
  const auto part = [&](int64_t task, int64_t) {
    const int64_t row = task / parts;
    const int64_t begin = task % parts * kElements;
    const int64_t at = row * args.size + begin;
    ops.adam({std::min(kElements, args.size - begin), args.beta1[row],
              args.beta2[row], args.epsilon, args.epsilon_root, args.inf_to_nan,
              args.gradient + at, args.m + at, args.v + at, args.step + at,
              args.m_out + at, args.v_out + at});
  };
  parallel.run(args.rows * parts, part);
}

}  // namespace pax
