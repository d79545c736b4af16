// One vector of W floats for the instruction set LATTICE_ISA, and what loops need of it. Included by loops.h
// once per set, inside its namespace; no include guard on purpose, and nothing of the standard library may be
// instantiated here (it would carry these instructions to other callers).

#if LATTICE_LEVEL == 3
constexpr int W = 16;
#elif LATTICE_LEVEL == 2
constexpr int W = 8;
#else
constexpr int W = 4;
#endif
constexpr int V = 16 / W;  // vectors that hold one column of a block of 16 rows

typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef float vf_any __attribute__((vector_size(4 * W), aligned(1), may_alias));
typedef int32_t vi_any __attribute__((vector_size(4 * W), aligned(1), may_alias));
typedef uint16_t vh_any __attribute__((vector_size(2 * W), aligned(1), may_alias));

static inline vf load(const float* p) { return *(const vf_any*)p; }
static inline void store(float* p, vf x) { *(vf_any*)p = x; }
static inline vi load_bytes(const uint8_t* p) { return *(const vi_any*)p; }
static inline vf splat(float x) { return x - (vf){}; }
static inline vi splat(int32_t x) { return x - (vi){}; }
static inline vf to_float(vi x) { return __builtin_convertvector(x, vf); }
static inline vi to_int(vf x) { return __builtin_convertvector(x, vi); }
static inline vf pick(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }
static inline vf larger(vf a, vf b) { return pick((vi)(a > b), a, b); }
static inline vf smaller(vf a, vf b) { return pick((vi)(a < b), a, b); }

// a * b + c, rounded once where the set has such an instruction (then always), else twice (then always). The
// compiler by itself fuses some multiply-adds and not others, as it unrolls: where bits must not depend on that.
static inline vf fused(vf a, vf b, vf c) {
#if LATTICE_LEVEL == 3
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif LATTICE_LEVEL == 2
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif LATTICE_ARM
  return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

static inline float fused(float a, float b, float c) {
#if LATTICE_LEVEL >= 2 || LATTICE_ARM
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

static inline float sum(vf x) {
#if LATTICE_LEVEL == 3
  return _mm512_reduce_add_ps((__m512)x);
#elif LATTICE_LEVEL == 2
  __m128 half = _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
#else
  return (x[0] + x[2]) + (x[1] + x[3]);
#endif
}

static inline float maximum(vf x) {
  float best = x[0];
  for (int i = 1; i < W; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

// float16 -> float.
static inline vf load_half(const uint16_t* p) {
#if LATTICE_LEVEL == 3
  return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif LATTICE_LEVEL == 2
  return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#elif LATTICE_LEVEL == 1
  return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
  vf x;
  for (int i = 0; i < W; ++i) x[i] = float16_value(p[i]);
  return x;
#endif
}

// float -> float16, to the nearest, ties to even; W of them, and one alone with the same result.
static inline void store_half(uint16_t* p, vf x) {
#if LATTICE_LEVEL == 3
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
#elif LATTICE_LEVEL == 2
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#elif LATTICE_LEVEL == 1
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)x)));
#else
  for (int i = 0; i < W; ++i) p[i] = float16_bits(x[i]);
#endif
}

// Numbers of a cache, which are float32 or float16.
static inline vf load(const uint16_t* p) { return load_half(p); }
static inline float value_of(float x) { return x; }
static inline float value_of(uint16_t x) { return float16_value(x); }
static inline void put(float* p, float x) { *p = x; }
static inline void put(uint16_t* p, float x) { *p = float16_bits(x); }
static inline void store(uint16_t* p, vf x) { store_half(p, x); }

// W scales of a group, beginning with number i.
template <ScaleKind K>
static inline vf load_scales(const uint8_t* scales, int i) {
  if constexpr (K == ScaleKind::float32) return load((const float*)scales + i);
  if constexpr (K == ScaleKind::float16) return load_half((const uint16_t*)scales + i);
  return (vf)(__builtin_convertvector(*(const vh_any*)(scales + 2 * i), vi) << 16);
}

// exp(x), relative error 2e-7 (Cephes' polynomial); 0 below -87, and x above 88 counts as 88.
static inline vf exponential(vf x) {
  const vi none = (vi)(x < splat(-87.0f));
  x = smaller(larger(x, splat(-87.0f)), splat(88.0f));
  const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest whole number
  const vf n = (x * 1.44269504f + magic) - magic;
  const vf r = (x - n * 0.693359375f) - n * -2.12194440e-4f;  // x - n log 2
  vf y = splat(1.9875691500e-4f);
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * (r * r) + r + 1.0f;
  const vf power = (vf)((to_int(n) + 127) << 23);
  return pick(none, splat(0.0f), y * power);
}

// acc[lane] += the dot product of 4 unsigned bytes of `w` (each at most 15 unless WIDE) with 4 signed bytes
// of `a`, which every lane shares. Exact in all sets.
template <bool WIDE>
static inline vi dot4(vi acc, vi w, int32_t a) {
#if LATTICE_LEVEL == 3
  return (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, _mm512_set1_epi32(a));
#elif defined(LATTICE_VNNI)
  return (vi)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)w, _mm256_set1_epi32(a));
#else
  if constexpr (WIDE) {  // maddubs saturates beyond 7 bits, so a byte is two nibbles
    const vi zero = {};
    return acc + dot4<false>(zero, w & 0x0f0f0f0f, a) + (dot4<false>(zero, (w >> 4) & 0x0f0f0f0f, a) << 4);
  }
#if LATTICE_LEVEL == 2
  const __m256i pairs = _mm256_maddubs_epi16((__m256i)w, _mm256_set1_epi32(a));  // at most 2 * 15 * 127
  return (vi)_mm256_add_epi32((__m256i)acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#elif LATTICE_LEVEL == 1
  return (vi)vdotq_s32((int32x4_t)acc, (int8x16_t)w, vreinterpretq_s8_s32(vdupq_n_s32(a)));  // 15 fits a sign
#else
  for (int b = 0; b < 4; ++b) acc += ((w >> (8 * b)) & 255) * int32_t(int8_t(uint32_t(a) >> (8 * b)));
  return acc;
#endif
#endif
}
