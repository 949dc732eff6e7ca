// SPDX-License-Identifier: Apache-2.0
// Attention on sizes, values, segments and windows at their limits. Built with
// AddressSanitizer and UndefinedBehaviorSanitizer it also finds every access
// outside of its buffers, which have exactly the documented sizes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <initializer_list>

#include "csrc/kernels/attention.h"
#include "tests/csrc/hostile.h"
#include "tests/csrc/instruction_sets.h"

namespace {

using pax::AttentionInputs;
using pax::Dtype;
using pax::Exact;
using pax::RandomBits;

constexpr int64_t kMostFloats = int64_t{1} << 16;

int failures = 0;

void Expect(bool ok, const char* what, const AttentionInputs& in) {
  if (ok) return;
  std::printf(
      "FAIL %s: batch %lld length %lld heads %lld, %lld dims %lld window %lld "
      "%lld\n",
      what, static_cast<long long>(in.batch), static_cast<long long>(in.length),
      static_cast<long long>(in.heads), static_cast<long long>(in.kv_heads),
      static_cast<long long>(in.dims), static_cast<long long>(in.before),
      static_cast<long long>(in.after));
  ++failures;
}

int64_t Queries(const AttentionInputs& in) {
  return in.batch * in.length * in.heads * in.dims;
}

int64_t Keys(const AttentionInputs& in) {
  return in.batch * in.length * in.kv_heads * in.dims;
}

int64_t Rows(const AttentionInputs& in) {
  return in.batch * in.heads * in.length;
}

// All that one call reads.
template <class T>
struct Operands {
  Operands(const AttentionInputs& sizes, bool special, RandomBits& random)
      : query(Queries(sizes), 0),
        key(Keys(sizes), 0),
        value(Keys(sizes), 0),
        dout(Queries(sizes), 0),
        delta(Rows(sizes), 0),
        segment_ids(sizes.batch * sizes.length, 0),
        in(sizes) {
    for (auto* buffer : {&query, &key, &value, &dout}) {
      pax::FillFloats(*buffer, special, random);
    }
    pax::FillFloats(delta, special, random);
    for (int64_t i = 0; i < segment_ids.size(); ++i) {
      segment_ids.data()[i] = random() % 4;
    }
    in.query = query.data();
    in.key = key.data();
    in.value = value.data();
    in.segment_ids = segment_ids.data();
  }

  Exact<T> query, key, value, dout;
  Exact<float> delta;
  Exact<int32_t> segment_ids;
  AttentionInputs in;
};

// All that one call writes, first filled with `fill`.
template <class T>
struct Results {
  Results(const Operands<T>& operands, const AttentionInputs& in, int fill)
      : out(Queries(in), fill),
        logsumexp(Rows(in), fill),
        dquery(Queries(in), fill),
        dkey(Keys(in), fill),
        dvalue(Keys(in), fill) {
    Exact<float> sums(pax::AttentionScratch(in), fill);
    pax::Attention(in, {out.data(), logsumexp.data()}, pax::Serial());
    pax::AttentionGradient(
        in,
        {operands.dout.data(), logsumexp.data(), operands.delta.data(),
         dquery.data(), dkey.data(), dvalue.data(), sums.data()},
        pax::Serial());
  }

  bool operator==(const Results& other) const {
    return out == other.out && logsumexp == other.logsumexp &&
           dquery == other.dquery && dkey == other.dkey &&
           dvalue == other.dvalue;
  }

