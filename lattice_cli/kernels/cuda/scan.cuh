// The gated delta rule over time (https://arxiv.org/abs/2412.06464, as Qwen3.5 has it): for any inputs token by token
// (`scan`, which serves mlx-lm's networks), and for the prompts of fused ones in spans of tokens (`prepare_span` and
// `scan_spans`). States are what a step of decoding (step.cuh) goes on from.
#pragma once

#include "portable.cuh"

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

// In spans: with the state S before a span and decays G(t) since its beginning, what the rule adds for token t is
//   d(t) = beta(t) (v(t) - G(t) k(t).S - sum over i < t of G(t)/G(i) k(t).k(i) d(i)),
// a triangular system, the same for all values of a head: its inverse, times beta, is `solve`. Then
//   out(t) = G(t) q(t).S + sum over i <= t of weigh(t, i) d(i),  weigh(t, i) = G(t)/G(i) q(t).k(i)
//   S after = G(last) S + sum over i of G(last)/G(i) k(i) d(i).
// Only the last two lines wait for the span before; everything else is made for all spans at once.
constexpr int SPAN = 16;        // tokens
constexpr int SOLVE = 20;       // numbers from row to row of `solve` and `weigh`
constexpr int MATRICES = 2 * SPAN * SOLVE + 2 * SPAN;  // of a span and head: solve, weigh, G(t), G(last)/G(t)

