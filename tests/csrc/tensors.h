// SPDX-License-Identifier: Apache-2.0
// Operands of kernels under test, and threads to run them on.

#ifndef TESTS_CSRC_TENSORS_H_
#define TESTS_CSRC_TENSORS_H_

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "csrc/kernels/parallel.h"
#include "csrc/kernels/tiles.h"

namespace pax {

// A small deterministic generator in [-1, 1).
class Random {
 public:
  float operator()() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int32_t>(state_ >> 33) / 1073741824.0f - 1.0f;
  }

 private:
  uint64_t state_ = 42;
};

// Values rounded to dtype, and their storage in it.
struct Tensor {
  Tensor(Dtype dtype, int64_t size, float scale, Random& random)
      : values(size), floats(size), halves(size), dtype(dtype) {
    for (int64_t i = 0; i < size; ++i) {
      float x = random() * scale;
      uint32_t bits;
      std::memcpy(&bits, &x, 4);
      halves[i].bits = static_cast<uint16_t>(bits >> 16);
      if (dtype == Dtype::kBfloat16) {
        bits &= 0xffff0000u;
        std::memcpy(&x, &bits, 4);
      }
      values[i] = floats[i] = x;
    }
  }
  void* data() {
    if (dtype == Dtype::kFloat32) return floats.data();
    return halves.data();
  }
  double stored(int64_t i) const {
    if (dtype == Dtype::kFloat32) return floats[i];
    const uint32_t bits = uint32_t{halves[i].bits} << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
  }
  std::vector<double> values;
  std::vector<float> floats;
  std::vector<Bfloat16> halves;
  Dtype dtype;
};

// Two threads that take alternate tasks: finds what is shared by mistake.
inline Parallel TwoThreads() {
  return {2,
          [](int64_t tasks, const std::function<void(int64_t, int64_t)>& body) {
            std::thread odd([&] {
              for (int64_t i = 1; i < tasks; i += 2) body(i, 1);
            });
            for (int64_t i = 0; i < tasks; i += 2) body(i, 0);
            odd.join();
          }};
}

}  // namespace pax

#endif  // TESTS_CSRC_TENSORS_H_
