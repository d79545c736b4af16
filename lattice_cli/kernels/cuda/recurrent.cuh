// Recurrent layers: the convolution and the gated delta rule, https://arxiv.org/abs/2412.06464.
#pragma once

#include "hidden.cuh"

template <class C>
struct Recurrent : Hidden<C> {
  using B = Hidden<C>;
  using B::B;
  using typename B::Linear, typename B::Places, typename B::S;
  using B::CHANNELS, B::DELTAS, B::JOINED, B::RP, B::THREADS, B::VALUES, B::Y, B::a, B::rows, B::floats, B::joined, B::mixed,
      B::state_of, B::wait;

  // One head of a recurrent layer's output: a norm, times silu of its gate z; one warp, each lane its numbers.
  static constexpr int GATED_EACH = C::VALUE_DIM / 32;
  DEV void gate(const float* weight, const float z[GATED_EACH], float y[GATED_EACH]) const {
    float sum = 0;
    for (int e = 0; e < GATED_EACH; e++) sum += y[e] * y[e];
    sum = warp_sum(sum);
    const float scale = rsqrtf(sum / C::VALUE_DIM + C::EPS);
    for (int e = 0; e < GATED_EACH; e++) y[e] *= scale * weight[e] * silu(z[e]);
  }
  DEV const float* gate_of(int row, int column) const { return joined() + long(row) * JOINED + CHANNELS + column; }

  // Columns of the recurrent layer's output whose heads several blocks have made.
  DEV void stage_gated(const float* weight, int begin, int length) const {
    const int warp = thread_index() / 32, lane = thread_index() % 32, heads = length / C::VALUE_DIM;
    float w[GATED_EACH];
    load_each<GATED_EACH>(weight + lane * GATED_EACH, w);
#pragma unroll 1
    for (int i = warp; i < rows * heads; i += C::WARPS) {
      const int row = i / heads, k = i % heads * C::VALUE_DIM + lane * GATED_EACH;
      float y[GATED_EACH], z[GATED_EACH];
      fresh_each<GATED_EACH>(a.work + Y + long(row) * VALUES + begin + k, y);
      fresh_each<GATED_EACH>(gate_of(row, begin + k), z);
      gate(w, z, y);
      for (int e = 0; e < GATED_EACH; e++) S::rows()[row * S::PITCH + place<Linear>(k + e)] = narrow<C::HALF>(y[e]);
    }
  }

  // Blocks that share a head's values; one when there are rows enough to keep nearly all blocks busy.
  DEV int head_shares() const {
    int shares = most(C::VALUE_DIM / C::WARPS, 1);
    while (shares > 1 && rows * C::VALUE_HEADS * shares / 2 * 10 >= block_count() * 9) shares /= 2;
    return shares;
  }

  // The states of recurrent heads as one warp meets them: of every unit the rows of a head's share that are its own, through
  // a ring in shared memory.
  struct States {
    static constexpr int RING = ring_of(C::WARPS, 4 * C::KEY_DIM, S::PIPE + 2 * RP * S::PITCH);

    const Recurrent& step;
    const int index, shares, width, units;
    int unit, d;
    float* from = nullptr;
    u32 sent = 0, taken = 0;

    DEV States(const Recurrent& step, int index, int shares)
        : step(step), index(index), shares(shares), width(C::VALUE_DIM / shares),
          units(step.rows * C::VALUE_HEADS * shares), unit(block_index()), d(thread_index() / 32) {
      if (unit < units) from = of(unit);
      fill();
    }
    DEV void fill() {
#pragma unroll 1
      while (sent < taken + RING) send();
    }
    DEV float* of(int unit) const {
      const int row = unit / (C::VALUE_HEADS * shares), head = unit / shares % C::VALUE_HEADS;
      return step.state_of(row) +
             ((long(index) * C::VALUE_HEADS + head) * C::VALUE_DIM + unit % shares * width) * C::KEY_DIM;
    }
    DEV float* slot(u32 number) const {
      return reinterpret_cast<float*>(S::pipe()) + (thread_index() / 32 * RING + number % RING) * C::KEY_DIM;
    }
    DEV void send() {
      if (unit < units) {
        copy_row<4 * C::KEY_DIM>(slot(sent), from + long(d) * C::KEY_DIM);
        if ((d += C::WARPS) >= width) {
          unit += block_count(), d = thread_index() / 32;
          if (unit < units) from = of(unit);
        }
      }
      commit_async();
      sent++;
    }
  };

