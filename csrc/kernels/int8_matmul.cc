// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/int8_matmul.h"

#include <algorithm>

namespace pax {

void RunInt8Matmul(const Int8Matmul& args, const Parallel& parallel) {
  const TileOps& ops = SelectTileOps(args.dtype);
  const int64_t bytes = args.dtype == Dtype::kFloat32 ? 4 : 2;
  const int64_t parts = (args.columns + kInt8Columns - 1) / kInt8Columns;
  const auto part = [&](int64_t task, int64_t) {
    // All rows of one part in sequence: its weights stay in the cache.
    for (int64_t r = 0; r < args.rows; r += kInt8Rows) {
      ops.int8_matmul(
          {static_cast<const char*>(args.x) + r * args.depth * bytes, args.w,
           static_cast<char*>(args.out) + r * args.columns * bytes,
           std::min(kInt8Rows, args.rows - r), args.depth, args.columns,
           task * kInt8Columns});
    }
  };
  parallel.run(parts, part);
}

}  // namespace pax
