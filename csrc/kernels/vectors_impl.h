// SPDX-License-Identifier: Apache-2.0
// Vectors of an instruction set, their arithmetic and element types.
// Included by tiles_impl.h, once per instruction set.

namespace pax {
namespace {

typedef float Vec __attribute__((vector_size(PAX_VECTOR_BYTES)));
typedef int32_t IntVec __attribute__((vector_size(PAX_VECTOR_BYTES)));
typedef uint32_t WordVec __attribute__((vector_size(PAX_VECTOR_BYTES)));
typedef uint16_t HalfVec __attribute__((vector_size(PAX_VECTOR_BYTES / 2)));
typedef float Vec8 __attribute__((vector_size(32)));

constexpr int64_t kLanes = PAX_VECTOR_BYTES / 4;
constexpr int64_t kVecs = kBlock / kLanes;
constexpr int64_t kStripVecs = kVecs * kPanels;
// Bytes of the L1 and L2 cache for reused operands.
constexpr int64_t kCacheBytes = 32 * 1024;
constexpr int64_t kSecondCacheBytes = 256 * 1024;
constexpr int64_t kCacheLine = 64;
constexpr float kInfinity = __builtin_inff();

PAX_INLINE int64_t Clip(int64_t n, int64_t most) { return n < most ? n : most; }

template <class V>
PAX_INLINE V Load(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof(V));
  return v;
}

template <class V>
PAX_INLINE void Store(void* to, const V& v) {
  std::memcpy(to, &v, sizeof(V));
}

PAX_INLINE Vec Splat(float x) { return Vec{} + x; }

PAX_INLINE IntVec Iota() {
  IntVec v;
  for (int i = 0; i < kLanes; ++i) v[i] = i;
  return v;
}

PAX_INLINE Vec Sqrt(Vec x) {
#if !defined(__x86_64__)
  for (int i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#elif PAX_VECTOR_BYTES == 64
  // GCC 12 warns of the unmasked one's undefined operand.
  return (Vec)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);
#elif PAX_VECTOR_BYTES == 32
  return (Vec)_mm256_sqrt_ps((__m256)x);
#else
  return (Vec)_mm_sqrt_ps((__m128)x);
#endif
}

// e^x = scale + scale * rest.
struct ExpParts {
  WordVec exponent;  // of scale, a power of two, without the bias
  Vec rest;          // e^r - 1, -0.3 < rest < 0.42
};

// For -87 <= x <= 88.
PAX_INLINE ExpParts SplitExp(Vec x) {
  // Adding 1.5 * 2^23 rounds to an integer, kept in the low bits.
  const Vec shifted = x * 1.44269504f + 12582912.0f;
  const Vec n = shifted - 12582912.0f;
  Vec r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Vec p = Splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return {(WordVec)shifted << 23, p * (r * r) + r};
}

// e^x to 2 ulp for x <= 88; below -87 it returns e^-87. NaN stays NaN.
PAX_INLINE Vec Exp(Vec argument) {
  const Vec x = argument < Splat(-87.0f) ? Splat(-87.0f) : argument;
  const ExpParts parts = SplitExp(x);
  // The addition to the exponent would make a number of some NaNs.
  const Vec result = (Vec)((WordVec)(parts.rest + 1.0f) + parts.exponent);
  return argument == argument ? result : argument;
}

// c tanh(x / c), to 4 ulp for small x / c, too.
PAX_INLINE Vec Cap(Vec x, float cap) {
  Vec y = x * (2.0f / cap);
  y = y > Splat(40.0f) ? Splat(40.0f) : y;
  y = y < Splat(-40.0f) ? Splat(-40.0f) : y;
  const ExpParts parts = SplitExp(y);
  const Vec scale = (Vec)((WordVec)Splat(1.0f) + parts.exponent);
  // e^y - 1; e^y would round a small y.
  const Vec e = parts.rest * scale + (scale - 1.0f);
  return x == x ? cap * (e / (e + 2.0f)) : x;
}

PAX_INLINE float MaxOf(Vec v) {
  float m = v[0];
  for (int i = 1; i < kLanes; ++i) m = v[i] > m ? v[i] : m;
  return m;
}

PAX_INLINE int32_t MinOf(IntVec v) {
  int32_t m = v[0];
  for (int i = 1; i < kLanes; ++i) m = v[i] < m ? v[i] : m;
  return m;
}

PAX_INLINE float SumOf(Vec v) {
  float lanes[kLanes];
  Store(lanes, v);
  for (int64_t w = kLanes / 2; w > 0; w /= 2) {
    for (int64_t i = 0; i < w; ++i) lanes[i] += lanes[i + w];
  }
  return lanes[0];
}

// ---- element types ---------------------------------------------------------

PAX_INLINE float ToFloat(float x) { return x; }

PAX_INLINE float ToFloat(Bfloat16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  return Load<float>(&bits);
}

PAX_INLINE void Assign(float x, float* to) { *to = x; }
PAX_INLINE void Assign(Bfloat16 x, float* to) { *to = ToFloat(x); }
PAX_INLINE void Assign(Bfloat16 x, Bfloat16* to) { *to = x; }

// The bits of x as bfloat16, rounded to nearest even, in the low half.
PAX_INLINE WordVec RoundToBfloat16(Vec x) {
  const WordVec bits = (WordVec)x;
  // Rounding would overflow the mantissa of some NaNs.
  const WordVec rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return (x == x ? rounded : (WordVec{} + 0x7fc00000u)) >> 16;
}

PAX_INLINE void StoreRow(const float* sums, int64_t width, bool add,
                         float* to) {
  for (int64_t i = 0; i < width; ++i) to[i] = add ? to[i] + sums[i] : sums[i];
}

PAX_INLINE void StoreRow(const float* sums, int64_t width, bool, Bfloat16* to) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const HalfVec halves =
        __builtin_convertvector(RoundToBfloat16(Load<Vec>(sums + i)), HalfVec);
    std::memcpy(to + i, &halves, Clip(width - i, kLanes) * sizeof(Bfloat16));
  }
}

}  // namespace
}  // namespace pax
