// SPDX-License-Identifier: Apache-2.0
// softmax_xent on sizes, values and pointers at their limits. Built with
// AddressSanitizer and UndefinedBehaviorSanitizer it also finds every access
// outside of its buffers, which have exactly the documented sizes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <vector>

#include "csrc/kernels/softmax_partial.h"
#include "csrc/kernels/softmax_xent.h"
#include "tests/csrc/hostile.h"
#include "tests/csrc/instruction_sets.h"

namespace {

using pax::Dtype;
using pax::Exact;
using pax::RandomBits;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kMostFloats = int64_t{1} << 22;

int failures = 0;

void Expect(bool ok, const char* what, const pax::SoftmaxXentInputs& in) {
  if (ok) return;
  std::printf("FAIL %s: tokens %lld dims %lld vocab %lld chunk %lld\n", what,
              static_cast<long long>(in.tokens),
              static_cast<long long>(in.dims), static_cast<long long>(in.vocab),
              static_cast<long long>(in.chunk));
  ++failures;
}

// All that one call reads.
template <class T>
struct Operands {
  Operands(const pax::SoftmaxXentInputs& sizes, bool bias, bool special,
           RandomBits& random)
      : x(sizes.tokens * sizes.dims, 0),
        table(sizes.dims * sizes.vocab, 0),
        bias(bias ? sizes.vocab : 0, 0),
        weights(sizes.tokens, 0),
        logsumexp_weights(sizes.tokens, 0),
        labels(sizes.tokens, 0),
        in(sizes) {
    pax::FillFloats(x, special, random);
    pax::FillFloats(table, special, random);
    pax::FillFloats(this->bias, special, random);
    pax::FillFloats(weights, special, random);
    pax::FillFloats(logsumexp_weights, special, random);
    for (int64_t n = 0; n < in.tokens; ++n) {
      const auto vocab = static_cast<int32_t>(in.vocab);
      const auto any = static_cast<int32_t>(random() % vocab);
      labels.data()[n] = random.Of(
          {any, any, any, vocab - 1, vocab, -1, INT32_MAX, INT32_MIN});
    }
    in.x = x.data();
    in.table = table.data();
    in.bias = bias ? this->bias.data() : nullptr;
    in.labels = labels.data();
  }

  Exact<T> x, table;
  Exact<float> bias, weights, logsumexp_weights;
  Exact<int32_t> labels;
  pax::SoftmaxXentInputs in;
};

// All that one call writes, first filled with `fill`.
template <class T>
struct Results {
  Results(const Operands<T>& operands, int fill)
      : xent(operands.in.tokens, fill),
        logsumexp(operands.in.tokens, fill),
        argmax(operands.in.tokens, fill),
        dx(operands.x.size(), fill),
        dtable(operands.table.size(), fill),
        dbias(operands.bias.size(), fill) {
    const auto size = pax::SoftmaxXentWorkspaceFor(operands.in);
    Exact<float> logits(size.logits, fill);
    Exact<float> dtable_sums(size.dtable_sums, fill);
    const pax::SoftmaxXentOutputs out = {xent.data(), logsumexp.data(),
                                         argmax.data()};
    pax::SoftmaxXent(operands.in, out, pax::Serial());
    pax::SoftmaxXentWithGradient(
        operands.in, out,
        {operands.weights.data(), operands.logsumexp_weights.data(), nullptr,
         1e-2f, dx.data(), dtable.data(),
         operands.in.bias ? dbias.data() : nullptr, logits.data(),
         dtable_sums.data()},
        pax::Serial());
  }

  bool operator==(const Results& other) const {
    return xent == other.xent && logsumexp == other.logsumexp &&
           argmax == other.argmax && dx == other.dx && dtable == other.dtable &&
           dbias == other.dbias;
  }