  // The delta rule for COUNT rows of a state, whose lanes have keys k and queries q; `out` gets what each row answers.
  template <int COUNT, int EACH>
  DEV static void correct(States& states, float* to, const float* v, int d, float decay, float beta, const float k[EACH],
                          const float q[EACH], float out[COUNT]) {
    const int lane = thread_index() % 32;
    float s[COUNT][EACH], memory[COUNT];
    wait_async<States::RING - COUNT>();
    sync_warp();
    for (int c = 0; c < COUNT; c++) {
      load_each<EACH>(states.slot(states.taken + c) + lane * EACH, s[c]);
      memory[c] = 0;
      for (int e = 0; e < EACH; e++) s[c][e] *= decay, memory[c] += s[c][e] * k[e];
    }
    for (int c = 0; c < COUNT; c++) memory[c] = warp_sum(memory[c]);
    for (int c = 0; c < COUNT; c++) {
      const float change = (v[d + c * C::WARPS] - memory[c]) * beta;
      out[c] = 0;
      for (int e = 0; e < EACH; e++) s[c][e] += k[e] * change, out[c] += s[c][e] * q[e];
      store_each<EACH>(to + long(d + c * C::WARPS) * C::KEY_DIM + lane * EACH, s[c]);
    }
    for (int c = 0; c < COUNT; c++) out[c] = warp_sum(out[c]);
    sync_warp();  // all lanes have read what is overwritten now
    states.taken += COUNT;
    states.fill();
  }

  // Channel i of a unit: those of its query, of its key, of its share of the values.
  DEV static int channel_of(int head, int width, int share, int i) {
    constexpr int KD = C::KEY_DIM, RATIO = C::VALUE_HEADS / C::KEY_HEADS;
    return i < KD       ? head / RATIO * KD + i
           : i < 2 * KD ? (C::KEY_HEADS + head / RATIO) * KD + i - KD
                        : 2 * C::KEY_HEADS * KD + head * C::VALUE_DIM + share * width + i - 2 * KD;
  }

  // What a thread needs for a unit of the recurrent heads.
  struct Inputs {
    static constexpr int MOST = (2 * C::KEY_DIM + C::VALUE_DIM + THREADS - 1) / THREADS;  // channels

    float4 w[MOST];
    float older[MOST][3], now[MOST], z[GATED_EACH], rate, bias, b, x;

    // What no other block makes.
    DEV void read(const Recurrent& step, const u8* layer, const Places& at, int index, int shares, int unit) {
      const int row = unit / (C::VALUE_HEADS * shares), head = unit / shares % C::VALUE_HEADS;
      const int width = C::VALUE_DIM / shares, position = step.a.positions[row];
      const float* taps = step.state_of(row) + DELTAS + long(index) * 4 * CHANNELS;
#pragma unroll
      for (int n = 0; n < MOST; n++) {
        const int i = thread_index() + n * THREADS;
        if (i >= 2 * C::KEY_DIM + width) break;
        const int channel = channel_of(head, width, unit % shares, i);
        w[n] = *reinterpret_cast<const float4*>(floats(layer, at.conv) + 4 * channel);
        for (int o = 0; o < 3; o++) older[n][o] = taps[((position + 1 + o) & 3) * CHANNELS + channel];
      }
      rate = floats(layer, at.a_log)[head], bias = floats(layer, at.dt_bias)[head];
    }
    // What the layer's first product gave.
    DEV void read_fresh(const Recurrent& step, int shares, int unit) {
      const int row = unit / (C::VALUE_HEADS * shares), head = unit / shares % C::VALUE_HEADS;
      const int width = C::VALUE_DIM / shares;
      const float* in = step.joined() + long(row) * JOINED;
#pragma unroll
      for (int n = 0; n < MOST; n++) {
        const int i = thread_index() + n * THREADS;
        if (i < 2 * C::KEY_DIM + width) now[n] = load_fresh(in + channel_of(head, width, unit % shares, i));
      }
      b = load_fresh(in + CHANNELS + VALUES + head);
      x = load_fresh(in + CHANNELS + VALUES + C::VALUE_HEADS + head);
      if (shares == 1 && thread_index() < 32)
        fresh_each<GATED_EACH>(step.gate_of(row, head * C::VALUE_DIM + thread_index() * GATED_EACH), z);
    }
  };

