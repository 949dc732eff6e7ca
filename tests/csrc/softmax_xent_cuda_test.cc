// SPDX-License-Identifier: Apache-2.0
// Runs the CUDA kernel of softmax_xent on the host and checks it against plain
// double loops. It finds wrong indices and results, and barriers that not all
// threads reach; not races, which only a GPU has.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "csrc/kernels/softmax_xent.cu"
#include "tests/csrc/tensors.h"

namespace {

int failures = 0;

struct Case {
  const char* name;
  int64_t tokens, vocab;
  float soft_cap, label_smoothing, z_loss_weight;
  bool in_place;
};

struct Rows {
  std::vector<float> logits, xent_weight, logsumexp_weight;
  std::vector<int32_t> labels;
};

struct Results {
  explicit Results(const Case& c)
      : xent(c.tokens, NAN),
        logsumexp(c.tokens, NAN),
        argmax(c.tokens, -7),
        gradient(c.tokens * c.vocab, NAN) {}
  std::vector<float> xent, logsumexp;
  std::vector<int32_t> argmax;
  std::vector<float> gradient;
};

Rows RandomRows(const Case& c) {
  pax::Random random;
  Rows rows;
  for (int64_t i = 0; i < c.tokens * c.vocab; ++i) {
    rows.logits.push_back((c.soft_cap > 0 ? c.soft_cap : 9.0f) * random());
  }
  for (int64_t n = 0; n < c.tokens; ++n) {
    rows.xent_weight.push_back(random());
    rows.logsumexp_weight.push_back(random());
    rows.labels.push_back(n % 4 == 3 ? -1
                                     : static_cast<int32_t>(n * 37 % c.vocab));
  }
  return rows;
}

// Computes the results; those of `in_place` overwrite the logits.
Results Launch(const Case& c, Rows& rows) {
  Results got(c);
  float* gradient = c.in_place ? rows.logits.data() : got.gradient.data();
  const cudaError_t error = pax::LaunchSoftmaxXentRows(
      {c.tokens, c.vocab, rows.logits.data(), rows.labels.data(),
       rows.xent_weight.data(), rows.logsumexp_weight.data(), c.soft_cap,
       c.label_smoothing, c.z_loss_weight, got.xent.data(),
       got.logsumexp.data(), got.argmax.data(), gradient},
      nullptr);
  if (error != cudaSuccess) {
    std::printf("FAIL %s: error %d\n", c.name, error);
    ++failures;
  }
  if (c.in_place) got.gradient = rows.logits;
  return got;
}

void Check(const Case& c, const char* what, int64_t at, double want,
           double got) {
  // NaN fails.
  if (std::abs(want - got) <= 2e-5 * std::max(1.0, std::abs(want))) return;
  std::printf("FAIL %s %s[%ld]: %g, wanted %g\n", c.name, what,
              static_cast<long>(at), got, want);
  ++failures;
}

void CheckRow(const Case& c, const Rows& rows, const Results& got, int64_t n) {
  const float* logits = rows.logits.data() + n * c.vocab;
  const float* best = std::max_element(logits, logits + c.vocab);
  double sum = 0;
  for (int64_t v = 0; v < c.vocab; ++v) sum += std::exp(logits[v] - *best);
  const double logsumexp = *best + std::log(sum);
  const int32_t label = rows.labels[n];
  const double off = c.vocab > 1 ? c.label_smoothing / (c.vocab - 1) : 0;
  const double weight = label < 0 ? 0 : rows.xent_weight[n];
  const double probability = weight + 2 * c.z_loss_weight * weight * logsumexp +
                             rows.logsumexp_weight[n];
  double xent = logsumexp;
  for (int64_t v = 0; v < c.vocab; ++v) {
    const double q = v == label ? 1.0 - c.label_smoothing : off;
    xent -= q * logits[v];
    double g = probability * std::exp(logits[v] - logsumexp) - weight * q;
    if (c.soft_cap > 0) g *= 1 - std::pow(logits[v] / c.soft_cap, 2);
    const int64_t at = n * c.vocab + v;
    Check(c, "gradient", at, g, got.gradient[at]);
  }
  Check(c, "xent", n, label < 0 ? 0 : xent, got.xent[n]);
  Check(c, "logsumexp", n, logsumexp, got.logsumexp[n]);
  Check(c, "argmax", n, best - logits, got.argmax[n]);
}

void Run(const Case& c) {
  const Rows rows = RandomRows(c);
  Rows operands = rows;
  const Results got = Launch(c, operands);
  for (int64_t n = 0; n < c.tokens; ++n) CheckRow(c, rows, got, n);
}

// A label past the vocabulary, a row without a finite logit, and one with NaN.
void RunNotFinite() {
  const Case c = {"not finite", 3, 8, 0, 0, 0, false};
  Rows rows = RandomRows(c);
  rows.labels = {8, 0, 0};
  std::fill_n(rows.logits.begin() + 8, 8, -INFINITY);
  rows.logits[16 + 5] = NAN;
  const Results got = Launch(c, rows);
  const bool right = std::isnan(got.xent[0]) &&
                     std::isfinite(got.logsumexp[0]) &&
                     got.logsumexp[1] == -INFINITY && got.argmax[1] == 0 &&
                     std::isnan(got.logsumexp[2]) && got.argmax[2] == 5;
  if (right) return;
  std::printf("FAIL %s\n", c.name);
  ++failures;
}

}  // namespace

int main() {
  const Case cases[] = {
      {"four floats a load", 5, 4096, 0, 0, 0, false},
      {"in place", 5, 4096, 0, 0.1f, 1e-2f, true},
      {"one float a load", 5, 2051, 5, 0.1f, 1e-2f, true},
      {"fewer classes than threads", 4, 36, 0, 0.1f, 0, true},
      {"one class", 4, 1, 0, 0, 1e-2f, false},
  };
  for (const Case& c : cases) Run(c);
  RunNotFinite();
  std::printf(failures ? "%d failed\n" : "all passed\n", failures);
  return failures ? 1 : 0;
}
