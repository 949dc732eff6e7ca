// SPDX-License-Identifier: Apache-2.0
// Tiles for x86-64 with AVX2.
#if defined(__x86_64__)
#define PAX_VECTOR_BYTES 32
#define PAX_TILE_ROWS 2
#define PAX_TARGET "avx2,fma"
#include "csrc/kernels/tiles_impl.h"

namespace pax {

const TileOps& Avx2TileOps(Dtype input) {
  static constexpr TileOps kFloat =
      MakeTileOps<float, float>("avx2", Dtype::kFloat32);
  static constexpr TileOps kHalf =
      MakeTileOps<Bfloat16, float>("avx2", Dtype::kFloat32);
  return input == Dtype::kFloat32 ? kFloat : kHalf;
}

}  // namespace pax
#endif
