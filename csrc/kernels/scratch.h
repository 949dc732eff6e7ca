// SPDX-License-Identifier: Apache-2.0
// Sizes and scratch memory of kernels.
#ifndef CSRC_KERNELS_SCRATCH_H_
#define CSRC_KERNELS_SCRATCH_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>

#include "csrc/kernels/tiles.h"

namespace pax {

inline constexpr int64_t kMostBytes = int64_t{1} << 60;

inline int64_t CeilDiv(int64_t n, int64_t d) { return (n + d - 1) / d; }
inline int64_t RoundUp(int64_t n, int64_t d) { return CeilDiv(n, d) * d; }

inline int64_t Bytes(Dtype dtype) { return dtype == Dtype::kFloat32 ? 4 : 2; }

// Multiplies *product by `factor`; returns whether it stays below kMostBytes.
inline bool MultiplyBy(int64_t factor, int64_t* product) {
  return !__builtin_mul_overflow(*product, factor, product) &&
         *product <= kMostBytes;
}

// Uninitialized memory, aligned for vectors.
class Buffer {
 public:
  explicit Buffer(int64_t bytes)
      : data_(::operator new(std::max<int64_t>(bytes, 1),
                             std::align_val_t{kAlignment})) {}
  template <class T>
  T* as(int64_t offset_bytes = 0) const {
    return reinterpret_cast<T*>(static_cast<char*>(data_.get()) + offset_bytes);
  }

 private:
  static constexpr int64_t kAlignment = 64;
  struct Free {
    void operator()(void* p) const {
      ::operator delete(p, std::align_val_t{kAlignment});
    }
  };
  std::unique_ptr<void, Free> data_;
};

}  // namespace pax

#endif  // CSRC_KERNELS_SCRATCH_H_
