// SPDX-License-Identifier: Apache-2.0
// Pseudorandom permutations that are evaluated per index.
#ifndef PAX_CSRC_HOST_INDEX_PERMUTATION_H_
#define PAX_CSRC_HOST_INDEX_PERMUTATION_H_

#include <cstdint>

namespace pax {

// Writes the images of `indices` under a permutation of 0 .. size - 1: a
// Feistel network with cycle walking.
//
// Throws std::invalid_argument if an index is outside of the range.
void Permute(const int64_t* indices, int64_t count, int64_t size, uint64_t seed,
             int64_t* out);

}  // namespace pax

#endif  // PAX_CSRC_HOST_INDEX_PERMUTATION_H_
