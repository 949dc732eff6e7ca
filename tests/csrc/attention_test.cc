// SPDX-License-Identifier: Apache-2.0
// Checks every instruction set of attention against plain double loops.
#include "csrc/kernels/attention.h"

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
  int64_t batch, length, heads, kv_heads, dims;
  int64_t before, after;
  int64_t segments;
  float soft_cap;
};

struct Problem {
  Case c;
  std::vector<double> query, key, value, dout;
  std::vector<int32_t> ids;

  int64_t Query(int64_t b, int64_t i, int64_t n) const {
    return ((b * c.length + i) * c.heads + n) * c.dims;
  }
  int64_t Key(int64_t b, int64_t j, int64_t n) const {
    const int64_t head = n / (c.heads / c.kv_heads);
    return ((b * c.length + j) * c.kv_heads + head) * c.dims;
  }
  bool Sees(int64_t b, int64_t i, int64_t j) const {
    return (c.before < 0 || j >= i - c.before) &&
           (c.after < 0 || j <= i + c.after) &&
           ids[b * c.length + i] == ids[b * c.length + j];
  }
};

struct Expected {
  explicit Expected(const Problem& p)
      : out(p.query.size()),
        logsumexp(p.c.batch * p.c.heads * p.c.length),
        delta(logsumexp.size()),
        dquery(p.query.size()),
        dkey(p.key.size()),
        dvalue(p.value.size()) {}
  std::vector<double> out, logsumexp, delta, dquery, dkey, dvalue;
};

double Dot(const std::vector<double>& a, int64_t i,
           const std::vector<double>& b, int64_t j, int64_t dims) {
  double sum = 0;
  for (int64_t h = 0; h < dims; ++h) sum += a[i + h] * b[j + h];
  return sum;
}

// The attention of one query, and what its output adds to the gradients.
void ExpectedQuery(const Problem& p, int64_t b, int64_t n, int64_t i,
                   Expected& want) {
  const Case& c = p.c;
  const int64_t q = p.Query(b, i, n), at = (b * c.heads + n) * c.length + i;
  std::vector<double> logits(c.length, -INFINITY), probs(c.length);
  for (int64_t j = 0; j < c.length; ++j) {
    if (!p.Sees(b, i, j)) continue;
    const double l = Dot(p.query, q, p.key, p.Key(b, j, n), c.dims);
    logits[j] = c.soft_cap > 0 ? c.soft_cap * std::tanh(l / c.soft_cap) : l;
  }
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (double l : logits) sum += max == -INFINITY ? 0 : std::exp(l - max);
  want.logsumexp[at] = sum > 0 ? max + std::log(sum) : -INFINITY;
  for (int64_t j = 0; j < c.length; ++j) {
    probs[j] = sum > 0 ? std::exp(logits[j] - max) / sum : 0;
    for (int64_t h = 0; h < c.dims; ++h) {
      want.out[q + h] += probs[j] * p.value[p.Key(b, j, n) + h];
    }
  }
  want.delta[at] = Dot(p.dout, q, want.out, q, c.dims);
  for (int64_t j = 0; j < c.length; ++j) {
    if (probs[j] == 0) continue;
    const int64_t k = p.Key(b, j, n);
    double g = Dot(p.dout, q, p.value, k, c.dims) - want.delta[at];
    g *= probs[j];
    if (c.soft_cap > 0) g *= 1 - std::pow(logits[j] / c.soft_cap, 2);
    for (int64_t h = 0; h < c.dims; ++h) {
      want.dquery[q + h] += g * p.key[k + h];
      want.dkey[k + h] += g * p.query[q + h];
      want.dvalue[k + h] += probs[j] * p.dout[q + h];
    }
  }
}

Expected Reference(const Problem& p) {
  Expected want(p);
  for (int64_t b = 0; b < p.c.batch; ++b) {
    for (int64_t n = 0; n < p.c.heads; ++n) {
      for (int64_t i = 0; i < p.c.length; ++i) ExpectedQuery(p, b, n, i, want);
    }
  }
  return want;
}

template <class Got>
void Check(const Case& c, const char* what, const std::vector<double>& want,
           Got got, double tolerance) {
  double scale = 1e-6;
  for (double w : want)
    scale = std::max(scale, std::isfinite(w) ? std::abs(w) : 0);
  for (size_t i = 0; i < want.size(); ++i) {
    // Infinities are equal; a difference that is NaN is wrong.
    if (want[i] == got(i)) continue;
    if (std::abs(want[i] - got(i)) <= tolerance * scale) continue;
    std::printf("FAIL %s %s at %zu: %g, not %g\n", c.name, what, i,
                static_cast<double>(got(i)), want[i]);
    ++failures;
    return;
  }
}

std::vector<float> Floats(const std::vector<double>& x) {
  return {x.begin(), x.end()};
}

