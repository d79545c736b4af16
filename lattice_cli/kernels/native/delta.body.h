// The loops of a Gated DeltaNet layer: gates, causal convolution, norms, and the scan of its state.
//
// Multiply-adds are written as `fused`, never left to the compiler: a token's bits must not depend on which of the
// passes below computes it. Needs: vector.body.h, pointwise.body.h.

// The first `count` of W numbers; the other lanes are zeros, or stay unwritten.
static inline vf load_first(const float* p, int64_t count) {
  if (count >= W) return load(p);
  vf x = {};
  for (int64_t lane = 0; lane < count; ++lane) x[lane] = p[lane];
  return x;
}

static inline void store_first(float* p, vf x, int64_t count) {
  if (count >= W) return store(p, x);
  for (int64_t lane = 0; lane < count; ++lane) p[lane] = x[lane];
}

// The sums of four vectors. Each is added in the same order, so a sum does not depend on its place.
[[gnu::always_inline]] static inline void sum_four(const vf (&x)[4], float* sums) {
#if LATTICE_LEVEL == 3
  const __m512 a = (__m512)x[0], b = (__m512)x[1], c = (__m512)x[2], d = (__m512)x[3];
  const __m512d ab = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
  const __m512d cd = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
  const __m512 low = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), high = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
  const __m512 all = _mm512_add_ps(low, high);
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
#elif LATTICE_LEVEL == 2
  const __m256 a = (__m256)x[0], b = (__m256)x[1], c = (__m256)x[2], d = (__m256)x[3];
  const __m256d ab = _mm256_castps_pd(_mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)));
  const __m256d cd = _mm256_castps_pd(_mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d)));
  const __m256 low = _mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd)), high = _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd));
  const __m256 all = _mm256_add_ps(low, high);
  _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
#else
  for (int i = 0; i < 4; ++i) sums[i] = sum(x[i]);
#endif
}

// The sums of R vectors.
template <int R>
[[gnu::always_inline]] static inline void sum_rows(const vf (&x)[R], float* sums) {
  const vf four[4] = {x[0], x[1 % R], x[2 % R], x[3 % R]};
  float all[4];
  sum_four(four, all);
  for (int r = 0; r < R; ++r) sums[r] = all[r];
}

// The scan. What a token does to a row of the state, in the order of mlx-lm:
//
//   state = state * g                      decay
//   delta = (v - sum(state * k)) * beta    ("kv" is the sum)
//   state = state + k * delta              correct
//   out   = sum(state * q)                 read
//
// One pass over a row corrects, reads, and decays for the next token; so a row is loaded and stored once per token,
// and the sum that a token must wait for is ready when it comes. Rows pass through `work`, eight at a time for a tile
// of tokens, and so do keys and queries: all in the first cache, and on its lines. (Rows that stay in registers were
// no faster: two fill them, and then each waits for its own sums.)

#if LATTICE_LEVEL == 3 || LATTICE_ARM
constexpr int kGroupRows = 4;  // their sums, factors and inputs fill the registers
#else
constexpr int kGroupRows = 2;
#endif
constexpr int kGroups = DeltaScan::kRows / kGroupRows;

// Tokens [first, last) and what they need, in `work`: keys and queries, filled up with zeros to the length `stride`,
// and room for rows of the state.
struct Tile {
  int64_t first, last, stride;
  float *k, *q, *rows;
};

static inline Tile make_tile(const DeltaScan& t, int64_t first, int64_t last, float* work) {
  const int64_t stride = t.padded(), count = last - first;
  const Tile tile{first, last, stride, work, work + count * stride, work + 2 * count * stride};
  for (int64_t token = first; token < last; ++token) {
    const float *k = t.k + token * t.k_stride, *q = t.q + token * t.q_stride;
    float *tile_k = tile.k + (token - first) * stride, *tile_q = tile.q + (token - first) * stride;
    for (int64_t i = 0; i < stride; i += W) {
      store(tile_k + i, load_first(k + i, t.key_size - i));
      store(tile_q + i, load_first(q + i, t.key_size - i));
    }
  }
  return tile;
}

// rows = from * g, and the sums with k. WHOLE: rows end with a whole vector.
template <bool WHOLE, int R>
[[gnu::always_inline]] static inline void decay_rows(
    const DeltaScan& t, const Tile& tile, int64_t token, const float* from, float* rows, float* kv) {
  const float *k = tile.k + (token - tile.first) * tile.stride, g = t.g[token * t.gate_stride];
  const int64_t size = t.key_size;
  vf sums[R] = {};
  for (int64_t i = 0; i < size; i += W) {
    const vf key = load(k + i);
    for (int r = 0; r < R; ++r) {
      const float* source = from + r * size + i;
      const vf state = (WHOLE ? load(source) : load_first(source, size - i)) * g;
      store(rows + r * tile.stride + i, state);
      sums[r] = fused(state, key, sums[r]);
    }
  }
  sum_rows(sums, kv);
}