// Convolution, silu and norms of a span's queries, keys and values, and its matrices; a block of 128 threads for each value
// head. The convolution's inputs before the chunk are in `taps`, by position modulo 4.
//   parts (rows, tokens, pitch): queries, keys, values, the output's gates, beta's and the decay's inputs; conv (channels, 4)
//   queries, keys (rows, spans, KEY_HEADS, SPAN, KEY_DIM); values (rows, spans, VALUE_HEADS, SPAN, VALUE_DIM)
template <bool HALF, int KEY_HEADS, int VALUE_HEADS, int KEY_DIM, int VALUE_DIM>
DEV void prepare_span(const u16* parts, const float* conv, const float* a_log, const float* dt_bias, const float* taps,
                      long slot_stride, const int* slots, const int* positions, const int* counts, int tokens,
                      float* queries, float* keys, float* values, float* matrices) {
  constexpr int RATIO = VALUE_HEADS / KEY_HEADS, CHANNELS = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM;
  constexpr long PITCH = CHANNELS + VALUE_HEADS * VALUE_DIM + 2 * VALUE_HEADS;
  constexpr int WIDE = KEY_DIM + 4;
  const int spans = ceil_div(tokens, SPAN), thread = thread_index(), warp = thread / 32, lane = thread % 32;
  const int head = block_index() % VALUE_HEADS, span = block_index() / VALUE_HEADS % spans;
  const int row = block_index() / (VALUE_HEADS * spans), first = span * SPAN, key_head = head / RATIO;
  const int count = counts[row], position = positions[row];
  const long unit = (long(row) * spans + span) * VALUE_HEADS + head;
  const u16* in = parts + long(row) * tokens * PITCH;
  const float* old = taps + slots[row] * slot_stride;
  float* both = reinterpret_cast<float*>(shared_memory());  // (2 SPAN, WIDE): queries, then keys
  float* by_key = both + 2 * SPAN * WIDE;                   // (SPAN, SPAN + 1): k(t).k(i)
  float* by_query = by_key + SPAN * (SPAN + 1);
  float* logs = by_query + SPAN * (SPAN + 1);               // of the decays, each, then summed
  float *sums = logs + SPAN, *betas = sums + SPAN;

  for (int i = thread; i < 2 * KEY_DIM + VALUE_DIM; i += 128) {
    const int d = i < KEY_DIM ? i : i < 2 * KEY_DIM ? i - KEY_DIM : i - 2 * KEY_DIM;
    const int channel = i < KEY_DIM       ? key_head * KEY_DIM + d
                        : i < 2 * KEY_DIM ? (KEY_HEADS + key_head) * KEY_DIM + d
                                          : 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + d;
    const float4 w = *reinterpret_cast<const float4*>(conv + 4 * channel);
    float before[3];
    for (int j = 0; j < 3; j++) {
      const int t = first - 3 + j;
      before[j] = t < 0 ? old[long((position + t) & 3) * CHANNELS + channel] : widen<HALF>(in[t * PITCH + channel]);
    }
    for (int s = 0; s < SPAN; s++) {
      const float now = first + s < count ? widen<HALF>(in[(first + s) * PITCH + channel]) : 0.0f;
      const float sum = w.x * before[0] + w.y * before[1] + w.z * before[2] + w.w * now;
      before[0] = before[1], before[1] = before[2], before[2] = now;
      const float y = first + s < count ? silu(sum) : 0.0f;  // zeros are padding
      if (i < 2 * KEY_DIM) both[(i < KEY_DIM ? s : SPAN + s) * WIDE + d] = y;
      else values[(unit * SPAN + s) * VALUE_DIM + d] = y;
    }
  }
  if (thread < SPAN) {
    const bool there = first + thread < count;
    const u16* gates = in + (first + thread) * PITCH + CHANNELS + VALUE_HEADS * VALUE_DIM + head;
    logs[thread] = there ? -expf(a_log[head]) * softplus(widen<HALF>(gates[VALUE_HEADS]) + dt_bias[head]) : 0.0f;
    betas[thread] = there ? sigmoid(widen<HALF>(gates[0])) : 0.0f;
  }
  sync_block();
  if (thread < SPAN) {
    float sum = 0;
    for (int i = 0; i < SPAN; i++) sum += i <= thread ? logs[i] : 0.0f;
    sums[thread] = sum;
  }
  const bool owner = head % RATIO == 0;
  for (int s = warp; s < 2 * SPAN; s += 4) {
    float* one = both + s * WIDE;
    float squares = 0;
    for (int d = lane; d < KEY_DIM; d += 32) squares += one[d] * one[d];
    const float scale = rsqrtf(warp_sum(squares) + 1e-6f) * (s < SPAN ? rsqrtf(float(KEY_DIM)) : 1.0f);
    float* to = (s < SPAN ? queries : keys) +
                (((long(row) * spans + span) * KEY_HEADS + key_head) * SPAN + s % SPAN) * KEY_DIM;
    for (int d = lane; d < KEY_DIM; d += 32) {
      one[d] *= scale;
      if (owner) to[d] = one[d];
    }
  }
  sync_block();
  const int i0 = thread % 8 * 2, t0 = thread / 8 % 8 * 2;  // two by two products of a thread
  if (i0 <= t0) {
    const float *left = both + (thread < 64 ? SPAN + t0 : t0) * WIDE, *right = both + (SPAN + i0) * WIDE;
    float sum[2][2] = {};
#pragma unroll 4
    for (int d = 0; d < KEY_DIM; d += 4) {
      for (int a = 0; a < 2; a++)
        for (int b = 0; b < 2; b++) {
          const float4 x = *reinterpret_cast<const float4*>(left + a * WIDE + d);
          const float4 y = *reinterpret_cast<const float4*>(right + b * WIDE + d);
          sum[a][b] += x.x * y.x + x.y * y.y + (x.z * y.z + x.w * y.w);
        }
    }
    float* to = thread < 64 ? by_key : by_query;
    for (int a = 0; a < 2; a++)
      for (int b = 0; b < 2; b++) to[(t0 + a) * (SPAN + 1) + i0 + b] = sum[a][b];
  }
  sync_block();
  float *solve = matrices + unit * MATRICES, *weigh = solve + SPAN * SOLVE, *decays = weigh + SPAN * SOLVE;
  for (int at = thread; at < SPAN * SPAN; at += 128) {
    const int t = at / SPAN, i = at % SPAN;
    const float decay = i <= t ? expf(sums[t] - sums[i]) : 0.0f;
    weigh[t * SOLVE + i] = i <= t ? decay * by_query[t * (SPAN + 1) + i] : 0.0f;
    by_key[t * (SPAN + 1) + i] = i < t ? betas[t] * decay * by_key[t * (SPAN + 1) + i] : 0.0f;
  }
  if (thread < SPAN) decays[thread] = expf(sums[thread]), decays[SPAN + thread] = expf(sums[SPAN - 1] - sums[thread]);
  sync_block();
  if (thread < SPAN) {  // a column of the inverse
    float x[SPAN];
#pragma unroll
    for (int t = 0; t < SPAN; t++) {
      x[t] = t == thread ? 1.0f : 0.0f;
#pragma unroll
      for (int i = 0; i < t; i++) x[t] -= by_key[t * (SPAN + 1) + i] * x[i];
      solve[t * SOLVE + thread] = x[t] * betas[thread];
    }
  }
}

