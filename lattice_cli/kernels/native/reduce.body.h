// Reductions of one row to one number. A long row is cut into pieces by its length alone, so that the order of
// additions does not depend on threads. A NaN counts as the largest number, as in mlx. Needs: vector.body.h,
// delta.body.h.

static inline bool any(vi x) {
#if LATTICE_LEVEL == 3
  return _mm512_test_epi32_mask((__m512i)x, (__m512i)x) != 0;
#elif LATTICE_LEVEL == 2
  return !_mm256_testz_si256((__m256i)x, (__m256i)x);
#else
  return (x[0] | x[1] | x[2] | x[3]) != 0;
#endif
}

// The largest number of a row that is not empty; a NaN if there is one.
static float row_top(const float* x, int64_t size) {
  constexpr int kChains = 4;
  vf best[kChains];
  for (vf& chain : best) chain = splat(-__builtin_inff());
  vi odd = {};
  int64_t i = 0;
  for (; i + kChains * W <= size; i += kChains * W) {
    for (int chain = 0; chain < kChains; ++chain) {
      const vf value = load(x + i + chain * W);
      best[chain] = larger(value, best[chain]);
      odd |= (vi)(value != value);
    }
  }
  float top = maximum(larger(larger(best[0], best[1]), larger(best[2], best[3])));
  bool nan = any(odd);
  for (; i < size; ++i) {
    top = x[i] > top ? x[i] : top;
    nan = nan || x[i] != x[i];
  }
  return nan ? __builtin_nanf("") : top;
}

// The first place of the largest number of a row.
static int64_t largest(const float* x, int64_t size) {
  const float top = row_top(x, size);
  const bool nan = top != top;
  int64_t i = 0;
  for (; i + W <= size; i += W) {
    const vf value = load(x + i);
    if (any(nan ? (vi)(value != value) : (vi)(value == top))) break;
  }
  while (i + 1 < size && (nan ? x[i] == x[i] : x[i] != top)) ++i;
  return i;
}

// One piece of a row: its largest number, and the sum of exp(x - top). An infinite or NaN top has no sum.
static void soft_sum(const float* x, int64_t size, float* top, float* total) {
  *top = row_top(x, size), *total = 0;
  if (!(__builtin_fabsf(*top) < __builtin_inff())) return;
  vf sums[2] = {};
  int64_t i = 0;
  for (; i + 2 * W <= size; i += 2 * W) {
    for (int chain = 0; chain < 2; ++chain) sums[chain] += exponential(load(x + i + chain * W) - *top);
  }
  *total = sum(sums[0] + sums[1]);
  for (; i < size; ++i) *total += exponential(splat(x[i] - *top))[0];
}

// log(sum(exp(x))) of a row from its pieces, in their order.
static float soft_join(const float* tops, const float* totals, int64_t count) {
  const float top = row_top(tops, count);
  if (!(__builtin_fabsf(top) < __builtin_inff())) return top;
  float total = 0;
  for (int64_t i = 0; i < count; ++i) total += totals[i] * exponential(splat(tops[i] - top))[0];
  return top + __builtin_logf(total);
}