  Exact<T> out;
  Exact<float> logsumexp;
  Exact<T> dquery, dkey, dvalue;
};

bool IsSmall(const AttentionInputs& in) {
  double most = 1;
  for (const int64_t size : {in.batch, in.length, in.heads, in.dims}) {
    most *= static_cast<double>(std::max<int64_t>(size, 1));
  }
  return most <= kMostFloats && in.kv_heads <= kMostFloats &&
         Keys(in) <= kMostFloats && pax::AttentionScratch(in) <= kMostFloats;
}

template <class T>
void RunAs(const AttentionInputs& sizes, bool special, RandomBits& random) {
  const Operands<T> operands(sizes, special, random);
  const Results<T> want(operands, operands.in, 0);
  const Results<T> again(operands, operands.in, 0x7e);
  Expect(want == again, "a result depends on memory before the call", sizes);

  // A window beyond the sequence is none.
  AttentionInputs wide = operands.in;
  if (wide.before < 0) wide.before = random.Of({wide.length, INT64_MAX});
  if (wide.after < 0) wide.after = random.Of({wide.length, INT64_MAX});
  Expect(want == Results<T>(operands, wide, 0), "wide window", sizes);
  // NaN counts in keys that no query sees, unless their block is skipped.
  if (special) return;

  // Only whether ids are equal counts, also for those that padding may have.
  Exact<int32_t> ids(operands.segment_ids.size(), 0);
  for (int64_t i = 0; i < ids.size(); ++i) {
    constexpr int32_t kOthers[] = {INT32_MIN, INT32_MAX, -1, INT32_MIN + 1};
    ids.data()[i] = kOthers[operands.segment_ids.data()[i]];
  }
  AttentionInputs renamed = operands.in;
  renamed.segment_ids = ids.data();
  Expect(want == Results<T>(operands, renamed, 0), "names of segments", sizes);

  // A query sees its own key: the statistics are finite.
  for (int64_t i = 0; i < want.logsumexp.size(); ++i) {
    Expect(std::isfinite(want.logsumexp.data()[i]), "logsumexp", sizes);
  }
}

// Sizes are valid and small, or they are rejected.
void Run(const AttentionInputs& sizes, bool special, RandomBits& random) {
  if (pax::AttentionError(sizes) || !IsSmall(sizes)) return;
  if (sizes.dtype == Dtype::kFloat32) {
    RunAs<float>(sizes, special, random);
  } else {
    RunAs<pax::Bfloat16>(sizes, special, random);
  }
}

AttentionInputs Sizes(Dtype dtype, int64_t batch, int64_t length, int64_t heads,
                      int64_t kv_heads, int64_t dims) {
  AttentionInputs in = {};
  in.dtype = dtype;
  in.batch = batch;
  in.length = length;
  in.heads = heads;
  in.kv_heads = kv_heads;
  in.dims = dims;
  in.before = in.after = -1;
  return in;
}

void SmallSizes(RandomBits& random) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16}) {
    for (const int64_t length : {0, 1, 31, 33, 64, 200}) {
      for (const int64_t dims : {0, 1, 7, 33, 64}) {
        for (const int64_t group : {0, 1, 3}) {
          auto in =
              Sizes(dtype, random.Of({0, 1, 2}), length, 2 * group, 2, dims);
          in.before = random.Of<int64_t>({-1, 0, 1, 40, INT64_MIN});
          in.after = random.Of<int64_t>({-1, 0, 1, 40, INT64_MIN});
          in.soft_cap = random.Of({0.0f, 5.0f, 1e-30f, 1e30f});
          Expect(!pax::AttentionError(in), "rejected", in);
          for (const bool special : {false, true}) Run(in, special, random);
        }
      }
    }
  }
}

void HostileSizes(RandomBits& random) {
  const auto limits = {
      int64_t{-1},       int64_t{0},       int64_t{1},
      int64_t{3},        int64_t{64},      (int64_t{1} << 29) - 1,
      int64_t{1} << 29,  int64_t{1} << 31, int64_t{1} << 32,
      int64_t{1} << 57,  int64_t{1} << 62, (int64_t{1} << 62) + 32,
      (INT64_MAX - 127), INT64_MAX,        INT64_MIN,
      INT64_MIN + 32,
  };
  for (int i = 0; i < 20000; ++i) {
    auto in = Sizes(random.Of({Dtype::kFloat32, Dtype::kBfloat16}),
                    random.Of(limits), random.Of(limits), random.Of(limits),
                    random.Of(limits), random.Of(limits));
    in.before = random.Of(limits);
    in.after = random.Of(limits);
    const char* error = pax::AttentionError(in);
    if (in.batch < 0 || in.length < 0 || in.heads < 0 || in.kv_heads < 0 ||
        in.dims < 0 || in.length >= int64_t{1} << 29 ||
        (in.kv_heads > 0 && in.heads % in.kv_heads != 0)) {
      Expect(error != nullptr, "accepted", in);
    }
    Run(in, false, random);
  }
}

int RunAll() {
  RandomBits random;
  std::printf("%s\n", pax::SelectTileOps(Dtype::kFloat32).name);
  SmallSizes(random);
  HostileSizes(random);
  std::printf(failures ? "%d failed\n" : "all passed\n", failures);
  std::fflush(stdout);
  return failures ? 1 : 0;
}

}  // namespace

int main() { return pax::RunWithEachInstructionSet(RunAll); }
