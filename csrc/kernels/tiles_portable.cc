// SPDX-License-Identifier: Apache-2.0
// Tiles for any processor, with the compiler's baseline vectors.
#define PAX_VECTOR_BYTES 16
#define PAX_TILE_ROWS 1
#include "csrc/kernels/tiles_impl.h"

namespace pax {

const TileOps& PortableTileOps(Dtype input) {
  static constexpr TileOps kFloat =
      MakeTileOps<float, float>("portable", Dtype::kFloat32);
  static constexpr TileOps kHalf =
      MakeTileOps<Bfloat16, float>("portable", Dtype::kFloat32);
  return input == Dtype::kFloat32 ? kFloat : kHalf;
}

}  // namespace pax
