// SPDX-License-Identifier: Apache-2.0
// Checks every instruction set and format of integer_matmul against plain
// loops, on buffers of exactly the documented sizes.
#include "csrc/kernels/integer_matmul.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/csrc/hostile.h"
#include "tests/csrc/instruction_sets.h"

namespace {

using pax::Bfloat16;
using pax::Dtype;
using pax::IntegerFormat;
using pax::RandomBits;

int failures = 0;

float FromBits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// A sixteenth of an integer, exact in bfloat16.
float Activation(RandomBits& random) {
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

constexpr IntegerFormat kFormats[] = {IntegerFormat::kInt8,
                                      IntegerFormat::kInt4InInt8,
                                      IntegerFormat::kInt4InInt32};

// A weight [depth, columns]: its integers, and its bytes as stored.
struct Weight {
  Weight(IntegerFormat format, int64_t depth, int64_t columns,
         RandomBits& random)
      : values(depth * columns) {
    const int64_t rows = pax::RowsPerElement(format);
    const int bits = format == IntegerFormat::kInt8 ? 8 : 4;
    const int64_t bytes = format == IntegerFormat::kInt4InInt32 ? 4 : 1;
    stored.resize(depth / rows * columns * bytes);
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t n = 0; n < columns; ++n) {
        const int value = static_cast<int>(random() % (1u << bits));
        const int sign = 1 << (bits - 1);
        values[k * columns + n] = value < sign ? value : value - 2 * sign;
        const int64_t bit = k % rows * bits;
        const int64_t element = k / rows * columns + n;
        stored[element * bytes + bit / 8] |= value << bit % 8;
      }
    }
  }
  std::vector<int> values;
  std::vector<uint8_t> stored;
};

template <class T>
void Run(Dtype dtype, IntegerFormat format, bool transposed, int64_t rows,
         int64_t depth, int64_t columns) {
  RandomBits random;
  std::vector<T> x(rows * depth), out(rows * columns);
  for (T& value : x) Store(Activation(random), &value);
  const Weight weight = transposed ? Weight(format, columns, depth, random)
                                   : Weight(format, depth, columns, random);
  // The buffers end where their vectors do.
  pax::RunIntegerMatmul({dtype, format, transposed, rows, depth, columns,
                         x.data(), weight.stored.data(), out.data()},
                        pax::Serial());
  const double tolerance = dtype == Dtype::kFloat32 ? 1e-5 : 1e-2;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < columns; ++n) {
      double want = 0, scale = 1;
      for (int64_t k = 0; k < depth; ++k) {
        const int64_t place = transposed ? n * depth + k : k * columns + n;
        const double term = Load(x[r * depth + k]) * weight.values[place];
        want += term;
        scale += std::abs(term);
      }
      if (std::abs(Load(out[r * columns + n]) - want) <= tolerance * scale) {
        continue;
      }
      std::printf("FAIL format %d, %d, %lld x %lld x %lld at %lld, %lld\n",
                  static_cast<int>(format), transposed,
                  static_cast<long long>(rows), static_cast<long long>(depth),
                  static_cast<long long>(columns), static_cast<long long>(r),
                  static_cast<long long>(n));
      ++failures;
      return;
    }
  }
}

int RunAll() {
  for (const IntegerFormat format : kFormats) {
    for (const int64_t rows : {0, 1, 3, 16, 17, 33}) {
      for (const int64_t packed : {0, 1, 7, 8, 16, 65, 80, 264}) {
        if (packed % pax::RowsPerElement(format)) continue;
        for (const int64_t whole : {0, 1, 15, 16, 100, 256, 257}) {
          Run<float>(Dtype::kFloat32, format, false, rows, packed, whole);
          Run<Bfloat16>(Dtype::kBfloat16, format, false, rows, packed, whole);
          Run<float>(Dtype::kFloat32, format, true, rows, whole, packed);
          Run<Bfloat16>(Dtype::kBfloat16, format, true, rows, whole, packed);
        }
      }
    }
  }
  std::printf(failures ? "%d failed\n" : "all passed\n", failures);
  std::fflush(stdout);
  return failures ? 1 : 0;
}

}  // namespace

int main() { return pax::RunWithEachInstructionSet(RunAll); }
