// SPDX-License-Identifier: Apache-2.0
// Random numbers, special values, and buffers without a byte to spare.
#ifndef TESTS_CSRC_HOSTILE_H_
#define TESTS_CSRC_HOSTILE_H_

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>

namespace pax {

class RandomBits {
 public:
  uint32_t operator()() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }
  template <class T>
  T Of(std::initializer_list<T> values) {
    return values.begin()[(*this)() % values.size()];
  }

 private:
  uint64_t state_ = 42;
};

// A heap buffer of exactly `count` elements, aligned for one of them only.
template <class T>
class Exact {
 public:
  Exact(int64_t count, int fill)
      : bytes_((count + 1) * sizeof(T)),
        memory_(static_cast<char*>(std::malloc(bytes_))) {
    std::memset(memory_.get(), fill, bytes_);
  }
  T* data() const { return reinterpret_cast<T*>(memory_.get()) + 1; }
  int64_t size() const { return bytes_ / sizeof(T) - 1; }
  bool operator==(const Exact& other) const {
    return bytes_ == other.bytes_ &&
           std::memcmp(memory_.get() + sizeof(T),
                       other.memory_.get() + sizeof(T),
                       bytes_ - sizeof(T)) == 0;
  }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  size_t bytes_;
  std::unique_ptr<char, Free> memory_;
};

// Floats with one special value in 16; bfloat16 as the upper half.
template <class T>
void FillFloats(Exact<T>& buffer, bool special, RandomBits& random) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < buffer.size(); ++i) {
    float x = static_cast<int32_t>(random()) / 1e9f;
    if (special && random() % 16 == 0) {
      x = random.Of({kInf, -kInf, NAN, 0.0f, -0.0f, 1e-40f, 3e38f, -3e38f});
    }
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    // Also NaNs that no instruction makes.
    if (special && x != x && random() % 2) bits = 0x7fffffffu;
    if (sizeof(T) == 2) bits >>= 16;
    std::memcpy(buffer.data() + i, &bits, sizeof(T));
  }
}

}  // namespace pax

#endif  // TESTS_CSRC_HOSTILE_H_
