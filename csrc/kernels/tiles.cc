// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/tiles.h"

#include <cstdlib>
#include <cstring>

namespace pax {
namespace {

#if defined(__x86_64__)
enum Isa { kPortable, kAvx2, kAvx512, kAvx512Bf16 };

Isa Supported() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    return kPortable;
  }
  if (!__builtin_cpu_supports("avx512f") ||
      !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vl")) {
    return kAvx2;
  }
  return __builtin_cpu_supports("avx512bf16") ? kAvx512Bf16 : kAvx512;
}

Isa Chosen() {
  const Isa most = Supported();
  const char* wanted = std::getenv("PAX_KERNEL_ISA");
  if (!wanted) return most;
  const char* names[] = {"portable", "avx2", "avx512", "avx512_bf16"};
  for (int isa = 0; isa < most; ++isa) {
    if (std::strcmp(wanted, names[isa]) == 0) return static_cast<Isa>(isa);
  }
  return most;
}

Isa Selected() {
  static const Isa isa = Chosen();
  return isa;
}
#endif

}  // namespace

const TileOps& SelectTileOps(Dtype input) {
#if defined(__x86_64__)
  if (Selected() == kAvx512Bf16 && input == Dtype::kBfloat16) {
    return Avx512Bf16TileOps();
  }
#endif
  return SelectFloatTileOps(input);
}

const TileOps& SelectFloatTileOps(Dtype input) {
#if defined(__x86_64__)
  if (Selected() >= kAvx512) return Avx512TileOps(input);
  if (Selected() == kAvx2) return Avx2TileOps(input);
#endif
  return PortableTileOps(input);
}

}  // namespace pax