// N numbers of a lane.
template <int N>
DEV void read_numbers(const float* from, float to[N]) {
  if constexpr (N % 4 == 0) {
    for (int i = 0; i < N; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(from + i);
      to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
    }
  } else {
    for (int i = 0; i < N; i++) to[i] = from[i];
  }
}

// Sums over the lanes of `a`'s 2 N numbers in a lane: afterwards lane l has those of 2 l and 2 l + 1, in a[0] and a[1].
template <int N>
DEV void share_sums(float a[2 * N]) {
  const bool upper = thread_index() & (N / 2);
#pragma unroll
  for (int i = 0; i < N; i++) {
    const float sent = upper ? a[i] : a[i + N], kept = upper ? a[i + N] : a[i];
    a[i] = kept + shuffle_xor(sent, N / 2);
  }
  if constexpr (N > 2) share_sums<N / 2>(a);
}

// The spans of a row one after the other; a block of 128 threads has 16 of a head's values, a warp four of them, whose state
// its lanes share by the key's dimensions. The next span is copied while one is computed.
//   state (VALUE_DIM, KEY_DIM) of the row and head; out (rows, tokens, VALUE_HEADS, VALUE_DIM) float32
//   taps: the chunk's last inputs go there, each by the block that has its channel
template <bool HALF, int KEY_HEADS, int VALUE_HEADS, int KEY_DIM, int VALUE_DIM>
struct SpanScan {
  static constexpr int WIDTH = 16, EACH = KEY_DIM / 32, SHARES = VALUE_DIM / WIDTH, RATIO = VALUE_HEADS / KEY_HEADS;
  static constexpr int CHANNELS = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM;
  static constexpr long PITCH = CHANNELS + VALUE_HEADS * VALUE_DIM + 2 * VALUE_HEADS;
  static constexpr int STAGE = 2 * SPAN * KEY_DIM + SPAN * WIDTH + MATRICES;  // numbers: keys, queries, values, matrices
  static constexpr int OWN = 3 * SPAN * 4;                                    // of a warp
  static constexpr int BYTES = 4 * (2 * STAGE + 4 * OWN);

  const float *queries, *keys, *values, *matrices;
  int spans, row, head, share;

  DEV float* stage(int span) const { return reinterpret_cast<float*>(shared_memory()) + span % 2 * STAGE; }

  DEV void send(int span) const {
    const long all = long(row) * spans + span, unit = all * VALUE_HEADS + head;
    float *to = stage(span), *to_values = to + 2 * SPAN * KEY_DIM, *to_matrices = to_values + SPAN * WIDTH;
    const long from = (all * KEY_HEADS + head / RATIO) * SPAN * KEY_DIM;
    for (int i = thread_index() * 4; i < SPAN * KEY_DIM; i += 512) {
      copy(to + i, keys + from + i);
      copy(to + SPAN * KEY_DIM + i, queries + from + i);
    }
    for (int i = thread_index() * 4; i < SPAN * WIDTH; i += 512)
      copy(to_values + i, values + (unit * SPAN + i / WIDTH) * VALUE_DIM + share * WIDTH + i % WIDTH);
    for (int i = thread_index() * 4; i < MATRICES; i += 512) copy(to_matrices + i, matrices + unit * MATRICES + i);
  }
  DEV static void copy(float* to, const float* from) {
    copy_async<16>(reinterpret_cast<u8*>(to), reinterpret_cast<const u8*>(from));
  }

