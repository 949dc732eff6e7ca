// SPDX-License-Identifier: Apache-2.0
// Packing of random and of hostile lengths. Built with AddressSanitizer and
// UndefinedBehaviorSanitizer it also finds every access outside of its arrays.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <limits>
#include <new>
#include <stdexcept>
#include <vector>

#include "csrc/host/index_permutation.h"
#include "csrc/host/packing.h"

namespace {

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
// Pieces that a case may have; more would only take memory.
constexpr int64_t kManyPieces = 1 << 16;

int failures = 0;

void Expect(bool ok, const char* what, int64_t detail) {
  if (ok) return;
  std::printf("FAIL %s: %lld\n", what, static_cast<long long>(detail));
  ++failures;
}

class Random {
 public:
  uint64_t operator()() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return state_ >> 20;
  }
  int64_t Of(std::initializer_list<int64_t> values) {
    return values.begin()[(*this)() % values.size()];
  }

 private:
  uint64_t state_ = 42;
};

// Whether the arguments are within the limits of Pack; counts the pieces.
bool AreValid(const std::vector<int64_t>& lengths, int64_t seq_len,
              int64_t block_size, int64_t* pieces) {
  *pieces = 0;
  if (seq_len < 1 || seq_len > pax::kMaxSeqLen || block_size < 1) return false;
  for (int64_t length : lengths) {
    if (length < 1) continue;
    const int64_t count = (length - 1) / seq_len + 1;
    if (count > pax::kMaxPieces - *pieces) return false;
    *pieces += count;
  }
  return true;
}

void CheckPlan(const pax::PackingPlan& plan,
               const std::vector<int64_t>& lengths, int64_t seq_len,
               int64_t pieces) {
  const auto size = static_cast<int64_t>(plan.documents.size());
  Expect(size == pieces, "number of pieces", size);
  Expect(plan.row_starts.front() == 0 && plan.row_starts.back() == size,
         "row_starts", size);
  std::vector<int64_t> rest(lengths);
  for (int64_t& length : rest) length = std::max<int64_t>(length, 0);
  for (size_t row = 0; row + 1 < plan.row_starts.size(); ++row) {
    int64_t column = 0;
    for (int64_t i = plan.row_starts[row]; i < plan.row_starts[row + 1]; ++i) {
      Expect(plan.columns[i] == column, "column", plan.columns[i]);
      column += plan.lengths[i];
      rest[plan.documents[i]] -= plan.lengths[i];
    }
    Expect(column > 0 && column <= seq_len, "length of a row", column);
  }
  for (int64_t length : rest) Expect(length == 0, "labels left", length);
}

// The memory of a batch, which is not initialized as padding.
struct Arrays {
  Arrays(int64_t num_rows, int64_t seq_len)
      : num_rows(num_rows), seq_len(seq_len) {
    for (auto* array : {&ids, &labels, &segment_ids, &segment_pos}) {
      array->assign(num_rows * seq_len, -1);
    }
    for (auto* array : {&paddings, &weights}) {
      array->assign(num_rows * seq_len, -1);
    }
  }

  pax::Batch batch() {
    return {ids.data(),         labels.data(),   segment_ids.data(),
            segment_pos.data(), paddings.data(), weights.data(),
            num_rows,           seq_len};
  }

  int64_t num_rows, seq_len;
  std::vector<int32_t> ids, labels, segment_ids, segment_pos;
  std::vector<float> paddings, weights;
};

// Writes the rows of a plan of documents that hold `lengths` + 1 tokens.
void CheckRows(const pax::PackingPlan& plan,
               const std::vector<int64_t>& lengths, int64_t seq_len) {
  std::vector<int64_t> starts = {0};
  for (int64_t length : lengths) {
    starts.push_back(starts.back() + std::max<int64_t>(length, 0) + 1);
  }
  std::vector<uint16_t> tokens(starts.back(), 7);
  const auto num_rows = static_cast<int64_t>(plan.row_starts.size()) - 1;
  const pax::PackedCorpus<uint16_t> corpus{
      tokens.data(),
      static_cast<int64_t>(tokens.size()),
      starts.data(),
      static_cast<int64_t>(lengths.size()),
      plan.documents.data(),
      plan.offsets.data(),
      plan.lengths.data(),
      plan.columns.data(),
      static_cast<int64_t>(plan.documents.size()),
      plan.row_starts.data(),
      num_rows};
  Arrays arrays(1, seq_len);
  const int64_t place = 0;
  for (int64_t row = 0; row < num_rows; ++row) {
    pax::WriteRows(corpus, &row, &place, 1, arrays.batch());
    Expect(arrays.ids[0] == 7 && arrays.segment_ids[0] == 1, "first position",
           arrays.ids[0]);
    for (int64_t i = 0; i < seq_len; ++i) {
      const bool is_padding = arrays.segment_ids[i] == 0;
      Expect(arrays.ids[i] == (is_padding ? 0 : 7), "id", arrays.ids[i]);
      Expect(arrays.paddings[i] == (is_padding ? 1 : 0), "padding", i);
    }
  }
}

