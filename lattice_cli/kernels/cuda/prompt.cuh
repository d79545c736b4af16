// What a prompt's chunk does to the pools of cuda_state.py: the recurrent layers' convolution and scan over time, and the
// keys and values of attention. A step of decoding (step.cuh) goes on from there.
#pragma once

#include "portable.cuh"

// The causal convolution over the last four inputs of each channel, then silu. A thread has a channel of SPAN tokens; the
// inputs before the chunk come from `taps`, where the chunk's last ones go (both by position modulo 4), so the thread of
// the first tokens, who alone reads them, also writes them.
//   in, out (rows, tokens, channels); weight (channels, 4), the newest input last; taps as in step.cuh, of one layer
template <bool HALF>
DEV void convolve(const u16* in, const float* weight, float* taps, long slot_stride, const int* slots,
                  const int* positions, const int* counts, int tokens, int channels, u16* out) {
  constexpr int SPAN = 32;
  const int pieces = ceil_div(channels, 128), spans = ceil_div(tokens, SPAN);
  const int channel = block_index() % pieces * 128 + thread_index(), first = block_index() / pieces % spans * SPAN;
  const int row = block_index() / (pieces * spans), position = positions[row], count = counts[row];
  if (channel >= channels) return;
  float* own = taps + slots[row] * slot_stride + channel;
  const float4 w = *reinterpret_cast<const float4*>(weight + 4 * channel);
  const u16* from = in + long(row) * tokens * channels + channel;
  u16* to = out + long(row) * tokens * channels + channel;
  float before[3], kept[3];
  for (int i = 0; i < 3; i++) {  // three, two and one token earlier
    if (first == 0) before[i] = kept[i] = own[long((position + 1 + i) & 3) * channels];
    else before[i] = widen<HALF>(from[long(first - 3 + i) * channels]);
  }
#pragma unroll 8
  for (int t = first; t < least(first + SPAN, tokens); t++) {
    const float now = t < count ? widen<HALF>(from[long(t) * channels]) : 0.0f;
    const float sum = w.x * before[0] + w.y * before[1] + w.z * before[2] + w.w * now;
    before[0] = before[1], before[1] = before[2], before[2] = now;
    to[long(t) * channels] = t < count ? narrow<HALF>(silu(sum)) : u16(0);  // zeros are padding
  }
  if (first != 0) return;
  for (int i = 0; i < 3; i++) {
    const int t = count - 3 + i;  // below zero: of what was there before
    const float now = t >= 0 ? widen<HALF>(from[long(t) * channels]) : t == -1 ? kept[2] : t == -2 ? kept[1] : kept[0];
    own[long((position + count + 1 + i) & 3) * channels] = now;
  }
}

// A number of an input as float32.
template <bool HALF>
DEV float number(const u16* from) { return widen<HALF>(*from); }
template <bool HALF>
DEV float number(const float* from) { return *from; }
template <bool HALF>
DEV void set_number(u16* to, float value) { *to = narrow<HALF>(value); }
template <bool HALF>
DEV void set_number(float* to, float value) { *to = value; }

// Inputs of the scan. A token's queries (key heads, key dim) are at queries + token * query_stride, and so on; a token's
// gates (value heads) one after the other.
template <class T>
struct Scan {
  const T *queries, *keys, *values;
  long query_stride, key_stride, value_stride;  // from token to token; a row has `tokens` of them
  const T *a, *b;
  const float *a_log, *dt_bias;  // (value heads,)
  const int* counts;             // (rows,): tokens that are none of them padding; null: all
  const bool* mask;              // (rows, tokens): others leave the state as it is; null: all
  int tokens;
};

