// Attention over pages of keys and values: in parts of a row's context, which are joined afterwards.
#pragma once

#include "recurrent.cuh"

template <class C>
struct Attention : Recurrent<C> {
  using B = Recurrent<C>;
  using B::B;
  using typename B::Linear, typename B::Places, typename B::S;
  using B::BUNDLES, B::JOINED, B::KEY_ROWS, B::PART, B::PARTS, B::PER_KEY, B::QUERY_ROWS, B::THREADS, B::TOGETHER, B::a, B::rows,
      B::floats, B::joined, B::mixed, B::wait;

  // A row's context is cut into as many parts as keep all blocks busy.
  DEV int most_parts() const { return least(C::MOST_PARTS, ceil_div(2 * block_count(), rows * BUNDLES)); }
  DEV int parts(int row, int most) const { return least(most, ceil_div(a.positions[row] + 1, 32)); }

  // Where a token's key lies; its value is KEY_ROWS * PAGE numbers further.
  DEV u16* page(int row, int layer, int head, int token) const {
    const long number = a.table[row * a.table_width + token / C::PAGE];
    return a.pages + (((number * C::ATTENTION_LAYERS + layer) * 2 * C::KV_HEADS + head) * C::PAGE +
                      token % C::PAGE) * C::HEAD_DIM;
  }

  // One head of the joined product, normalised and turned, into shared memory; one warp.
  DEV void turned(const float* from, const float* norm, int position, float* to) const {
    constexpr int EACH = C::HEAD_DIM / 32;
    const int lane = thread_index() % 32;
    float x[EACH], w[EACH], sum = 0;
#pragma unroll
    for (int e = 0; e < EACH; e++) x[e] = load_fresh(from + lane + 32 * e), w[e] = C::HEAD_NORM ? norm[lane + 32 * e] : 1.0f;
    if constexpr (C::HEAD_NORM) {
      for (int e = 0; e < EACH; e++) sum += x[e] * x[e];
      const float scale = rsqrtf(warp_sum(sum) / C::HEAD_DIM + C::EPS);
      for (int e = 0; e < EACH; e++) x[e] *= scale * w[e];
    }
    for (int e = 0; e < EACH; e++) to[lane + 32 * e] = x[e];
    sync_warp();
#pragma unroll 1
    for (int d = lane; d < C::TURNED; d += 32) {
      float sine, cosine;
      sincosf(float(position) * a.turns[d], &sine, &cosine);
      const float x = to[d], y = to[d + C::TURNED];
      to[d] = x * cosine - y * sine;
      to[d + C::TURNED] = x * sine + y * cosine;
    }
    sync_warp();
  }

  // Keys and values of earlier tokens as one warp meets them: of every part that is this block's each WARPS-th token.
  struct Tokens {
    static constexpr int BYTES = 2 * C::HEAD_DIM, RING = ring_of(C::WARPS, 2 * BYTES, S::PIPE);

    const Attention& step;
    const int index, most;
    int unit, token = 0, end = 0;
    const u16* from = nullptr;
    u32 sent = 0, taken = 0;

    DEV Tokens(const Attention& step, int index, int most) : step(step), index(index), most(most), unit(block_index()) {
      open();
#pragma unroll 1
      for (int i = 0; i < RING; i++) send();
    }
    DEV int units() const { return step.rows * BUNDLES * most; }
    // Goes to the next token, to the next unit that has one, or to nothing.
    DEV void open() {
      for (; unit < units(); unit += block_count()) {
        const int row = unit / (BUNDLES * most), part = unit % most, count = step.parts(row, most);
        if (part >= count) continue;
        const int position = step.a.positions[row];
        token = position * part / count + thread_index() / 32, end = position * (part + 1) / count;
        if (token < end) return find();
      }
    }
    DEV void find() {
      const int key_head = unit / most % BUNDLES / (PER_KEY / TOGETHER);
      from = step.page(unit / (BUNDLES * most), index, key_head, token);
    }
    DEV u16* slot(u32 number) const {
      return reinterpret_cast<u16*>(S::pipe()) + (thread_index() / 32 * RING + number % RING) * 2 * C::HEAD_DIM;
    }
    DEV void send() {
      if (unit < units()) {
        copy_row<BYTES>(slot(sent), from);
        copy_row<BYTES>(slot(sent) + C::HEAD_DIM, from + KEY_ROWS * C::PAGE);
        token += C::WARPS, from += C::WARPS * C::HEAD_DIM;
        if (token >= end) {
          unit += block_count();
          open();
        } else if (token % C::PAGE < C::WARPS) {
          find();
        }
      }
      commit_async();
      sent++;
    }
  };