void TestPack(Random& random) {
  const int64_t seq_len =
      random.Of({1, 2, 3, 63, 64, 65, 4096, 4097, pax::kMaxSeqLen, 0, -1,
                 pax::kMaxSeqLen + 1, kLeast, kMost});
  const int64_t block_size = random.Of({1, 2, 7, 64, kMost, 0, kLeast});
  std::vector<int64_t> lengths(random() % 40);
  const bool is_hostile = random() % 4 == 0;
  for (int64_t& length : lengths) {
    length = random.Of({0, 1, 2, seq_len - (seq_len != kLeast), seq_len,
                        static_cast<int64_t>(random() % 300), -1});
    if (length > 1 << 20) length = 5;
    if (is_hostile) {
      length = random.Of({kMost, kLeast, kMost - 1, length, int64_t{1} << 62});
    }
  }
  int64_t pieces = 0;
  const bool is_valid = AreValid(lengths, seq_len, block_size, &pieces);
  if (is_valid && pieces > kManyPieces) return;
  for (auto fit : {pax::Fit::kBestFit, pax::Fit::kFirstFit}) {
    try {
      const auto plan =
          pax::Pack(lengths.data(), static_cast<int64_t>(lengths.size()),
                    seq_len, fit, block_size);
      Expect(is_valid, "invalid arguments were accepted", seq_len);
      CheckPlan(plan, lengths, seq_len, pieces);
      if (!is_hostile && seq_len < 5000) CheckRows(plan, lengths, seq_len);
    } catch (const std::invalid_argument&) {
      Expect(!is_valid, "valid arguments were refused", seq_len);
    }
  }
}

void TestWriteRows(Random& random) {
  std::vector<uint16_t> tokens(random() % 9);
  const auto count = static_cast<int64_t>(tokens.size());
  const auto any = [&] {
    return random.Of({0, 1, 2, 7, 8, 9, -1, count, count - 1, kMost, kLeast});
  };
  const auto index = [&] { return random.Of({0, 0, 0, 0, 1, 2, -1, kMost}); };
  const std::vector<int64_t> starts = {any(), any()};
  const std::vector<int64_t> documents = {index(), index()};
  const std::vector<int64_t> offsets = {any(), any()};
  const auto narrow = [&] { return static_cast<int32_t>(any()); };
  const std::vector<int32_t> lengths = {narrow(), narrow()};
  const std::vector<int32_t> columns = {narrow(), narrow()};
  const std::vector<int64_t> row_starts = {random.Of({0, 0, 1, -1}),
                                           random.Of({1, 2, 2, 3, kMost})};
  const std::vector<int64_t> rows = {index(), index()};
  const std::vector<int64_t> places = {index(), index()};
  Arrays arrays(2, 8);
  try {
    pax::WriteRows(
        pax::PackedCorpus<uint16_t>{tokens.data(), count, starts.data(), 1,
                                    documents.data(), offsets.data(),
                                    lengths.data(), columns.data(), 2,
                                    row_starts.data(), 1},
        rows.data(), places.data(), 2, arrays.batch());
  } catch (const std::out_of_range&) {
  }
}

void TestPermute(Random& random) {
  const int64_t size = random.Of({1, 2, 3, 4, 5, 16, 17, 1000, 0, -1, kMost});
  std::vector<int64_t> indices(std::clamp<int64_t>(size, 0, 1000));
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = i;
  const bool is_hostile = random() % 4 == 0 && !indices.empty();
  if (is_hostile) indices.back() = random.Of({-1, kLeast, size});
  std::vector<int64_t> images(indices.size(), -1);
  try {
    pax::Permute(indices.data(), static_cast<int64_t>(indices.size()), size,
                 random(), images.data());
    Expect(!is_hostile, "an index outside of the range was accepted", size);
  } catch (const std::invalid_argument&) {
    Expect(is_hostile, "an index was refused", size);
    return;
  }
  std::sort(images.begin(), images.end());
  for (size_t i = 0; size <= 1000 && i < images.size(); ++i) {
    Expect(images[i] == static_cast<int64_t>(i), "no permutation", size);
  }
}

}  // namespace

int main() {
  Random random;
  for (int i = 0; i < 1000; ++i) {
    TestPack(random);
    TestWriteRows(random);
    TestPermute(random);
  }
  if (failures == 0) std::printf("PASS\n");
  return failures == 0 ? 0 : 1;
}
