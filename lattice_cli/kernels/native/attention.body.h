// Attention: out[n] = sum over keys j of softmax_j(scale * q[n] . k[j] + mask[n][j]) * v[j], by tiles of 64 keys
// with a running maximum, so that no row of scores is ever whole in memory.
//
// The query heads that share one key head are done together: n counts heads of the group, then rows. With many
// queries a tile of keys is turned (D x 64) and scores are a small matrix product; with few, each is a dot
// product. A row that may see no key at all gets zeros. Needs: vector.body.h.

#if LATTICE_LEVEL == 3
constexpr int kScoreVectors = 4;  // 4 rows x 4 vectors of sums in registers
#else
constexpr int kScoreVectors = 2;
#endif

// Keys or values [first, first + count) in float32 rows of D: where they lie, or a copy in `buffer`.
static inline const float* float_rows(
    const void* base, bool half, int64_t offset, int64_t stride, int64_t first, int64_t count, int64_t D,
    float* buffer, int64_t& out_stride) {
  if (!half) {
    out_stride = stride;
    return (const float*)base + offset + first * stride;
  }
  for (int64_t j = 0; j < count; ++j) {
    const uint16_t* row = (const uint16_t*)base + offset + (first + j) * stride;
    int64_t d = 0;
    for (; d + W <= D; d += W) store(buffer + j * D + d, load_half(row + d));
    for (; d < D; ++d) buffer[j * D + d] = float16_value(row[d]);
  }
  out_stride = D;
  return buffer;
}

static inline float dot(const float* a, const float* b, int64_t size) {
  vf total = {};
  int64_t i = 0;
  for (; i + W <= size; i += W) total = load(a + i) * load(b + i) + total;
  float result = sum(total);
  for (; i < size; ++i) result += a[i] * b[i];
  return result;
}

// scores[R][64] = q[R][D] x turned[D][64].
template <int R>
static inline void score_tile(const float* q, const float* turned, int64_t D, float* scores) {
  for (int column = 0; column < 64; column += kScoreVectors * W) {
    vf acc[R][kScoreVectors] = {};
    for (int64_t d = 0; d < D; ++d) {
      for (int r = 0; r < R; ++r) {
        for (int v = 0; v < kScoreVectors; ++v) {
          acc[r][v] = load(turned + 64 * d + column + W * v) * q[r * D + d] + acc[r][v];
        }
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < kScoreVectors; ++v) store(scores + 64 * r + column + W * v, acc[r][v]);
    }
  }
}

// `bytes` of memory that are wanted soon. Processors fetch streams ahead by themselves, but only within 4 KiB, and
// what is computed from each line leaves them too little in flight.
static inline void fetch(const void* memory, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char*)memory + i);
}

// Columns [d, d + N * W) of value_tile.
template <int R, int N, class T>
static inline void value_columns(
    const float* weights, const float* keep, const T* v, int64_t stride, int64_t count, int64_t D, float* out,
    const T* next) {
  vf acc[R][N];
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < N; ++i) acc[r][i] = load(out + r * D + W * i) * keep[r];
  }
  for (int64_t j = 0; j < count; ++j) {
    if (next != nullptr) fetch(next + j * D, N * W * int64_t(sizeof(T)));
    for (int i = 0; i < N; ++i) {
      const vf value = load(v + j * stride + W * i);
      for (int r = 0; r < R; ++r) acc[r][i] = value * weights[64 * r + j] + acc[r][i];
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < N; ++i) store(out + r * D + W * i, acc[r][i]);
  }
}

// out[R][D] = out[R][D] * keep[R] + weights[R][64] x v[count][D]. `next`: 64 x D numbers to fetch meanwhile, or null.
template <int R, class T>
static inline void value_tile(
    const float* weights, const float* keep, const T* v, int64_t stride, int64_t count, int64_t D, float* out,
    const T* next = nullptr) {
  int64_t d = 0;
  for (; d + kScoreVectors * W <= D; d += kScoreVectors * W) {
    value_columns<R, kScoreVectors>(weights, keep, v + d, stride, count, D, out + d, next ? next + d : nullptr);
  }
  for (; d + W <= D; d += W) value_columns<R, 1>(weights, keep, v + d, stride, count, D, out + d, (const T*)nullptr);
  for (; d < D; ++d) {
    for (int r = 0; r < R; ++r) {
      float acc = out[r * D + d] * keep[r];
      for (int64_t j = 0; j < count; ++j) acc = fused(value_of(v[j * stride + d]), weights[64 * r + j], acc);
      out[r * D + d] = acc;
    }
  }
}

