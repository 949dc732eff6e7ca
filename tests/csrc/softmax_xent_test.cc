// SPDX-License-Identifier: Apache-2.0
// Checks every instruction set of softmax_xent against plain double loops.
#include "csrc/kernels/softmax_xent.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "tests/csrc/instruction_sets.h"
#include "tests/csrc/tensors.h"

namespace {

using pax::Dtype;
using pax::Random;
using pax::Tensor;

int failures = 0;

struct Case {
  const char* name;
  Dtype dtype;
  int64_t tokens, dims, vocab, chunk;
  bool transposed, bias;
  float soft_cap, label_smoothing, z_loss_weight;
  bool masked = false;  // a bias of -infinity masks the second strip of classes
};

struct Expected {
  std::vector<double> xent, logsumexp, dx, dtable, dbias;
  std::vector<int32_t> argmax;
};

struct Problem {
  Case c;
  std::vector<double> x, table, bias, weight, lse_weight;
  std::vector<int32_t> labels;
  int64_t At(int64_t d, int64_t v) const {
    return c.transposed ? v * c.dims + d : d * c.vocab + v;
  }
};

void ExpectedToken(const Problem& p, int64_t n, Expected& want) {
  const Case& c = p.c;
  std::vector<double> logits(c.vocab);
  for (int64_t v = 0; v < c.vocab; ++v) {
    double l = p.bias[v];
    for (int64_t d = 0; d < c.dims; ++d) {
      l += p.x[n * c.dims + d] * p.table[p.At(d, v)];
    }
    logits[v] = c.soft_cap > 0 ? c.soft_cap * std::tanh(l / c.soft_cap) : l;
  }
  const auto best = std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (double l : logits) sum += std::exp(l - *best);
  const double lse = *best + std::log(sum);
  want.logsumexp[n] = lse;
  want.argmax[n] = static_cast<int32_t>(best - logits.begin());
  const int32_t label = p.labels[n];
  const double off = c.label_smoothing / (c.vocab - 1);
  const double weight = label < 0 ? 0 : p.weight[n];
  const double normalizer =
      weight + 2 * c.z_loss_weight * weight * lse + p.lse_weight[n];
  want.xent[n] = label < 0 ? 0 : lse;
  for (int64_t v = 0; v < c.vocab; ++v) {
    const double q = v == label ? 1 - c.label_smoothing : off;
    if (label >= 0 && q > 0) want.xent[n] -= q * logits[v];
    double g = normalizer * std::exp(logits[v] - lse) - weight * q;
    if (c.soft_cap > 0) g *= 1 - std::pow(logits[v] / c.soft_cap, 2);
    want.dbias[v] += g;
    for (int64_t d = 0; d < c.dims; ++d) {
      want.dx[n * c.dims + d] += g * p.table[p.At(d, v)];
      want.dtable[p.At(d, v)] += g * p.x[n * c.dims + d];
    }
  }
}

Expected Reference(const Problem& p) {
  Expected want;
  want.xent.resize(p.c.tokens);
  want.logsumexp.resize(p.c.tokens);
  want.argmax.resize(p.c.tokens);
  want.dx.resize(p.c.tokens * p.c.dims);
  want.dtable.resize(p.c.dims * p.c.vocab);
  want.dbias.resize(p.c.vocab);
  for (int64_t n = 0; n < p.c.tokens; ++n) ExpectedToken(p, n, want);
  return want;
}

template <class Got>
void Check(const Case& c, const char* what, const std::vector<double>& want,
           Got got, double tolerance) {
  double worst = 0, scale = 1e-6;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(want[i] - got(i));
    worst = error <= worst ? worst : error;  // NaN is kept
    scale = std::max(scale, std::abs(want[i]));
  }
  if (worst <= tolerance * scale) return;
  std::printf("FAIL %s %s: off by %g of %g\n", c.name, what, worst, scale);
  ++failures;
}