void Run(const Case& c) {
  Random random;
  const int64_t queries = c.batch * c.length * c.heads * c.dims;
  const int64_t keys = c.batch * c.length * c.kv_heads * c.dims;
  Tensor query(c.dtype, queries, 1, random), key(c.dtype, keys, 1, random);
  Tensor value(c.dtype, keys, 1, random), dout(c.dtype, queries, 1, random);
  std::vector<int32_t> ids(c.batch * c.length);
  for (size_t i = 0; i < ids.size(); ++i) {
    // Two segments are sorted; of more, one returns.
    const int64_t position = i % c.length;
    const int64_t segment = position * c.segments / c.length;
    ids[i] = static_cast<int32_t>(
                 c.segments > 2 && position % 29 == 7 ? 1 : segment) -
             1;
  }
  const Problem problem = {c,           query.values, key.values, value.values,
                           dout.values, ids};
  const Expected want = Reference(problem);
  const pax::AttentionInputs in = {
      c.dtype,  c.batch,      c.length,   c.heads,      c.kv_heads,
      c.dims,   query.data(), key.data(), value.data(), ids.data(),
      c.before, c.after,      c.soft_cap};
  if (const char* error = pax::AttentionError(in)) {
    std::printf("FAIL %s: %s\n", c.name, error);
    ++failures;
    return;
  }
  const std::vector<float> logsumexp = Floats(want.logsumexp);
  const std::vector<float> delta = Floats(want.delta);
  const double tolerance = c.dtype == Dtype::kFloat32 ? 2e-5 : 1e-2;
  std::vector<Tensor> first;
  for (const pax::Parallel& parallel : {pax::Serial(), pax::TwoThreads()}) {
    Tensor out = query, dquery = query, dkey = key, dvalue = value;
    std::vector<float> statistics(logsumexp.size(), NAN);
    std::vector<float> sums(pax::AttentionScratch(in), NAN);
    pax::Attention(in, {out.data(), statistics.data()}, parallel);
    pax::AttentionGradient(
        in,
        {dout.data(), logsumexp.data(), delta.data(), dquery.data(),
         dkey.data(), dvalue.data(), sums.data()},
        parallel);
    const auto check = [&](const char* what, const std::vector<double>& wanted,
                           const Tensor& got) {
      Check(
          c, what, wanted, [&](size_t i) { return got.stored(i); }, tolerance);
    };
    check("out", want.out, out);
    check("dquery", want.dquery, dquery);
    check("dkey", want.dkey, dkey);
    check("dvalue", want.dvalue, dvalue);
    Check(
        c, "logsumexp", want.logsumexp, [&](size_t i) { return statistics[i]; },
        2e-5);
    std::vector<Tensor> results = {out, dquery, dkey, dvalue};
    for (size_t i = 0; i < first.size(); ++i) {
      for (int64_t e = 0; e < static_cast<int64_t>(results[i].values.size());
           ++e) {
        if (results[i].stored(e) == first[i].stored(e)) continue;
        std::printf("FAIL %s: threads change result %zu\n", c.name, i);
        ++failures;
        break;
      }
    }
    if (first.empty()) first = results;
  }
}

void ExpectError(const char* name, pax::AttentionInputs in) {
  if (pax::AttentionError(in)) return;
  std::printf("FAIL %s is no error\n", name);
  ++failures;
}

void CheckErrors() {
  pax::AttentionInputs in = {};
  in.batch = in.length = in.heads = in.kv_heads = in.dims = 4;
  if (const char* error = pax::AttentionError(in)) {
    std::printf("FAIL valid sizes: %s\n", error);
    ++failures;
  }
  pax::AttentionInputs bad = in;
  bad.kv_heads = 3;
  ExpectError("3 heads of keys", bad);
  bad.kv_heads = 0;
  ExpectError("no head of keys", bad);
  bad = in;
  bad.length = -1;
  ExpectError("a negative length", bad);
  bad.length = int64_t{1} << 40;
  ExpectError("a long sequence", bad);
  bad = in;
  bad.batch = int64_t{1} << 58;
  ExpectError("a large batch", bad);
  bad = in;
  bad.soft_cap = NAN;
  ExpectError("a cap of NaN", bad);
}

int RunAll() {
  const Dtype f = Dtype::kFloat32, h = Dtype::kBfloat16;
  const int64_t all = -1;
  const Case cases[] = {
      {"one", f, 1, 1, 1, 1, 1, all, 0, 1, 0},
      {"causal", f, 2, 128, 2, 2, 64, all, 0, 1, 0},
      {"both directions", f, 1, 128, 2, 2, 32, all, all, 1, 0},
      {"both directions, odd", f, 1, 100, 2, 1, 24, all, all, 1, 0},
      {"two segments", f, 1, 250, 1, 1, 16, all, all, 2, 0},
      {"no length", f, 2, 0, 2, 2, 32, all, 0, 1, 0},
      {"no heads", f, 2, 8, 0, 0, 32, all, 0, 1, 0},
      {"odd", f, 2, 333, 6, 2, 37, all, 0, 3, 0},
      {"odd, capped", f, 2, 131, 3, 1, 20, all, 0, 3, 5},
      {"wide cap", f, 2, 131, 3, 1, 20, all, 0, 3, 1e6f},
      {"window", f, 1, 333, 2, 1, 40, 70, 0, 1, 0},
      {"window to both sides", f, 1, 300, 2, 2, 16, 33, 65, 4, 2},
      {"only later keys", f, 1, 200, 1, 1, 16, 0, 1, 1, 0},
      {"many blocks of keys", f, 1, 600, 1, 1, 8, all, 0, 2, 0},
      {"wide heads", f, 1, 70, 2, 1, 160, all, 0, 1, 0},
      {"bf16", h, 2, 128, 2, 2, 64, all, 0, 1, 0},
      {"bf16 odd", h, 2, 333, 6, 2, 37, all, 0, 3, 5},
      {"bf16 window", h, 1, 300, 2, 1, 40, 33, 65, 4, 0},
  };
  std::printf("%s\n", pax::SelectTileOps(f).name);
  for (const Case& c : cases) Run(c);
  CheckErrors();
  std::printf(failures ? "%d failed\n" : "all passed\n", failures);
  std::fflush(stdout);
  return failures ? 1 : 0;
}

}  // namespace

int main() { return pax::RunWithEachInstructionSet(RunAll); }
