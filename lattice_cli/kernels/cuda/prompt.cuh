// What a prompt's chunk goes through between mlx's products, a kernel for each: residuals and norms, attention's heads, gates.
// Hidden states are float32 here as in a step of decoding (step.cuh), what products take and give has 16 bits.
// A chunk has `tokens` for each row, of which the last may be padding; a `token` below counts over all rows.
#pragma once

#include "portable.cuh"

// Two numbers of 16 bits, four, eight.
template <bool HALF>
DEV float4 widen4(const u16* from) {
  const uint2 v = *reinterpret_cast<const uint2*>(from);
  return {widen<HALF>(u16(v.x)), widen<HALF>(u16(v.x >> 16)), widen<HALF>(u16(v.y)), widen<HALF>(u16(v.y >> 16))};
}
template <bool HALF>
DEV void narrow4(u16* to, float4 v) {
  *reinterpret_cast<uint2*>(to) = {narrow2<HALF>(v.x, v.y), narrow2<HALF>(v.z, v.w)};
}

// A token's hidden state and what a product adds to it (FIRST: an embedding, and nothing before it), summed to `sum` and
// normalised to `out`; a block of 128 threads.
//   h, sum (tokens, HIDDEN) float32; more, out (tokens, HIDDEN)
template <bool HALF, int HIDDEN, bool FIRST>
DEV void add_norm(const float* h, const u16* more, const float* weight, float eps, float* sum, u16* out) {
  constexpr int EACH = (HIDDEN + 511) / 512;  // groups of four of a thread
  const long begin = long(block_index()) * HIDDEN;
  float4 kept[EACH];
  float squares = 0;
  for (int i = 0; i < EACH; i++) {
    const int k = (i * 128 + thread_index()) * 4;
    if (k >= HIDDEN) continue;
    float4 v = widen4<HALF>(more + begin + k);
    if constexpr (!FIRST) {
      const float4 old = *reinterpret_cast<const float4*>(h + begin + k);
      v = {v.x + old.x, v.y + old.y, v.z + old.z, v.w + old.w};
    }
    *reinterpret_cast<float4*>(sum + begin + k) = v;
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    kept[i] = v;
  }
  float* sums = reinterpret_cast<float*>(shared_memory());
  squares = warp_sum(squares);
  if (thread_index() % 32 == 0) sums[thread_index() / 32] = squares;
  sync_block();
  const float scale = rsqrtf((sums[0] + sums[1] + sums[2] + sums[3]) / HIDDEN + eps);
  for (int i = 0; i < EACH; i++) {
    const int k = (i * 128 + thread_index()) * 4;
    if (k >= HIDDEN) continue;
    const float4 w = *reinterpret_cast<const float4*>(weight + k), v = kept[i];
    narrow4<HALF>(out + begin + k, {v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w});
  }
}

// silu(gate) * up; a thread for four numbers of `width` a token. A token has its gates and its ups `pitch` numbers after
// those of the token before.
template <bool HALF>
DEV void swiglu(const u16* gate, const u16* up, long pitch, int width, long numbers, u16* out) {
  const long at = (long(block_index()) * 256 + thread_index()) * 4;
  if (at >= numbers) return;
  const long from = at / width * pitch + at % width;
  const float4 g = widen4<HALF>(gate + from), u = widen4<HALF>(up + from);
  narrow4<HALF>(out + at, {silu(g.x) * u.x, silu(g.y) * u.y, silu(g.z) * u.z, silu(g.w) * u.w});
}

// What the recurrence gave, normalised head by head, times silu of its gate; a warp for each head of a token, blocks of four.
//   made (tokens, HEADS, DIM) float32; parts (tokens, pitch) with the gates from `at` on; out (tokens, HEADS, DIM)
template <bool HALF, int HEADS, int DIM>
DEV void gated_norm(const float* made, const u16* parts, long pitch, int at, const float* weight, float eps, long tokens,
                    u16* out) {
  constexpr int EACH = DIM / 32;
  const long unit = long(block_index()) * 4 + thread_index() / 32, token = unit / HEADS, head = unit % HEADS;
  if (token >= tokens) return;
  const int lane = thread_index() % 32;
  const float* from = made + unit * DIM + lane;
  const u16* gate = parts + token * pitch + at + head * DIM + lane;
  float y[EACH], squares = 0;
  for (int e = 0; e < EACH; e++) y[e] = from[e * 32], squares += y[e] * y[e];
  const float scale = rsqrtf(warp_sum(squares) / DIM + eps);
  for (int e = 0; e < EACH; e++)
    out[unit * DIM + lane + e * 32] = narrow<HALF>(y[e] * scale * weight[lane + e * 32] * silu(widen<HALF>(gate[e * 32])));
}

