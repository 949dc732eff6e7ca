// SPDX-License-Identifier: Apache-2.0
// Tiles for x86-64 with AVX512.
#if defined(__x86_64__)
#define PAX_VECTOR_BYTES 64
#define PAX_TILE_ROWS 8
#define PAX_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
#include "csrc/kernels/tiles_impl.h"

namespace pax {

const TileOps& Avx512TileOps(Dtype input) {
  static constexpr TileOps kFloat =
      MakeTileOps<float, float>("avx512", Dtype::kFloat32);
  static constexpr TileOps kHalf =
      MakeTileOps<Bfloat16, float>("avx512", Dtype::kFloat32);
  return input == Dtype::kFloat32 ? kFloat : kHalf;
}

}  // namespace pax
#endif