// One token on R decayed rows, of which `row` is the number of the first. They stay decayed for the token after this
// one, and kv becomes that one's; or (LAST) they go to `to`.
template <bool WHOLE, bool LAST, int R>
[[gnu::always_inline]] static inline void correct_rows(
    const DeltaScan& t, const Tile& tile, int64_t token, int64_t row, float* rows, float* kv, float* to) {
  const int64_t size = t.key_size, stride = tile.stride, at = (token - tile.first) * stride;
  const float *k = tile.k + at, *q = tile.q + at, *next_k = k + stride;
  const float *v = t.v + token * t.v_stride + row, beta = t.beta[token * t.gate_stride];
  const float next_g = LAST ? 1.0f : t.g[(token + 1) * t.gate_stride];
  vf delta[R], out[R] = {}, sums[R] = {};
  for (int r = 0; r < R; ++r) delta[r] = splat((v[r] - kv[r]) * beta);
  for (int64_t i = 0; i < size; i += W) {
    const vf key = load(k + i), query = load(q + i), next_key = LAST ? key : load(next_k + i);
    for (int r = 0; r < R; ++r) {
      vf state = fused(key, delta[r], load(rows + r * stride + i));
      out[r] = fused(state, query, out[r]);
      if constexpr (LAST) {
        float* target = to + r * size + i;
        WHOLE ? store(target, state) : store_first(target, state, size - i);
      } else {
        state = state * next_g;
        store(rows + r * stride + i, state);
        sums[r] = fused(state, next_key, sums[r]);
      }
    }
  }
  sum_rows(out, t.out + token * t.out_stride + row);
  if constexpr (!LAST) sum_rows(sums, kv);
}

// Tokens [first, last) of the tile, none of them masked, on G groups of R rows: from `from` to `to`. Groups take
// turns at each token: one's sums are added up while the other's rows pass by.
template <bool WHOLE, int G, int R>
static inline void scan_run(
    const DeltaScan& t, const Tile& tile, int64_t first, int64_t last, int64_t row, const float* from, float* to) {
  const int64_t step = R * t.key_size, room = R * tile.stride;
  float kv[G][R];
  for (int g = 0; g < G; ++g) decay_rows<WHOLE, R>(t, tile, first, from + g * step, tile.rows + g * room, kv[g]);
  for (int64_t token = first; token + 1 < last; ++token) {
    for (int g = 0; g < G; ++g) {
      correct_rows<WHOLE, false, R>(t, tile, token, row + g * R, tile.rows + g * room, kv[g], nullptr);
    }
  }
  for (int g = 0; g < G; ++g) {
    correct_rows<WHOLE, true, R>(t, tile, last - 1, row + g * R, tile.rows + g * room, kv[g], to + g * step);
  }
}

// All tokens of the tile. A masked token's output is read from the state it would have made, which is then thrown
// away.
template <bool WHOLE, int G, int R>
static inline void scan_rows(const DeltaScan& t, const Tile& tile, int64_t row, const float* from) {
  float* state = t.after + row * t.key_size;
  if (t.mask == nullptr) return scan_run<WHOLE, G, R>(t, tile, tile.first, tile.last, row, from, state);
  for (int64_t token = tile.first, end; token < tile.last; token = end) {
    end = token + 1;
    if (!t.mask[token]) {
      scan_run<WHOLE, G, R>(t, tile, token, end, row, state, tile.rows + DeltaScan::kRows * tile.stride);
      continue;
    }
    while (end < tile.last && t.mask[end]) ++end;
    scan_run<WHOLE, G, R>(t, tile, token, end, row, state, state);
  }
}

template <bool WHOLE>
static void scan_tiles(const DeltaScan& t, int64_t first, int64_t last, const float* from, float* work) {
  constexpr int R = kGroupRows, G = kGroups;
  const int64_t size = t.key_size;
  for (int64_t token = 0; token < t.tokens; token += DeltaScan::kTile) {
    const int64_t end = token + DeltaScan::kTile;
    const Tile tile = make_tile(t, token, end < t.tokens ? end : t.tokens, work);
    int64_t row = first;
    for (; row + G * R <= last; row += G * R) scan_rows<WHOLE, G, R>(t, tile, row, from + row * size);
    for (; row + R <= last; row += R) scan_rows<WHOLE, 1, R>(t, tile, row, from + row * size);
    for (; row < last; ++row) scan_rows<WHOLE, 1, 1>(t, tile, row, from + row * size);
    from = t.after;
  }
}