// Attention's heads of a token, normalised and turned: queries and keys in rows of heads, as attention takes them, and
// keys and values into their pages as well. A warp for each head, blocks of four.
//   parts (rows, tokens, pitch): queries (each with its gate behind it, if GATED), keys, values
//   queries (rows, HEADS, tokens, DIM); keys, values (rows, KV_HEADS, tokens, DIM); pages as in step.cuh
template <bool HALF, int HEADS, int KV_HEADS, int DIM, int TURNED, bool GATED, bool NORMED, int LAYERS, int PAGE>
DEV void attention_heads(const u16* parts, const float* q_norm, const float* k_norm, const float* turns, float eps,
                         u16* pages, int layer, const int* table, int table_width, const int* positions,
                         const int* counts, int tokens, int rows, u16* queries, u16* keys, u16* values) {
  constexpr int SLOTS = HEADS + 2 * KV_HEADS, QUERY = GATED ? 2 * DIM : DIM, QUERIES = HEADS * QUERY;
  constexpr int PITCH = QUERIES + 2 * KV_HEADS * DIM;
  const int warp = thread_index() / 32, lane = thread_index() % 32;
  const long unit = long(block_index()) * 4 + warp, all = unit / SLOTS;
  if (all >= long(rows) * tokens) return;
  const int slot = unit % SLOTS, row = all / tokens, token = all % tokens, position = positions[row] + token;
  const bool query = slot < HEADS, key = !query && slot < HEADS + KV_HEADS;
  const int head = query ? slot : key ? slot - HEADS : slot - HEADS - KV_HEADS;
  const u16* from = parts + all * PITCH + (query ? head * QUERY : QUERIES + (key ? head : KV_HEADS + head) * DIM);
  float* own = reinterpret_cast<float*>(shared_memory()) + warp * DIM;
  float squares = 0;
  for (int d = lane; d < DIM; d += 32) {
    own[d] = widen<HALF>(from[d]);
    squares += own[d] * own[d];
  }
  if (query || key) {
    if constexpr (NORMED) {
      const float scale = rsqrtf(warp_sum(squares) / DIM + eps);
      for (int d = lane; d < DIM; d += 32) own[d] *= scale * (query ? q_norm : k_norm)[d];
    }
    sync_warp();
    for (int d = lane; d < TURNED; d += 32) {
      float sine, cosine;
      sincosf(float(position) * turns[d], &sine, &cosine);
      const float x = own[d], y = own[d + TURNED];
      own[d] = x * cosine - y * sine;
      own[d + TURNED] = x * sine + y * cosine;
    }
    sync_warp();
  }
  u16* to = query ? queries + ((long(row) * HEADS + head) * tokens + token) * DIM
                  : (key ? keys : values) + ((long(row) * KV_HEADS + head) * tokens + token) * DIM;
  u16* kept = nullptr;
  if (!query && token < counts[row]) {
    const long page = table[row * table_width + position / PAGE];
    kept = pages + ((((page * LAYERS + layer) * 2 + !key) * KV_HEADS + head) * PAGE + position % PAGE) * DIM;
  }
  for (int d = lane; d < DIM; d += 32) {
    const u16 number = narrow<HALF>(own[d]);
    to[d] = number;
    if (kept != nullptr) kept[d] = number;
  }
}

// Keys and values of all tokens so far out of their pages, zeros from a row's end on; a thread for eight numbers of each.
//   keys, values (rows, KV_HEADS, tokens, DIM)
template <int KV_HEADS, int DIM, int LAYERS, int PAGE>
DEV void gather_pages(const u16* pages, int layer, const int* table, int table_width, const int* positions,
                      const int* counts, int tokens, int rows, u16* keys, u16* values) {
  const long i = long(block_index()) * 256 + thread_index();
  const int d = i % (DIM / 8) * 8, token = i / (DIM / 8) % tokens, head = i / (DIM / 8) / tokens % KV_HEADS;
  const long row = i / (DIM / 8) / tokens / KV_HEADS;
  if (row >= rows) return;
  uint4 key = {0, 0, 0, 0}, value = {0, 0, 0, 0};
  if (token < positions[row] + counts[row]) {
    const long page = table[row * table_width + token / PAGE];
    const u16* from = pages + (((page * LAYERS + layer) * 2 * KV_HEADS + head) * PAGE + token % PAGE) * DIM + d;
    key = *reinterpret_cast<const uint4*>(from);
    value = *reinterpret_cast<const uint4*>(from + long(KV_HEADS) * PAGE * DIM);
  }
  reinterpret_cast<uint4*>(keys)[i] = key;
  reinterpret_cast<uint4*>(values)[i] = value;
}

// What attention gave, its heads beside each other for each token, times the sigmoid of its gate; a thread for four numbers.
//   made (rows, HEADS, tokens, DIM); parts as above; out (rows, tokens, HEADS, DIM)
template <bool HALF, int HEADS, int DIM, bool GATED>
DEV void attention_gate(const u16* made, const u16* parts, long pitch, int tokens, int rows, u16* out) {
  const long at = (long(block_index()) * 256 + thread_index()) * 4, all = at / (HEADS * DIM);
  if (all >= long(rows) * tokens) return;
  const int row = all / tokens, token = all % tokens, head = at / DIM % HEADS, d = at % DIM;
  float4 v = widen4<HALF>(made + ((long(row) * HEADS + head) * tokens + token) * DIM + d);
  if constexpr (GATED) {
    const float4 g = widen4<HALF>(parts + all * pitch + (head * 2 + 1) * DIM + d);
    v = {v.x * sigmoid(g.x), v.y * sigmoid(g.y), v.z * sigmoid(g.z), v.w * sigmoid(g.w)};
  }
  narrow4<HALF>(out + at, v);
}

// Copies pieces of a pool: piece `pairs[2 i]` to piece `pairs[2 i + 1]`, `words` units of 16 bytes each.
DEV void copy_pieces(uint4* pool, const int* pairs, int count, long words) {
  for (long i = long(block_index()) * 256 + thread_index(); i < count * words; i += long(block_count()) * 256) {
    const long pair = i / words, at = i % words;
    pool[pairs[2 * pair + 1] * words + at] = pool[pairs[2 * pair] * words + at];
  }
}

// Puts pieces that lie one after the other into a pool, as pieces `numbers[i]` of it.
DEV void put_pieces(uint4* pool, const uint4* source, const int* numbers, int count, long words) {
  for (long i = long(block_index()) * 256 + thread_index(); i < count * words; i += long(block_count()) * 256)
    pool[numbers[i / words] * words + i % words] = source[i];
}
