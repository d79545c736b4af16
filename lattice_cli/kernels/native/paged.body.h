// Attention over a paged cache (layout: PagedAttention in loops.h, pages.h).
//
// A query's result is built page by page, always the same way: within a page a softmax of its own, in two tiles
// of 64 keys with a running maximum; then the pages together, in order. So it has the same bits whether its
// token came alone or in a chunk of any size, and whatever else is computed beside it. The compiler may fuse
// a * b + c * d in two ways: what both ways of calling share is compiled once (noinline).
// Needs: vector.body.h, attention.body.h (value tiles, soften).

// scores[R][64] = q[R][D] x keys[D][64]. `next`: as many numbers as `keys`, to fetch meanwhile, or null.
template <int R, class T>
static inline void key_tile(const float* q, const T* keys, int64_t D, float* scores, const T* next) {
  for (int column = 0; column < 64; column += kScoreVectors * W) {
    vf acc[R][kScoreVectors] = {};
    for (int64_t d = 0; d < D; ++d) {
      if (next != nullptr) fetch(next + 64 * d + column, kScoreVectors * W * int64_t(sizeof(T)));
      for (int v = 0; v < kScoreVectors; ++v) {
        const vf key = load(keys + 64 * d + column + W * v);
        for (int r = 0; r < R; ++r) acc[r][v] = key * q[r * D + d] + acc[r][v];
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < kScoreVectors; ++v) store(scores + 64 * r + column + W * v, acc[r][v]);
    }
  }
}

// Scores of keys outside [low, high] of a tile become -infinity.
static inline void keep_between(float* scores, int64_t low, int64_t high) {
  for (int64_t j = 0; j < low && j < 64; ++j) scores[j] = -__builtin_inff();
  for (int64_t j = high + 1 < 0 ? 0 : high + 1; j < 64; ++j) scores[j] = -__builtin_inff();
}

static inline void no_part(const PagedAttention& t, float* part) {
  const int64_t queries = t.queries();
  for (int64_t i = 0; i < queries * t.D; ++i) part[i] = 0;
  for (int64_t n = 0; n < queries; ++n) {
    part[queries * t.D + n] = -__builtin_inff();
    part[queries * (t.D + 1) + n] = 0;
  }
}

// The queries, scaled, one after the other: query n is token n % rows of head n / rows.
__attribute__((noinline)) static void gather_queries(const PagedAttention& t, float* q) {
  for (int64_t n = 0; n < t.queries(); ++n) {
    const float* source = t.q + n / t.rows * t.head_stride + n % t.rows * t.row_stride;
    for (int64_t d = 0; d < t.D; ++d) q[n * t.D + d] = source[d] * t.scale;
  }
}

// The next queries, at most four of them.
template <class T>
static inline void few_keys(int64_t queries, const float* q, const T* keys, int64_t D, float* scores, const T* next) {
  if (queries >= 4) return key_tile<4>(q, keys, D, scores, next);
  if (queries == 3) return key_tile<3>(q, keys, D, scores, next);
  if (queries == 2) return key_tile<2>(q, keys, D, scores, next);
  key_tile<1>(q, keys, D, scores, next);
}

template <class T>
static inline void few_values(
    int64_t queries, const float* weights, const float* keep, const T* v, int64_t count, int64_t D, float* out,
    const T* next) {
  if (queries >= 4) return value_tile<4>(weights, keep, v, D, count, D, out, next);
  if (queries == 3) return value_tile<3>(weights, keep, v, D, count, D, out, next);
  if (queries == 2) return value_tile<2>(weights, keep, v, D, count, D, out, next);
  value_tile<1>(weights, keep, v, D, count, D, out, next);
}

// One page's softmax of all queries into `part`: sums without division (queries x D), maxima, totals.
template <class T>
__attribute__((noinline)) static void page_part(const PagedAttention& t, const float* q, int64_t page, float* part, float* work) {
  const int64_t D = t.D, queries = t.queries(), kTile = PagedAttention::kTile, kTokens = PagedAttention::kTokens;
  float *out = part, *top = part + queries * D, *total = top + queries;
  float *scores = work, *keep = work + queries * kTile;
  no_part(t, part);
  const T* keys = (const T*)(t.pages[page] + t.offset);
  const T* values = keys + kTokens * D;
  const int64_t newest = t.position + t.rows - 1, oldest = t.window > 0 ? t.position - t.window + 1 : 0;
  for (int64_t first = page * kTokens; first < (page + 1) * kTokens && first <= newest; first += kTile) {
    if (first + kTile <= oldest) continue;
    const int64_t count = newest + 1 - first < kTile ? newest + 1 - first : kTile, at = first - page * kTokens;
    const T *tile_keys = keys + at * D, *tile_values = values + at * D;
    const bool more = first + kTile <= newest;
    const T* following = at == 0 ? tile_keys + kTile * D : more ? (const T*)(t.pages[page + 1] + t.offset) : nullptr;
    for (int64_t n = 0; n < queries; n += 4) {
      few_keys(queries - n, q + n * D, tile_keys, D, scores + n * kTile, n == 0 ? tile_values : nullptr);
    }
    for (int64_t n = 0; n < queries; ++n) {
      const int64_t position = t.position + n % t.rows;
      keep_between(scores + n * kTile, t.window > 0 ? position - t.window + 1 - first : 0, position - first);
      keep[n] = soften(scores + n * kTile, top[n], total[n]);
    }
    for (int64_t n = 0; n < queries; n += 4) {
      few_values(
          queries - n, scores + n * kTile, keep + n, tile_values, count, D, out + n * D,
          n == 0 && more ? following : nullptr);
    }
  }
}