  Exact<float> xent, logsumexp;
  Exact<int32_t> argmax;
  Exact<T> dx, dtable;
  Exact<float> dbias;
};

bool IsSmall(const pax::SoftmaxXentInputs& in) {
  const auto size = pax::SoftmaxXentWorkspaceFor(in);
  const int64_t rows = std::max({in.vocab, in.chunk, in.tokens});
  return size.logits <= kMostFloats && size.dtable_sums <= kMostFloats &&
         rows <= kMostFloats && in.dims <= kMostFloats / rows;
}

template <class T>
void RunAs(const pax::SoftmaxXentInputs& sizes, bool special,
           RandomBits& random) {
  const Operands<T> operands(sizes, random() % 2, special, random);
  const Results<T> zeros(operands, 0);
  const Results<T> ones(operands, 0x7e);
  Expect(zeros == ones, "a result depends on memory before the call", sizes);
  for (int64_t n = 0; n < sizes.tokens; ++n) {
    const int32_t argmax = ones.argmax.data()[n];
    Expect(0 <= argmax && argmax < sizes.vocab, "argmax is no class", sizes);
  }
}

// Sizes are valid and small, or they are rejected.
void Run(const pax::SoftmaxXentInputs& sizes, bool special,
         RandomBits& random) {
  if (pax::SoftmaxXentError(sizes) || !IsSmall(sizes)) return;
  if (sizes.dtype == Dtype::kFloat32) {
    RunAs<float>(sizes, special, random);
  } else {
    RunAs<pax::Bfloat16>(sizes, special, random);
  }
}

pax::SoftmaxXentInputs Sizes(Dtype dtype, int64_t tokens, int64_t dims,
                             int64_t vocab, int64_t chunk) {
  pax::SoftmaxXentInputs in = {};
  in.dtype = dtype;
  in.tokens = tokens;
  in.dims = dims;
  in.vocab = vocab;
  in.chunk = chunk;
  return in;
}

void SmallSizes(RandomBits& random) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16}) {
    for (const int64_t tokens : {0, 1, 31, 33, 67}) {
      for (const int64_t dims : {0, 1, 7, 33, 64}) {
        for (const int64_t vocab : {1, 2, 31, 127, 128, 129, 257}) {
          auto in = Sizes(dtype, tokens, dims, vocab, 32);
          if (tokens > 32 && random() % 2) in.chunk = 64;
          in.transposed = random() % 2;
          in.soft_cap = random.Of({0.0f, 5.0f});
          in.label_smoothing = random.Of({0.0f, 0.1f});
          Expect(!pax::SoftmaxXentError(in), "rejected", in);
          for (const bool special : {false, true}) {
            Run(in, special, random);
          }
        }
      }
    }
  }
}

void HostileSizes(RandomBits& random) {
  const auto limits = {
      int64_t{-1},       int64_t{0},       int64_t{1},
      int64_t{32},       int64_t{1} << 31, (int64_t{1} << 31) - 256,
      int64_t{1} << 32,  int64_t{1} << 57, (int64_t{1} << 57) + 32,
      int64_t{1} << 58,  int64_t{1} << 62, (int64_t{1} << 62) + 32,
      (INT64_MAX - 127), (INT64_MAX - 31), INT64_MAX,
      INT64_MIN,         (INT64_MIN + 32),
  };
  for (int i = 0; i < 20000; ++i) {
    const auto in =
        Sizes(random.Of({Dtype::kFloat32, Dtype::kBfloat16}), random.Of(limits),
              random.Of(limits), random.Of(limits), random.Of(limits));
    const char* error = pax::SoftmaxXentError(in);
    if (in.tokens < 0 || in.dims < 0 || in.vocab < 1 || in.chunk < 32 ||
        in.vocab > INT32_MAX ||
        in.chunk - 31 > std::max<int64_t>(in.tokens, 1)) {
      Expect(error != nullptr, "accepted", in);
    }
    Run(in, false, random);
  }
}

// The reduction of a row by the CUDA kernel, by its own header.
void Partials(RandomBits& random) {
  for (int i = 0; i < 2000; ++i) {
    std::vector<float> logits(1 + random() % 70);
    for (float& x : logits) {
      x = random.Of({1.0f, 2.0f, -3.0f, -kInf, -kInf, 80.0f, -1e30f});
      if (i % 2 && random() % 30 == 0) x = random.Of({kInf, NAN});
      if (i % 7 == 0) x = -kInf;
    }
    constexpr int kThreads = 8;
    std::vector<pax::SoftmaxPartial> threads(kThreads, pax::EmptyPartial());
    for (size_t v = 0; v < logits.size(); ++v) {
      auto& p = threads[v % kThreads];
      p = pax::Join(p, pax::PartialOf(logits[v], static_cast<int32_t>(v)));
    }
    pax::SoftmaxPartial p = pax::EmptyPartial();
    for (const auto& thread : threads) p = pax::Join(thread, p);

    const auto nan = std::find_if(logits.begin(), logits.end(),
                                  [](float x) { return x != x; });
    const auto best = nan != logits.end()
                          ? nan
                          : std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (float x : logits) sum += std::exp(static_cast<double>(x) - *best);
    const double want =
        std::isfinite(*best) ? *best + std::log(sum) : double{*best};
    const double got = pax::LogSumExp(p.max, p.sum);
    const bool equal = got == want || (got != got && want != want) ||
                       std::abs(got - want) <= 1e-5 * std::abs(want);
    if (!equal || p.argmax != best - logits.begin()) {
      std::printf("FAIL partials: %g, want %g; argmax %d\n", got, want,
                  p.argmax);
      ++failures;
    }
  }
}

int RunAll() {
  RandomBits random;
  std::printf("float32: %s, bfloat16: %s\n",
              pax::SelectTileOps(Dtype::kFloat32).name,
              pax::SelectTileOps(Dtype::kBfloat16).name);
  SmallSizes(random);
  HostileSizes(random);
  Partials(random);
  std::printf(failures ? "%d failed\n" : "all passed\n", failures);
  std::fflush(stdout);
  return failures ? 1 : 0;
}

}  // namespace

int main() { return pax::RunWithEachInstructionSet(RunAll); }
