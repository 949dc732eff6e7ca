// SPDX-License-Identifier: Apache-2.0
// Checks every instruction set of adam against plain loops, on buffers of
// exactly the documented sizes, for one thread and two, and in place.
#include "csrc/kernels/adam.h"

#include <cmath>
#include <cstdio>
#include <cstring>

#include "tests/csrc/hostile.h"
#include "tests/csrc/instruction_sets.h"
#include "tests/csrc/tensors.h"

namespace {

using pax::Exact;
using pax::RandomBits;
using Floats = Exact<float>;

constexpr float kEpsilon = 1e-6f;

int failures = 0;

void Fail(const char* what, int64_t rows, int64_t size, int64_t i) {
  std::printf("FAIL %s: %lld x %lld at %lld\n", what,
              static_cast<long long>(rows), static_cast<long long>(size),
              static_cast<long long>(i));
  ++failures;
}

// Whether `got` is the rounded sum of these terms, of which one may be fused.
bool IsSum(float got, float a, float b) {
  const float want = a + b;
  if (want != want) return got != got;
  return got == want ||
         std::abs(got - want) <= 2e-7f * (std::abs(a) + std::abs(b)) + 1e-44f;
}

bool IsSame(float got, float want) {
  return got == want || (got != got && want != want);
}

struct Case {
  int64_t rows;
  int64_t size;
  float epsilon_root;
  bool inf_to_nan;
  bool special;
};

// The operands of a call, or its results, with the step as gradient.
struct Arrays {
  explicit Arrays(const Case& c)
      : beta1(c.rows, 0),
        beta2(c.rows, 0),
        gradient(c.rows * c.size, 0),
        m(c.rows * c.size, 0),
        v(c.rows * c.size, 0) {
    RandomBits random;
    for (int64_t r = 0; r < c.rows; ++r) {
      beta1.data()[r] = r == 1 ? 0.0f : 0.9f;
      beta2.data()[r] = 0.99f + 0.001f * r;
    }
    pax::FillFloats(gradient, c.special, random);
    pax::FillFloats(m, c.special, random);
    pax::FillFloats(v, c.special, random);
    for (int64_t i = 0; i < v.size() && !c.special; ++i) {
      v.data()[i] = std::abs(v.data()[i]);
    }
  }
  Floats beta1, beta2, gradient, m, v;
};

void Run(const Case& c, const Arrays& in, const Arrays& out,
         const pax::Parallel& parallel) {
  pax::RunAdam(
      {c.rows, c.size, kEpsilon, c.epsilon_root, c.inf_to_nan, in.beta1.data(),
       in.beta2.data(), in.gradient.data(), in.m.data(), in.v.data(),
       out.gradient.data(), out.m.data(), out.v.data()},
      parallel);
}

// Checks the results against operands that still have their values.
void CheckValues(const Case& c, const Arrays& in, const Arrays& out) {
  for (int64_t i = 0; i < c.rows * c.size; ++i) {
    const float beta1 = in.beta1.data()[i / c.size];
    const float beta2 = in.beta2.data()[i / c.size];
    float g = in.gradient.data()[i];
    if (c.inf_to_nan && std::isinf(g)) g = NAN;
    const float m = out.m.data()[i], v = out.v.data()[i];
    if (!IsSum(m, beta1 * in.m.data()[i], (1.0f - beta1) * g)) {
      return Fail("m", c.rows, c.size, i);
    }
    if (!IsSum(v, beta2 * in.v.data()[i], (1.0f - beta2) * (g * g))) {
      return Fail("v", c.rows, c.size, i);
    }
    const float step = m / (std::sqrt(v + c.epsilon_root) + kEpsilon);
    if (!IsSame(out.gradient.data()[i], step)) {
      return Fail("step", c.rows, c.size, i);
    }
  }
}

void Check(const Case& c) {
  const Arrays in(c), out(c), by_two(c), in_place(c);
  Run(c, in, out, pax::Serial());
  CheckValues(c, in, out);
  Run(c, in, by_two, pax::TwoThreads());
  Run(c, in_place, in_place, pax::TwoThreads());
  for (const Arrays* other : {&by_two, &in_place}) {
    if (!(other->m == out.m && other->v == out.v &&
          other->gradient == out.gradient)) {
      Fail(other == &by_two ? "threads" : "in place", c.rows, c.size, 0);
    }
  }
}

int RunAll() {
  for (const int64_t rows : {0, 1, 3}) {
    for (const int64_t size :
         {0, 1, 3, 4, 7, 8, 15, 16, 17, 100, 16383, 16384, 16385, 50001}) {
      for (const bool special : {false, true}) {
        Check({rows, size, 0.0f, true, special});
        Check({rows, size, 1e-3f, false, special});
      }
    }
  }
  std::printf(failures ? "%d failed\n" : "all passed\n", failures);
  std::fflush(stdout);
  return failures ? 1 : 0;
}

}  // namespace

int main() { return pax::RunWithEachInstructionSet(RunAll); }
