// SPDX-License-Identifier: Apache-2.0
// Tiles for x86-64 with AVX-512 and its bfloat16 dot product.
#if defined(__x86_64__)
#define PAX_VECTOR_BYTES 64
#define PAX_TILE_ROWS 8
#define PAX_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma"
#define PAX_TARGET_BF16
#include "csrc/kernels/tiles_impl.h"

namespace pax {

const TileOps& Avx512Bf16TileOps() {
  static constexpr TileOps kHalf =
      MakeTileOps<Bfloat16, Bfloat16>("avx512_bf16", Dtype::kBfloat16);
  return kHalf;
}

}  // namespace pax
#endif