void Run(const Case& c) {
  Random random;
  Tensor x(c.dtype, c.tokens * c.dims, 1, random);
  Tensor table(c.dtype, c.dims * c.vocab, 1, random);
  Tensor bias(Dtype::kFloat32, c.vocab, c.bias ? 1 : 0, random);
  Tensor weight(Dtype::kFloat32, c.tokens, 1, random);
  Tensor lse_weight(Dtype::kFloat32, c.tokens, 1, random);
  std::vector<int32_t> labels(c.tokens);
  for (int64_t n = 0; n < c.tokens; ++n) {
    const int64_t classes = c.masked ? pax::kStrip : c.vocab;
    labels[n] = n % 7 == 3 ? -1 : static_cast<int32_t>(n * 37 % classes);
  }
  for (int64_t v = 0; c.masked && v < pax::kStrip; ++v) {
    bias.values[pax::kStrip + v] = bias.floats[pax::kStrip + v] = -INFINITY;
  }
  const Expected want = Reference({c, x.values, table.values, bias.values,
                                   weight.values, lse_weight.values, labels});

  const pax::SoftmaxXentInputs in = {c.dtype,
                                     c.tokens,
                                     c.dims,
                                     c.vocab,
                                     x.data(),
                                     table.data(),
                                     c.transposed,
                                     c.bias ? bias.floats.data() : nullptr,
                                     labels.data(),
                                     c.soft_cap,
                                     c.label_smoothing,
                                     c.chunk};
  std::vector<float> xent(c.tokens), lse(c.tokens), dbias(c.vocab);
  std::vector<int32_t> argmax(c.tokens);
  const pax::SoftmaxXentOutputs out = {xent.data(), lse.data(), argmax.data()};
  const double tolerance = 2e-5;
  const auto check_outputs = [&] {
    Check(c, "xent", want.xent, [&](size_t i) { return xent[i]; }, tolerance);
    Check(
        c, "lse", want.logsumexp, [&](size_t i) { return lse[i]; }, tolerance);
    if (argmax != want.argmax) {
      std::printf("FAIL %s argmax\n", c.name);
      ++failures;
    }
  };
  pax::SoftmaxXent(in, out, pax::Serial());
  check_outputs();

  Tensor dx = x, dtable = table;
  const auto size = pax::SoftmaxXentWorkspaceFor(in);
  std::vector<float> logits(size.logits), sums(size.dtable_sums, NAN);
  std::fill(xent.begin(), xent.end(), NAN);
  pax::SoftmaxXentWithGradient(
      in, out,
      {weight.floats.data(), lse_weight.floats.data(), nullptr, c.z_loss_weight,
       dx.data(), dtable.data(), dbias.data(), logits.data(), sums.data()},
      pax::TwoThreads());
  check_outputs();
  const double loose = c.dtype == Dtype::kFloat32 ? 2e-5 : 1e-2;
  Check(c, "dx", want.dx, [&](size_t i) { return dx.stored(i); }, loose);
  Check(
      c, "dtable", want.dtable, [&](size_t i) { return dtable.stored(i); },
      loose);
  Check(c, "dbias", want.dbias, [&](size_t i) { return dbias[i]; }, loose);
}

int RunAll() {
  const Dtype f = Dtype::kFloat32, h = Dtype::kBfloat16;
  const Case cases[] = {
      {"f32", f, 96, 64, 512, 32, false, false, 0, 0, 0},
      {"f32 odd", f, 45, 37, 301, 32, false, true, 5, 0.1f, 1e-2f},
      {"f32 odd transposed", f, 45, 37, 301, 32, true, true, 5, 0.1f, 1e-2f},
      {"f32 one chunk", f, 45, 33, 130, 64, true, false, 0, 0, 1e-2f},
      {"bf16", h, 96, 64, 512, 32, false, false, 0, 0, 0},
      {"bf16 odd", h, 45, 37, 301, 32, false, true, 5, 0.1f, 1e-2f},
      {"bf16 odd transposed", h, 45, 37, 301, 32, true, true, 5, 0.1f, 1e-2f},
      {"bf16 one chunk", h, 45, 33, 130, 64, false, false, 0, 0, 1e-2f},
      {"f32 tiny", f, 1, 1, 2, 32, false, false, 0, 0, 0},
      {"f32 masked strip", f, 45, 37, 301, 32, false, true, 0, 0, 0, true},
      {"bf16 masked strip", h, 45, 37, 301, 32, true, true, 0, 0, 0, true},
      {"f32 wide cap", f, 45, 37, 301, 32, false, true, 1e6f, 0, 0},
      {"f32 blocks of dx", f, 300, 150, 140, 320, false, false, 0, 0, 0},
      {"bf16 blocks of dx", h, 300, 150, 140, 320, true, false, 0, 0, 0},
  };
  std::printf("float32: %s, bfloat16: %s\n", pax::SelectTileOps(f).name,
              pax::SelectTileOps(h).name);
  for (const Case& c : cases) Run(c);
  std::printf(failures ? "%d failed\n" : "all passed\n", failures);
  std::fflush(stdout);
  return failures ? 1 : 0;
}

}  // namespace

int main() { return pax::RunWithEachInstructionSet(RunAll); }