// Masks 64 scores of one query row; `first` is the tile's first key, `row` the query's row.
static inline void mask_scores(
    const Attention& t, float* scores, int64_t b, int64_t h, int64_t row, int64_t first, int64_t count) {
  const float never = -__builtin_inff();
  if (t.mask != nullptr) {
    const int64_t at = b * t.mask_strides[0] + h * t.mask_strides[1] + row * t.mask_strides[2];
    const int64_t step = t.mask_strides[3];
    if (t.additive) {
      const float* mask = (const float*)t.mask + at + first * step;
      for (int64_t j = 0; j < count; ++j) scores[j] += mask[j * step];
    } else {
      const uint8_t* mask = (const uint8_t*)t.mask + at + first * step;
      for (int64_t j = 0; j < count; ++j) scores[j] = mask[j * step] ? scores[j] : never;
    }
  }
  int64_t end = count;
  if (t.causal) {
    const int64_t visible = t.S - t.L + row + 1 - first;
    end = visible < 0 ? 0 : visible < count ? visible : count;
  }
  for (int64_t j = end; j < 64; ++j) scores[j] = never;
}

// 64 scores -> weights relative to the row's new maximum; returns what earlier sums must be multiplied by.
static inline float soften(float* scores, float& top, float& total) {
  vf best = load(scores);
  for (int j = W; j < 64; j += W) best = larger(best, load(scores + j));
  const float tile_top = maximum(best), new_top = tile_top > top ? tile_top : top;
  if (new_top == -__builtin_inff()) {
    for (int j = 0; j < 64; j += W) store(scores + j, (vf){});
    return 1.0f;
  }
  vf added = {};
  for (int j = 0; j < 64; j += W) {
    const vf weight = exponential(load(scores + j) - new_top);
    store(scores + j, weight);
    added += weight;
  }
  const float keep = top == new_top ? 1.0f : exponential(splat(top - new_top))[0];
  total = total * keep + sum(added);
  top = new_top;
  return keep;
}

// Rows [row, row + rows) of the query heads that share key head `shared`, over keys [begin, end): sums without
// division into out (queries x D), maxima and sums of weights into top and total. `work` holds
// Attention::work_floats().
static void attend(
    const Attention& t, int64_t b, int64_t shared, int64_t row, int64_t rows, int64_t begin, int64_t end, bool turn,
    float* work, float* out, float* top, float* total) {
  const int64_t D = t.D, heads = t.H / t.KV, queries = heads * rows;
  float* q = work;
  float* scores = q + queries * D;
  float* keep = scores + queries * 64;
  float* turned = keep + queries;
  float* key_buffer = turned + 64 * D;
  float* value_buffer = key_buffer + 64 * D;
  for (int64_t n = 0; n < queries; ++n) {
    const float* source = t.q + b * t.q_strides[0] + (shared * heads + n / rows) * t.q_strides[1] +
        (row + n % rows) * t.q_strides[2];
    for (int64_t d = 0; d < D; ++d) q[n * D + d] = source[d] * t.scale;
    for (int64_t d = 0; d < D; ++d) out[n * D + d] = 0;
    top[n] = -__builtin_inff();
    total[n] = 0;
  }
  for (int64_t first = begin; first < end; first += 64) {
    const int64_t count = end - first < 64 ? end - first : 64;
    int64_t k_stride, v_stride;
    const float* k = float_rows(
        t.k, t.half, b * t.k_strides[0] + shared * t.k_strides[1], t.k_strides[2], first, count, D, key_buffer,
        k_stride);
    const float* v = float_rows(
        t.v, t.half, b * t.v_strides[0] + shared * t.v_strides[1], t.v_strides[2], first, count, D, value_buffer,
        v_stride);
    if (turn) {
      for (int64_t d = 0; d < D; ++d) {
        for (int64_t j = 0; j < count; ++j) turned[64 * d + j] = k[j * k_stride + d];
        for (int64_t j = count; j < 64; ++j) turned[64 * d + j] = 0;
      }
      int64_t n = 0;
      for (; n + 4 <= queries; n += 4) score_tile<4>(q + n * D, turned, D, scores + 64 * n);
      for (; n < queries; ++n) score_tile<1>(q + n * D, turned, D, scores + 64 * n);
    } else {
      for (int64_t j = 0; j < count; ++j) {
        for (int64_t n = 0; n < queries; ++n) scores[64 * n + j] = dot(q + n * D, k + j * k_stride, D);
      }
    }
    for (int64_t n = 0; n < queries; ++n) {
      mask_scores(t, scores + 64 * n, b, shared * heads + n / rows, row + n % rows, first, count);
      keep[n] = soften(scores + 64 * n, top[n], total[n]);
    }
    int64_t n = 0;
    for (; n + 4 <= queries; n += 4) {
      value_tile<4>(scores + 64 * n, keep + n, v, v_stride, count, D, out + n * D);
    }
    for (; n < queries; ++n) value_tile<1>(scores + 64 * n, keep + n, v, v_stride, count, D, out + n * D);
  }
}