  // Attention by parts of the contexts. A warp takes BATCH tokens at a time, a lane EACH columns of them; their products
  // with the queries are added up over the lanes so that each lane ends with one of them, (head, token).
  DEV void attend(const u8* layer, const Places& at, int index) const {
    constexpr int D = C::HEAD_DIM, EACH = D / 32, PADDED = TOGETHER == 3 ? 4 : TOGETHER;
    constexpr int BATCH = Tokens::RING >= 4 ? 4 : Tokens::RING, SCORES = PADDED * BATCH;
    const int warp = thread_index() / 32, lane = thread_index() % 32;
    const int own_head = lane / (32 / PADDED), own_token = lane / (32 / SCORES) % BATCH;
    float* heads = reinterpret_cast<float*>(S::rows());        // (TOGETHER + 1, D): queries, the new key
    u16* newest = reinterpret_cast<u16*>(heads + (TOGETHER + 1) * D);  // (2, D): the new key and value, rounded
    float* merged = heads + (TOGETHER + 2) * D;                // (WARPS, TOGETHER, PART)
    float* weights = S::misc() + warp * 32;                    // (BATCH, PADDED)
    float* keeps = weights + SCORES;                           // (PADDED,)
    Tokens tokens(*this, index, most_parts());
    bool waited = false;
#pragma unroll 1
    for (int unit = block_index(); unit < tokens.units(); unit += block_count()) {
      const int row = unit / (BUNDLES * tokens.most), bundle = unit / tokens.most % BUNDLES, part = unit % tokens.most;
      const int count = parts(row, tokens.most), position = a.positions[row];
      if (part >= count) continue;
      const int key_head = bundle / (PER_KEY / TOGETHER), head0 = bundle * TOGETHER;
      const float* in = joined() + long(row) * JOINED;
      const bool last = part == count - 1;
      if (!waited) wait();
      waited = true;
      sync_block();
#pragma unroll 1
      for (int h = warp; h <= TOGETHER; h += C::WARPS) {
        const bool query = h < TOGETHER;
        const float* from = query ? in + (head0 + h) * D * (C::GATED ? 2 : 1) : in + QUERY_ROWS + key_head * D;
        if (query || last) turned(from, floats(layer, query ? at.q_norm : at.k_norm), position, heads + h * D);
      }
      sync_block();
      float q[TOGETHER][EACH], acc[TOGETHER][EACH], top = -1e30f, sum = 0;  // of this lane's head
      for (int h = 0; h < TOGETHER; h++) {
        load_each<EACH>(heads + h * D + lane * EACH, q[h]);
        for (int e = 0; e < EACH; e++) q[h][e] *= C::SCALE * 1.44269504f, acc[h][e] = 0;  // for powers of two
      }
      // The last part has the new token besides.
      const int begin = position * part / count, end = position * (part + 1) / count, after = end + last;
      if (last && (end - begin) % C::WARPS == warp)
        keep_newest(in, row, index, key_head, head0 % PER_KEY == 0, heads + TOGETHER * D, newest);
#pragma unroll 1
      for (int token = begin + warp; token < after; token += BATCH * C::WARPS) {
        const u16* from[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
          const int number = token + b * C::WARPS;
          from[b] = (number < end ? tokens.slot(tokens.taken + b) : newest) + lane * EACH;
        }
        wait_async<Tokens::RING - BATCH>();
        sync_warp();
        float score[SCORES];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
          float key[EACH] = {};
          if (token + b * C::WARPS < after) read_each<C::HALF, EACH>(from[b], key);
          for (int h = 0; h < PADDED; h++) {
            score[h * BATCH + b] = 0;
            for (int e = 0; e < EACH; e++) score[h * BATCH + b] += q[h < TOGETHER ? h : 0][e] * key[e];
          }
        }
        const bool there = token + own_token * C::WARPS < after;
        const float sum_of_own = share_out<SCORES>(score), own = there ? sum_of_own : -1e30f;
        float higher = own;
        for (int mask = 32 / SCORES; mask < 32 / PADDED; mask *= 2) higher = fmaxf(higher, shuffle_xor(higher, mask));
        higher = fmaxf(higher, top);
        const float keep = exp2f(top - higher), weight = there ? exp2f(own - higher) : 0.0f;
        float total = weight;
        for (int mask = 32 / SCORES; mask < 32 / PADDED; mask *= 2) total += shuffle_xor(total, mask);
        sum = sum * keep + total, top = higher;
        weights[own_token * PADDED + own_head] = weight;
        keeps[own_head] = keep;
        sync_warp();
        for (int h = 0; h < TOGETHER; h++) {
          const float scale = keeps[h];
          for (int e = 0; e < EACH; e++) acc[h][e] *= scale;
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
          float value[EACH];
          if (token + b * C::WARPS >= after) break;
          read_each<C::HALF, EACH>(from[b] + D, value);
          for (int h = 0; h < TOGETHER; h++) {
            const float w = weights[b * PADDED + h];
            for (int e = 0; e < EACH; e++) acc[h][e] += w * value[e];
          }
        }
        sync_warp();  // all lanes have read what is overwritten now
#pragma unroll 1
        for (int number = token; number < least(end, token + BATCH * C::WARPS); number += C::WARPS) tokens.taken++, tokens.send();
      }
      for (int h = 0; h < TOGETHER; h++) {
        float* to = merged + (warp * TOGETHER + h) * PART;
        if (h == own_head) to[0] = top, to[1] = sum;
        for (int e = 0; e < EACH; e++) to[2 + lane * EACH + e] = acc[h][e];
      }
      sync_block();
#pragma unroll 1
      for (int i = thread_index(); i < TOGETHER * D; i += THREADS) {
        const int h = i / D, d = i % D;
        float high = -1e30f, total = 0, out = 0;
        for (int w = 0; w < C::WARPS; w++) high = fmaxf(high, merged[(w * TOGETHER + h) * PART]);
        for (int w = 0; w < C::WARPS; w++) {
          const float* from = merged + (w * TOGETHER + h) * PART;
          const float weight = exp2f(from[0] - high);
          total += weight * from[1], out += weight * from[2 + d];
        }
        float* to = a.work + PARTS + ((long(row) * C::HEADS + head0 + h) * C::MOST_PARTS + part) * PART;
        if (d == 0) to[0] = high, to[1] = total;
        to[2 + d] = out;
      }
    }
    wait_async<0>();
    if (!waited) wait();
  }

  // The new token's key and value, rounded as they will be read from now on; one warp. Into the pages where `writes`.
  DEV void keep_newest(const float* in, int row, int index, int key_head, bool writes, const float* key, u16* to) const {
    constexpr int D = C::HEAD_DIM;
    u16* page_of = page(row, index, key_head, a.positions[row]);
#pragma unroll
    for (int d = thread_index() % 32; d < D; d += 32) {
      to[d] = narrow<C::HALF>(key[d]);
      to[D + d] = narrow<C::HALF>(load_fresh(in + QUERY_ROWS + KEY_ROWS + key_head * D + d));
      if (writes) page_of[d] = to[d], page_of[KEY_ROWS * C::PAGE + d] = to[D + d];
    }
  }

  // The parts of each head together, times its gate: a warp for 32 columns of a head, whose lanes first weigh a part each.
  DEV void join_parts() const {
    constexpr int D = C::HEAD_DIM, PIECES = D / 32;
    const int lane = thread_index() % 32, warps = block_count() * C::WARPS;
    float* weights = S::misc() + thread_index() / 32 * C::MOST_PARTS;
    const int most = most_parts();
#pragma unroll 1
    for (int i = block_index() + thread_index() / 32 * block_count(); i < rows * C::HEADS * PIECES; i += warps) {
      const int head_of_row = i / PIECES, d = i % PIECES * 32 + lane;
      const int row = head_of_row / C::HEADS, head = head_of_row % C::HEADS, count = parts(row, most);
      const float* from = a.work + PARTS + long(head_of_row) * C::MOST_PARTS * PART;
      float high = -1e30f, total = 0;
      for (int p = lane; p < count; p += 32) high = fmaxf(high, load_fresh(from + p * PART));
      high = warp_most(high);
      sync_warp();  // the weights before have been read
      for (int p = lane; p < count; p += 32) {
        const float weight = exp2f(load_fresh(from + p * PART) - high);
        weights[p] = weight;
        total += weight * load_fresh(from + p * PART + 1);
      }
      total = warp_sum(total);
      sync_warp();
      float out = 0;
#pragma unroll 8
      for (int p = 0; p < count; p++) out += weights[p] * load_fresh(from + p * PART + 2 + d);
      out /= total;
      if constexpr (C::GATED) out *= sigmoid(load_fresh(joined() + long(row) * JOINED + (head * 2 + 1) * D + d));
      mixed()[long(row) * C::HEADS * D + place<Linear>(head * D + d)] = narrow<C::HALF>(out);
    }
  }
};