// The gated delta rule over time, state in registers: a block has 16 of a head's values for one row, eight lanes
// share each of them, and a lane has every eighth group of four of the key's dimensions.
//   from, to: states (value dim, key dim) of this block's row and head; out (rows, tokens, value heads, value dim)
// NORMED: queries and keys come as the convolution made them; else as mlx-lm's normalize_qk leaves them.
// Both sums over the state are taken before it changes, so that they wait for each other's shuffles only once:
//   q . (g S + k d) = g (q . S) + (q . k) d,   d = beta (v - g (k . S))
template <class T, bool HALF, bool NORMED, int KEY_HEADS, int VALUE_HEADS, int KEY_DIM, int VALUE_DIM>
DEV void scan(const Scan<T>& in, int row, int head, int share, const float* from, float* to, T* out) {
  constexpr int STAGED = 16, WIDTH = 16, GROUPS = KEY_DIM / 32;
  const int key_head = head / (VALUE_HEADS / KEY_HEADS);
  const int thread = thread_index(), warp = thread / 32, lane = thread % 32, value = thread / 8, part = thread % 8;
  float* queries = reinterpret_cast<float*>(shared_memory());  // (STAGED, KEY_DIM)
  float* keys = queries + STAGED * KEY_DIM;
  float* values = keys + STAGED * KEY_DIM;  // (STAGED, WIDTH)
  float* gates = values + STAGED * WIDTH;   // (STAGED, 3): decay, beta, q . k
  const int count = in.counts == nullptr ? in.tokens : in.counts[row];
  const long place = long(share * WIDTH + value) * KEY_DIM + part * 4;
  float state[GROUPS][4];
  for (int i = 0; i < GROUPS; i++) {
    const float4 v = *reinterpret_cast<const float4*>(from + place + i * 32);
    state[i][0] = v.x, state[i][1] = v.y, state[i][2] = v.z, state[i][3] = v.w;
  }
  const float rate = -expf(in.a_log[head]), bias = in.dt_bias[head];
  for (int first = 0; first < in.tokens; first += STAGED) {
    sync_block();
    for (int s = warp; s < STAGED; s += 4) {
      if (first + s >= count) break;
      const long token = long(row) * in.tokens + first + s;
      const T* query = in.queries + token * in.query_stride + key_head * KEY_DIM + lane;
      const T* key = in.keys + token * in.key_stride + key_head * KEY_DIM + lane;
      float q[GROUPS], k[GROUPS], qq = 0, kk = 0, qk = 0;
      for (int i = 0; i < GROUPS; i++) {
        q[i] = number<HALF>(query + i * 32), k[i] = number<HALF>(key + i * 32);
        qq += q[i] * q[i], kk += k[i] * k[i], qk += q[i] * k[i];
      }
      qk = warp_sum(qk);
      float q_scale = 1, k_scale = 1;
      if constexpr (NORMED) {
        q_scale = rsqrtf(warp_sum(qq) + 1e-6f) * rsqrtf(float(KEY_DIM));
        k_scale = rsqrtf(warp_sum(kk) + 1e-6f);
      }
      for (int i = 0; i < GROUPS; i++) {
        queries[s * KEY_DIM + i * 32 + lane] = q[i] * q_scale;
        keys[s * KEY_DIM + i * 32 + lane] = k[i] * k_scale;
      }
      if (lane < WIDTH)
        values[s * WIDTH + lane] =
            number<HALF>(in.values + token * in.value_stride + head * VALUE_DIM + share * WIDTH + lane);
      if (lane == 0) {
        gates[s * 3] = expf(rate * softplus(number<HALF>(in.a + token * VALUE_HEADS + head) + bias));
        gates[s * 3 + 1] = sigmoid(number<HALF>(in.b + token * VALUE_HEADS + head));
        gates[s * 3 + 2] = qk * q_scale * k_scale;
      }
    }
    sync_block();
    for (int s = 0; s < STAGED && first + s < in.tokens; s++) {
      const long token = long(row) * in.tokens + first + s;
      T* result = out + (token * VALUE_HEADS + head) * VALUE_DIM + share * WIDTH + value;
      if (first + s >= count || (in.mask != nullptr && !in.mask[token])) {  // padding
        if (part == 0) set_number<HALF>(result, 0.0f);
        continue;
      }
      const float *q = queries + s * KEY_DIM + part * 4, *k = keys + s * KEY_DIM + part * 4;
      const float decay = gates[s * 3], beta = gates[s * 3 + 1];
      float by_key = 0, by_query = 0;
      for (int i = 0; i < GROUPS; i++) {
        const float4 kv = *reinterpret_cast<const float4*>(k + i * 32), qv = *reinterpret_cast<const float4*>(q + i * 32);
        by_key += state[i][0] * kv.x + state[i][1] * kv.y + (state[i][2] * kv.z + state[i][3] * kv.w);
        by_query += state[i][0] * qv.x + state[i][1] * qv.y + (state[i][2] * qv.z + state[i][3] * qv.w);
      }
      for (int mask = 4; mask > 0; mask /= 2) {
        by_key += shuffle_xor(by_key, mask);
        by_query += shuffle_xor(by_query, mask);
      }
      const float change = beta * (values[s * WIDTH + value] - decay * by_key);
      if (part == 0) set_number<HALF>(result, decay * by_query + gates[s * 3 + 2] * change);
      for (int i = 0; i < GROUPS; i++) {
        const float4 kv = *reinterpret_cast<const float4*>(k + i * 32);
        state[i][0] = decay * state[i][0] + kv.x * change, state[i][1] = decay * state[i][1] + kv.y * change;
        state[i][2] = decay * state[i][2] + kv.z * change, state[i][3] = decay * state[i][3] + kv.w * change;
      }
    }
  }
  for (int i = 0; i < GROUPS; i++)
    *reinterpret_cast<float4*>(to + place + i * 32) = {state[i][0], state[i][1], state[i][2], state[i][3]};
}

// Keys and values of a chunk into their pages; a thread for eight numbers.
//   keys, values (rows, tokens, heads, head dim); pages as in step.cuh
template <int HEADS, int HEAD_DIM, int LAYERS, int PAGE>
DEV void append(const u16* keys, const u16* values, u16* pages, int layer, const int* table, int table_width,
                const int* positions, const int* counts, int tokens, int rows) {
  constexpr int EACH = HEAD_DIM / 8;
  const long total = long(rows) * tokens * HEADS * EACH;
  for (long i = long(block_index()) * 256 + thread_index(); i < total; i += long(block_count()) * 256) {
    const int d = i % EACH * 8, head = i / EACH % HEADS, token = i / (EACH * HEADS) % tokens;
    const int row = i / (long(EACH) * HEADS * tokens);
    if (token >= counts[row]) continue;
    const int at = positions[row] + token;
    const long page = table[row * table_width + at / PAGE];
    const long to = (((page * LAYERS + layer) * 2 * HEADS + head) * PAGE + at % PAGE) * HEAD_DIM + d;
    *reinterpret_cast<uint4*>(pages + to) = *reinterpret_cast<const uint4*>(keys + i * 8);
    *reinterpret_cast<uint4*>(pages + to + long(HEADS) * PAGE * HEAD_DIM) = *reinterpret_cast<const uint4*>(values + i * 8);
  }
}

// Copies pieces of a pool: piece `pairs[2 i]` to piece `pairs[2 i + 1]`, `words` units of 16 bytes each.
DEV void copy_pieces(uint4* pool, const int* pairs, int count, long words) {
  for (long i = long(block_index()) * 256 + thread_index(); i < count * words; i += long(block_count()) * 256) {
    const long pair = i / words, at = i % words;
    pool[pairs[2 * pair + 1] * words + at] = pool[pairs[2 * pair] * words + at];
  }
}
