// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/integer_matmul.h"

#include <algorithm>

namespace pax {

void RunIntegerMatmul(const IntegerMatmul& args, const Parallel& parallel) {
  const TileOps& ops = SelectTileOps(args.dtype);
  const int64_t bytes = args.dtype == Dtype::kFloat32 ? 4 : 2;
  const int64_t parts = (args.columns + kIntegerColumns - 1) / kIntegerColumns;
  const auto part = [&](int64_t task, int64_t) {
    // All rows of one part in sequence: its weights stay in the cache.
    for (int64_t r = 0; r < args.rows; r += kIntegerRows) {
      ops.integer_matmul(
          {args.format, args.transposed,
           static_cast<const char*>(args.x) + r * args.depth * bytes, args.w,
           static_cast<char*>(args.out) + r * args.columns * bytes,
           std::min(kIntegerRows, args.rows - r), args.depth, args.columns,
           task * kIntegerColumns});
    }
  };
  parallel.run(parts, part);
}

}  // namespace pax