  // A recurrent layer's own work: convolution, gates, and the delta rule on the states of (row, head, share of the
  // values). https://arxiv.org/abs/2412.06464, as Qwen3.5 has it. What other blocks make it waits for itself.
  DEV void delta_rule(const u8* layer, const Places& at, int index) const {
    constexpr int KD = C::KEY_DIM, EACH = KD / 32, RATIO = C::VALUE_HEADS / C::KEY_HEADS;
    constexpr int MOST = Inputs::MOST;
    constexpr int COUNT = C::VALUE_DIM % (4 * C::WARPS) == 0 && States::RING >= 8 ? 4 : 1;
    const int shares = head_shares(), width = C::VALUE_DIM / shares, warp = thread_index() / 32, lane = thread_index() % 32;
    float *q = S::misc(), *k = q + KD, *v = k + KD, *results = v + C::VALUE_DIM;
    States states(*this, index, shares);
    Inputs own;
    bool waited = false;
    // What a unit needs is on its way while the one before it is worked on; the first round only asks.
#pragma unroll 1
    for (int unit = block_index() - block_count(); unit < states.units; unit += block_count()) {
      const bool works = unit >= 0;
      const int row = works ? unit / (C::VALUE_HEADS * shares) : 0, head = unit / shares % C::VALUE_HEADS, share = unit % shares;
      float decay = 0, beta = 0, kk[EACH], qq[EACH], z[GATED_EACH];
      if (works) {
        const int position = a.positions[row];
        float* taps = state_of(row) + DELTAS + long(index) * 4 * CHANNELS;
        sync_block();  // the unit before has been read
#pragma unroll
        for (int n = 0; n < MOST; n++) {
          const int i = thread_index() + n * THREADS;
          if (i >= 2 * KD + width) break;
          const float4 w = own.w[n];
          const float sum = w.w * own.now[n] + w.z * own.older[n][2] + w.y * own.older[n][1] + w.x * own.older[n][0];
          const bool owner = i >= 2 * KD || (head % RATIO == 0 && share == 0);
          if (owner) taps[(position & 3) * CHANNELS + channel_of(head, width, share, i)] = own.now[n];
          q[i] = silu(sum);  // q, k and v lie one after the other
        }
        sync_block();
        decay = expf(-expf(own.rate) * softplus(own.x + own.bias)), beta = sigmoid(own.b);
        float length_k = 0, length_q = 0;
        for (int e = 0; e < EACH; e++) {
          kk[e] = k[lane * EACH + e], qq[e] = q[lane * EACH + e];
          length_k += kk[e] * kk[e], length_q += qq[e] * qq[e];
        }
        const float scale_k = rsqrtf(warp_sum(length_k) + 1e-6f);
        const float scale_q = rsqrtf(warp_sum(length_q) + 1e-6f) * rsqrtf(float(KD));
        for (int e = 0; e < EACH; e++) kk[e] *= scale_k, qq[e] *= scale_q;
        for (int e = 0; e < GATED_EACH; e++) z[e] = own.z[e];
      }
      const int then = unit + block_count();
      if (then < states.units) {
        own.read(*this, layer, at, index, shares, then);
        if (!works) wait();
        waited = true;
        own.read_fresh(*this, shares, then);
      }
      if (!works) continue;
      const auto keep = [&](int d, float out) {
        if (lane == 0 && shares > 1) a.work[Y + long(row) * VALUES + head * C::VALUE_DIM + share * width + d] = out;
        if (lane == 0 && shares == 1) results[d] = out;
      };
      float* to = states.of(unit);
      int d = warp;
#pragma unroll 1
      for (; COUNT > 1 && d + (COUNT - 1) * C::WARPS < width; d += COUNT * C::WARPS) {
        float out[COUNT];
        correct<COUNT, EACH>(states, to, v, d, decay, beta, kk, qq, out);
        for (int c = 0; c < COUNT; c++) keep(d + c * C::WARPS, out[c]);
      }
#pragma unroll 1
      for (; d < width; d += C::WARPS) {
        float out[1];
        correct<1, EACH>(states, to, v, d, decay, beta, kk, qq, out);
        keep(d, out[0]);
      }
      if (shares == 1) {  // a whole head: its norm and gate at once
        sync_block();
        if (warp == 0) {
          float y[GATED_EACH], norm[GATED_EACH];
          load_each<GATED_EACH>(floats(layer, at.out_norm) + lane * GATED_EACH, norm);
          for (int e = 0; e < GATED_EACH; e++) y[e] = results[lane * GATED_EACH + e];
          gate(norm, z, y);
          for (int e = 0; e < GATED_EACH; e++)
            mixed()[long(row) * VALUES + place<Linear>(head * C::VALUE_DIM + lane * GATED_EACH + e)] = narrow<C::HALF>(y[e]);
        }
      }
    }
    wait_async<0>();
    if (!waited) wait();
  }
};
