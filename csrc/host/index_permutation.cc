// SPDX-License-Identifier: Apache-2.0
#include "csrc/host/index_permutation.h"

#include <stdexcept>
#include <string>

namespace pax {
namespace {

constexpr int kRounds = 6;

// The finalizer of SplitMix64.
uint64_t Mix(uint64_t value, uint64_t key) {
  uint64_t z = value * 0x9E3779B97F4A7C15u + key;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

int HalfBits(int64_t size) {
  int bits = 0;
  for (int64_t largest = size - 1; largest > 0; largest >>= 1) ++bits;
  return bits < 2 ? 1 : (bits + 1) / 2;
}

}  // namespace

void Permute(const int64_t* indices, int64_t count, int64_t size, uint64_t seed,
             int64_t* out) {
  const int half_bits = HalfBits(size);
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  const uint64_t mixed_seed = Mix(seed, 0);
  uint64_t keys[kRounds];
  for (int i = 0; i < kRounds; ++i) keys[i] = Mix(i, mixed_seed);
  for (int64_t i = 0; i < count; ++i) {
    if (indices[i] < 0 || indices[i] >= size) {
      throw std::invalid_argument("indices must be within 0 and " +
                                  std::to_string(size - 1) + ", got " +
                                  std::to_string(indices[i]));
    }
    auto value = static_cast<uint64_t>(indices[i]);
    do {
      uint64_t left = value >> half_bits;
      uint64_t right = value & mask;
      for (uint64_t key : keys) {
        const uint64_t next = left ^ (Mix(right, key) & mask);
        left = right;
        right = next;
      }
      value = (left << half_bits) | right;
    } while (value >= static_cast<uint64_t>(size));
    out[i] = static_cast<int64_t>(value);
  }
}

}  // namespace pax