static inline void any_page_part(const PagedAttention& t, const float* q, int64_t page, float* part, float* work) {
  if (t.half) return page_part<uint16_t>(t, q, page, part, work);
  page_part<float>(t, q, page, part, work);
}

// Adds what a page gave to the pages before it.
__attribute__((noinline)) static void join_page(const PagedAttention& t, const float* part, float* sums) {
  const int64_t queries = t.queries(), D = t.D;
  for (int64_t n = 0; n < queries; ++n) {
    const float top = part[queries * D + n], before = sums[queries * D + n];
    if (top == -__builtin_inff()) continue;
    const float best = top > before ? top : before;
    const float keep = exponential(splat(before - best))[0], factor = exponential(splat(top - best))[0];
    float *out = sums + n * D, &total = sums[queries * (D + 1) + n];
    const float* added = part + n * D;
    int64_t d = 0;
    for (; d + W <= D; d += W) store(out + d, load(out + d) * keep + load(added + d) * factor);
    for (; d < D; ++d) out[d] = fused(out[d], keep, added[d] * factor);
    total = fused(total, keep, part[queries * (D + 1) + n] * factor);
    sums[queries * D + n] = best;
  }
}

__attribute__((noinline)) static void write_queries(const PagedAttention& t, const float* sums) {
  const int64_t queries = t.queries(), D = t.D;
  for (int64_t n = 0; n < queries; ++n) {
    float* target = t.out + n / t.rows * t.out_head_stride + n % t.rows * t.out_row_stride;
    const float factor = 1.0f / sums[queries * (D + 1) + n];
    for (int64_t d = 0; d < D; ++d) target[d] = sums[n * D + d] * factor;
  }
}

// Everything at once, for chunks of a prompt. `work`: work_floats().
static void paged_rows(const PagedAttention& t, float* work) {
  float* q = work;
  float* part = q + t.queries() * t.D;
  float* sums = part + t.part_floats();
  float* rest = sums + t.part_floats();
  gather_queries(t, q);
  no_part(t, sums);
  for (int64_t page = t.first_page(); page <= t.last_page(); ++page) {
    any_page_part(t, q, page, part, rest);
    join_page(t, part, sums);
  }
  write_queries(t, sums);
}

// One page, so that the pages of few queries can be shared among threads; `part`: part_floats().
static void paged_part(const PagedAttention& t, int64_t page, float* part, float* work) {
  gather_queries(t, work);
  any_page_part(t, work, page, part, work + t.queries() * t.D);
}

// After paged_part of all pages, whose parts lie one after the other.
static void paged_join(const PagedAttention& t, const float* parts, float* work) {
  no_part(t, work);
  for (int64_t i = 0; i <= t.last_page() - t.first_page(); ++i) join_page(t, parts + i * t.part_floats(), work);
  write_queries(t, work);
}

template <class T>
static inline void turn_keys(const float* keys, int64_t row_stride, int64_t count, int64_t D, int64_t at, T* head) {
  constexpr int64_t kTile = PagedAttention::kTile;
  for (int64_t d = 0; d < D; ++d) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t token = at + i;
      put(head + token / kTile * kTile * D + kTile * d + token % kTile, keys[i * row_stride + d]);
    }
  }
}

// `count` keys (D floats, `row_stride` apart) to places at, at + 1, ... of a head's part of a page.
static void store_keys(
    const float* keys, int64_t row_stride, int64_t count, int64_t D, bool half, int64_t at, uint8_t* head) {
  if (half) return turn_keys(keys, row_stride, count, D, at, (uint16_t*)head);
  turn_keys(keys, row_stride, count, D, at, (float*)head);
}

template <class T>
static inline void copy_values(const float* values, int64_t row_stride, int64_t count, int64_t D, T* target) {
  for (int64_t i = 0; i < count; ++i) {
    int64_t d = 0;
    for (; d + W <= D; d += W) store(target + i * D + d, load(values + i * row_stride + d));
    for (; d < D; ++d) put(target + i * D + d, values[i * row_stride + d]);
  }
}

static void store_values(
    const float* values, int64_t row_stride, int64_t count, int64_t D, bool half, int64_t at, uint8_t* head) {
  const int64_t first = (PagedAttention::kTokens + at) * D;
  if (half) return copy_values(values, row_stride, count, D, (uint16_t*)head + first);
  copy_values(values, row_stride, count, D, (float*)head + first);
}