  DEV void run(int tokens, int count, float* state, float* out) const {
    const int warp = thread_index() / 32, lane = thread_index() % 32, used = ceil_div(count, SPAN);
    float* corrected = reinterpret_cast<float*>(shared_memory()) + 2 * STAGE + warp * OWN;  // (SPAN, 4) each
    float *added = corrected + SPAN * 4, *kept = added + SPAN * 4;
    float* mine = state + long(share * WIDTH + warp * 4) * KEY_DIM + lane * EACH;
    float* to = out + ((long(row) * tokens) * VALUE_HEADS + head) * VALUE_DIM + share * WIDTH + warp * 4 + lane % 4;
    float s[4][EACH];
    for (int j = 0; j < 4; j++) read_numbers<EACH>(mine + j * KEY_DIM, s[j]);
    if (used > 0) send(0);
    commit_async();
#pragma unroll 1
    for (int span = 0; span < used; span++) {
      if (span + 1 < used) send(span + 1);
      commit_async();
      wait_async<1>();
      sync_block();
      const float *key = stage(span) + lane * EACH, *query = key + SPAN * KEY_DIM, *value = stage(span) + 2 * SPAN * KEY_DIM;
      const float *solve = value + SPAN * WIDTH, *weigh = solve + SPAN * SOLVE, *decays = weigh + SPAN * SOLVE;
      float by_query[2];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float a[64];  // of token, value, and key or query
#pragma unroll
        for (int t = 0; t < 8; t++) {
          float k[EACH], q[EACH];
          read_numbers<EACH>(key + (half * 8 + t) * KEY_DIM, k);
          read_numbers<EACH>(query + (half * 8 + t) * KEY_DIM, q);
#pragma unroll
          for (int j = 0; j < 4; j++) {
            float of_key = 0, of_query = 0;
            for (int e = 0; e < EACH; e++) of_key += k[e] * s[j][e], of_query += q[e] * s[j][e];
            a[(t * 4 + j) * 2] = of_key, a[(t * 4 + j) * 2 + 1] = of_query;
          }
        }
        share_sums<32>(a);
        const int t = half * 8 + lane / 4;
        by_query[half] = a[1];
        corrected[half * 32 + lane] = value[t * WIDTH + warp * 4 + lane % 4] - decays[t] * a[0];
      }
      sync_warp();
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int t = half * 8 + lane / 4;
        const float change = row_of(solve + t * SOLVE, corrected + lane % 4);
        added[half * 32 + lane] = change;
        kept[half * 32 + lane] = decays[SPAN + t] * change;
      }
      sync_warp();
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int t = half * 8 + lane / 4, token = span * SPAN + t;
        const float y = decays[t] * by_query[half] + row_of(weigh + t * SOLVE, added + lane % 4);
        if (token < count) to[long(token) * VALUE_HEADS * VALUE_DIM] = y;
      }
      const float decay = decays[SPAN - 1];
      for (int j = 0; j < 4; j++)
        for (int e = 0; e < EACH; e++) s[j][e] *= decay;
#pragma unroll 4
      for (int t = 0; t < SPAN; t++) {
        float k[EACH], more[4];
        read_numbers<EACH>(key + t * KEY_DIM, k);
        read_numbers<4>(kept + t * 4, more);
        for (int j = 0; j < 4; j++)
          for (int e = 0; e < EACH; e++) s[j][e] += k[e] * more[j];
      }
      sync_block();  // this stage is written next
    }
    wait_async<0>();
    for (int token = count + lane / 4; token < tokens; token += 8) to[long(token) * VALUE_HEADS * VALUE_DIM] = 0.0f;
    if (count == 0) return;  // the state may be another's
    for (int j = 0; j < 4; j++)
      for (int e = 0; e < EACH; e++) mine[j * KEY_DIM + e] = s[j][e];
  }

  // A row of a matrix times four columns that lie side by side, of which this is one.
  DEV static float row_of(const float* row, const float* column) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < SPAN; i += 4) {
      const float4 m = *reinterpret_cast<const float4*>(row + i);
      sum += m.x * column[i * 4] + m.y * column[i * 4 + 4] + (m.z * column[i * 4 + 8] + m.w * column[i * 4 + 12]);
    }
    return sum;
  }

  // The last inputs of the chunk for the convolution of the next.
  DEV void keep_taps(const u16* parts, int tokens, int count, int position, float* taps) const {
    const u16* in = parts + long(row) * tokens * PITCH;
    const auto keep = [&](int channel) {
      for (int t = most(0, count - 3); t < count; t++)
        taps[long((position + t) & 3) * CHANNELS + channel] = widen<HALF>(in[t * PITCH + channel]);
    };
    if (thread_index() < WIDTH) keep(2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + share * WIDTH + thread_index());
    if (head % RATIO != 0) return;
    for (int i = share + thread_index() * SHARES; i < KEY_DIM; i += 128 * SHARES) {
      keep(head / RATIO * KEY_DIM + i);
      keep((KEY_HEADS + head / RATIO) * KEY_DIM + i);
    }
  }
};