static inline float* output_row(const Attention& t, int64_t b, int64_t h, int64_t row) {
  return t.out + b * t.out_strides[0] + h * t.out_strides[1] + row * t.out_strides[2];
}

// Prefill: one unit is some rows of one group of heads, with all the keys they may see.
static void attention_rows(const Attention& t, int64_t unit, float* work) {
  const int64_t per_head = (t.L + t.unit_rows - 1) / t.unit_rows, heads = t.H / t.KV;
  const int64_t b = unit / (t.KV * per_head), shared = unit / per_head % t.KV, row = unit % per_head * t.unit_rows;
  const int64_t rows = t.L - row < t.unit_rows ? t.L - row : t.unit_rows, queries = heads * rows;
  float *out = work, *top = out + queries * t.D, *total = top + queries;
  const int64_t seen = t.S - t.L + row + rows;
  attend(t, b, shared, row, rows, 0, t.causal && seen < t.S ? seen : t.S, true, total + queries, out, top, total);
  for (int64_t n = 0; n < queries; ++n) {
    float* target = output_row(t, b, shared * heads + n / rows, row + n % rows);
    const float factor = total[n] > 0 ? 1.0f / total[n] : 0.0f;
    for (int64_t d = 0; d < t.D; ++d) target[d] = out[n * t.D + d] * factor;
  }
}

// Decode: one unit is one split of the keys for one group of heads; `partial` holds, per unit, the sums
// (queries x D), the maxima and the totals.
static void attention_split(const Attention& t, int64_t unit, float* partial, float* work) {
  const int64_t splits = t.splits(), queries = t.H / t.KV * t.L, size = queries * (t.D + 2);
  const int64_t split = unit % splits, shared = unit / splits % t.KV, b = unit / splits / t.KV;
  float* out = partial + unit * size;
  const int64_t begin = split * Attention::kSplit, end = begin + Attention::kSplit;
  attend(
      t, b, shared, 0, t.L, begin, end < t.S ? end : t.S, false, work, out, out + queries * t.D,
      out + queries * (t.D + 1));
}

// Decode, after all units: the splits of every query together.
static void attention_join(const Attention& t, const float* partial) {
  const int64_t splits = t.splits(), heads = t.H / t.KV, queries = heads * t.L, size = queries * (t.D + 2);
  for (int64_t pair = 0; pair < t.B * t.KV; ++pair) {
    for (int64_t n = 0; n < queries; ++n) {
      const float* first = partial + pair * splits * size;
      float best = -__builtin_inff(), total = 0;
      for (int64_t s = 0; s < splits; ++s) {
        const float top = first[s * size + queries * t.D + n];
        best = top > best ? top : best;
      }
      float* target = output_row(t, pair / t.KV, pair % t.KV * heads + n / t.L, n % t.L);
      for (int64_t d = 0; d < t.D; ++d) target[d] = 0;
      if (best == -__builtin_inff()) continue;
      for (int64_t s = 0; s < splits; ++s) {
        const float* part = first + s * size;
        const float factor = exponential(splat(part[queries * t.D + n] - best))[0];
        total += factor * part[queries * (t.D + 1) + n];
        for (int64_t d = 0; d < t.D; ++d) target[d] += factor * part[n * t.D + d];
      }
      for (int64_t d = 0; d < t.D; ++d) target[d] *= 1.0f / total;
    }
  }
}
