// SPDX-License-Identifier: Apache-2.0
// Checks every instruction set of int8_matmul against plain loops, on buffers
// of exactly the documented sizes.
#include "csrc/kernels/int8_matmul.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/csrc/instruction_sets.h"

namespace {

using pax::Bfloat16;
using pax::Dtype;

int failures = 0;

class Random {
 public:
  uint32_t operator()() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }

 private:
  uint64_t state_ = 42;
};

float FromBits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// A sixteenth of an integer, exact in bfloat16.
float Activation(Random& random) {
  return (static_cast<int>(random() % 256) - 128) / 16.0f;
}

void Store(float value, float* to) { *to = value; }

void Store(float value, Bfloat16* to) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  to->bits = static_cast<uint16_t>(bits >> 16);
}

float Load(float from) { return from; }
float Load(Bfloat16 from) { return FromBits(uint32_t{from.bits} << 16); }

template <class T>
void Run(Dtype dtype, int64_t rows, int64_t depth, int64_t columns) {
  Random random;
  std::vector<T> x(rows * depth), out(rows * columns);
  std::vector<int8_t> w(depth * columns);
  for (T& value : x) Store(Activation(random), &value);
  for (int8_t& value : w) value = static_cast<int8_t>(random());
  // The buffers end where their vectors do.
  pax::RunInt8Matmul(
      {dtype, rows, depth, columns, x.data(), w.data(), out.data()},
      pax::Serial());
  const double tolerance = dtype == Dtype::kFloat32 ? 1e-5 : 1e-2;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < columns; ++n) {
      double want = 0, scale = 1;
      for (int64_t k = 0; k < depth; ++k) {
        const double term = Load(x[r * depth + k]) * w[k * columns + n];
        want += term;
        scale += std::abs(term);
      }
      if (std::abs(Load(out[r * columns + n]) - want) <= tolerance * scale) {
        continue;
      }
      std::printf("FAIL %lld x %lld x %lld at %lld, %lld\n",
                  static_cast<long long>(rows), static_cast<long long>(depth),
                  static_cast<long long>(columns), static_cast<long long>(r),
                  static_cast<long long>(n));
      ++failures;
      return;
    }
  }
}

int RunAll() {
  for (const int64_t rows : {0, 1, 3, 16, 17, 33}) {
    for (const int64_t depth : {0, 1, 7, 8, 65}) {
      for (const int64_t columns : {0, 1, 15, 16, 100, 512, 513}) {
        Run<float>(Dtype::kFloat32, rows, depth, columns);
        Run<Bfloat16>(Dtype::kBfloat16, rows, depth, columns);
      }
    }
  }
  std::printf(failures ? "%d failed\n" : "all passed\n", failures);
  std::fflush(stdout);
  return failures ? 1 : 0;
}

}  // namespace

int main() { return pax::RunWithEachInstructionSet(RunAll); }
