// SPDX-License-Identifier: Apache-2.0
// Body of tiles_<isa>.cc; included once by each, which defines
//   PAX_VECTOR_BYTES  width of a vector register
//   PAX_TILE_ROWS     rows of a register tile (its accumulators must fit)
//   PAX_TARGET        target string of the instruction set, absent: the
//   baseline
// All functions have internal linkage: the linker must not select a function
// that is compiled for another instruction set.

#include <cstdint>
#include <cstring>

#include "csrc/kernels/softmax_partial.h"
#include "csrc/kernels/tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(PAX_TARGET) && defined(__clang__)
#define PAX_PRAGMA(x) _Pragma(#x)
#define PAX_PUSH(t) \
  PAX_PRAGMA(       \
      clang attribute push(__attribute__((target(t))), apply_to = function))
PAX_PUSH(PAX_TARGET)
#elif defined(PAX_TARGET)
#define PAX_PRAGMA(x) _Pragma(#x)
#define PAX_PUSH(t) PAX_PRAGMA(GCC target(t))
#pragma GCC push_options
PAX_PUSH(PAX_TARGET)
#endif

// Vectors are passed only between inlined functions.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

#define PAX_INLINE static inline __attribute__((always_inline))

// clang-format off: vectors, and then the matmul, are what the others need.
#include "csrc/kernels/vectors_impl.h"
#include "csrc/kernels/matmul_impl.h"
#include "csrc/kernels/adam_impl.h"
#include "csrc/kernels/attention_impl.h"
#include "csrc/kernels/integer_matmul_impl.h"
#include "csrc/kernels/softmax_xent_impl.h"
// clang-format on

namespace pax {
namespace {

template <class In, class Packed>
constexpr TileOps MakeTileOps(const char* name, Dtype packed) {
  return {name,
          packed,
          PackTable<In, Packed>,
          PackInput<In, Packed>,
          Matmul<Packed>,
          StoreTable<In>,
          Stats,
          Gradient<Packed>,
          AttentionSoftmax,
          AttentionGradient,
          IntegerMatmul<In>,
          Adam};
}

}  // namespace
}  // namespace pax

#if defined(PAX_TARGET) && defined(__clang__)
#pragma clang attribute pop
#elif defined(PAX_TARGET)
#pragma GCC pop_options
#endif

#pragma GCC diagnostic pop