// Rows [first, last) of a head over all tokens. `work` holds work_floats().
static void delta_scan(const DeltaScan& t, int64_t first, int64_t last, float* work) {
  const float* from = t.before;
  if (t.before == nullptr || (t.mask != nullptr && t.before != t.after)) {
    const int64_t end = last * t.key_size;
    for (int64_t i = first * t.key_size; i < end; ++i) t.after[i] = t.before == nullptr ? 0.0f : t.before[i];
    from = t.after;
  }
  work = (float*)(((uintptr_t)work + 63) & ~(uintptr_t)63);
  t.key_size % W == 0 ? scan_tiles<true>(t, first, last, from, work) : scan_tiles<false>(t, first, last, from, work);
}

// log(1 + u) for u in 0..1: twice the area tangent of u / (2 + u), relative error 2e-7.
static inline vf log_of_one_plus(vf u) {
  const vf s = u / (u + 2.0f), z = s * s;
  vf y = splat(1.0f / 15);
  y = fused(y, z, splat(1.0f / 13));
  y = fused(y, z, splat(1.0f / 11));
  y = fused(y, z, splat(1.0f / 9));
  y = fused(y, z, splat(1.0f / 7));
  y = fused(y, z, splat(1.0f / 5));
  y = fused(y, z, splat(1.0f / 3));
  y = fused(y, z, splat(1.0f));
  return 2.0f * s * y;
}

static inline vf sigmoid(vf x) { return 1.0f / (1.0f + exponential(-x)); }

// `exponential` takes a NaN for a number; what was computed from a NaN shall be one.
static inline vf keep_nan(vf source, vf result) { return pick((vi)(source == source), result, source); }

// The gates of one token, over heads: g = exp(-exp(a_log) * softplus(a + dt_bias)), beta = sigmoid(b) * most_beta.
static void delta_gates(
    const float* a, const float* b, const float* a_log, const float* dt_bias, float most_beta, int64_t heads, float* g,
    float* beta) {
  for (int64_t h = 0; h < heads; h += W) {
    const int64_t count = heads - h;
    const vf x = load_first(a + h, count) + load_first(dt_bias + h, count);
    const vf rate = exponential(load_first(a_log + h, count));
    const vf softplus = larger(x, splat(0.0f)) + log_of_one_plus(exponential(smaller(x, -x)));
    store_first(g + h, keep_nan(x, exponential(-rate * softplus)), count);
    const vf y = load_first(b + h, count);
    store_first(beta + h, keep_nan(y, sigmoid(y) * most_beta), count);
  }
}

// out = x * sigmoid(x).
static void silu(const float* x, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += W) {
    const vf y = load_first(x + i, size - i);
    store_first(out + i, keep_nan(y, y * sigmoid(y)), size - i);
  }
}

// Channels [first, last) of all tokens; at most kBlock of them, so that their weights stay in the first cache.
static void conv_silu(const CausalConv& t, int64_t first, int64_t last) {
  float weights[CausalConv::kMostTaps][CausalConv::kBlock] = {};
  for (int64_t c = first; c < last; ++c) {
    for (int64_t j = 0; j < t.taps; ++j) weights[j][c - first] = t.weight[c * t.taps + j];
  }
  for (int64_t token = 0; token < t.tokens; ++token) {
    for (int64_t c = first; c < last; c += W) {
      const float* x = t.x + token * t.x_stride + c;
      vf y = {};
      for (int64_t j = 0; j < t.taps; ++j) {
        y = fused(load_first(x + j * t.x_stride, last - c), load(&weights[j][c - first]), y);
      }
      if (t.silu) y = keep_nan(y, y * sigmoid(y));
      store_first(t.out + token * t.out_stride + c, y, last - c);
    }
  }
}

// out = x / sqrt(mean(x^2) + eps) * scale: one head of queries or keys, as mlx-lm's normalize_qk has them.
static void scaled_norm(const float* x, float eps, float scale, int64_t size, float* out) {
  rms_norm(x, nullptr, eps, size, out);
  for (int64_t i = 0; i < size; ++i) out[i] *= scale;
}

// out = silu(gate) * rms_norm(x, weight, eps), as mlx-lm's Qwen3NextRMSNormGated has it.
static void gated_norm(const float* x, const float* weight, const float* gate, float eps, int64_t size, float* out) {
  rms_norm(x, weight, eps, size, out);
  swiglu(gate, out, size, out);
}
