// One step of decoding: every row gives one token and gets the logits of the next, in one kernel.
//
// One block a multiprocessor walks through the layers; between stages all blocks wait for each other, because a kernel of
// its own for each stage costs the host more than the stage takes. A block says that it has arrived, asks for what it
// will need and no other block makes (weights, states, keys and values), and only then waits. Residuals are added by who reads them: a product that is shared by blocks leaves its
// shares (`partial`) side by side, so the same numbers are added in the same order whatever the grid.
//
// C, made by cuda_plan.py, has the sizes. Rows keep their lengths, pages of keys and values, and recurrent states in pools
// (cuda_state.py), where the prefill put them; a step appends in place.
#pragma once

#include "product.cuh"

struct Arguments {
  const u8* const* layers;  // buffers, laid out as C::Delta and C::Attention say
  const u8* embedding;
  const u8* head;
  const float* norm;       // (hidden,) before the head
  const float* turns;      // (C::TURNED,): angle a position, of each pair of columns
  const int* rows;         // [0]: how many
  const u32* tokens;       // (rows,)
  const int* positions;    // (rows,): tokens in their caches
  const int* slots;        // (rows,): recurrent states
  const int* table;        // (rows, table_width): pages
  int table_width;
  u16* pages;              // (page, attention layer, keys or values, head, C::PAGE, head dim)
  float* states;           // (slot, ...): delta rule (recurrent layer, value head, value dim, key dim), then the newest
                           // inputs of the convolution (recurrent layer, 4 by position modulo 4, channels)
  float* work;
  u64* arrivals;
  float* logits;           // (rows, vocabulary)
  int* next_positions;     // (rows,)
};

template <class C>
struct Step {
  using Places = typename C::Places;
  using Place = typename C::Place;
  using S = Shared<C>;
  using Linear = Layout<C::BITS, C::GROUP, C::SUBS>;
  using Head = Layout<C::HEAD_BITS, C::HEAD_GROUP, C::HEAD_SUBS>;
  static constexpr int RP = S::RP, H = C::HIDDEN, THREADS = C::WARPS * 32;
  static constexpr int CHANNELS = 2 * C::KEY_HEADS * C::KEY_DIM + C::VALUE_HEADS * C::VALUE_DIM;
  static constexpr int VALUES = C::VALUE_HEADS * C::VALUE_DIM;
  static constexpr long DELTAS = long(C::DELTA_LAYERS) * VALUES * C::KEY_DIM;           // numbers of a state
  static constexpr long STATE = DELTAS + long(C::DELTA_LAYERS) * 4 * CHANNELS;
  static constexpr int DELTA_ROWS = CHANNELS + VALUES + 2 * C::VALUE_HEADS;
  static constexpr int QUERY_ROWS = C::HEADS * C::HEAD_DIM * (C::GATED ? 2 : 1);
  static constexpr int KEY_ROWS = C::KV_HEADS * C::HEAD_DIM;
  static constexpr int ATTENTION_ROWS = QUERY_ROWS + 2 * KEY_ROWS;
  static constexpr int JOINED = DELTA_ROWS > ATTENTION_ROWS ? DELTA_ROWS : ATTENTION_ROWS;
  static constexpr int MIXED = VALUES > C::HEADS * C::HEAD_DIM ? VALUES : C::HEADS * C::HEAD_DIM;
  static constexpr int PER_KEY = C::HEADS / C::KV_HEADS;                 // query heads of a key head
  static constexpr int TOGETHER = PER_KEY <= 4 ? PER_KEY : PER_KEY % 4 == 0 ? 4 : PER_KEY % 3 == 0 ? 3 : PER_KEY % 2 == 0 ? 2 : 1;
  static constexpr int BUNDLES = C::KV_HEADS * (PER_KEY / TOGETHER);     // of query heads that one unit takes
  static constexpr int PART = C::HEAD_DIM + 2;                           // of attention: maximum, sum, values

  const Arguments& a;
  const int rows;
  mutable u64 goal;  // of the barrier that comes next, less the blocks
  int crowd_bits = 0;

  // The workspace, in floats.
  static constexpr long H0 = 0, H1 = H0 + long(RP) * H, P1 = H1 + long(RP) * H, PO = P1 + long(RP) * JOINED;
  static constexpr long PD = PO + long(C::OUT_SPLITS) * RP * H, Y = PD + long(C::DOWN_SPLITS) * RP * H;
  static constexpr long PARTS = Y + long(RP) * MIXED;
  static constexpr long UP = PARTS + long(RP) * C::HEADS * C::MOST_PARTS * PART;  // 16-bit numbers from here on
  static constexpr long MIX = UP + long(RP) * C::INTERMEDIATE / 2;
  static constexpr long NORMED = MIX + long(RP) * MIXED / 2, WORK = NORMED + long(RP) * H / 2;

  // What a block has beyond Shared: a copy of the arguments, and what they point to and every stage reads: the layers'
  // addresses, the rows' positions and slots.
  static constexpr int TAIL = (sizeof(Arguments) + 8 * C::LAYERS + 8 * RP + 127) / 128 * 128;

  // Puts arguments where all threads read them; a register less each, and none in a thread's own memory.
  DEV static const Arguments& share(const Arguments& arguments, int bytes) {
    Arguments* copy = reinterpret_cast<Arguments*>(shared_memory() + bytes);
    const u8** layers = reinterpret_cast<const u8**>(copy + 1);
    int *positions = reinterpret_cast<int*>(layers + C::LAYERS), *slots = positions + RP;
    if (thread_index() < arguments.rows[0]) {
      positions[thread_index()] = arguments.positions[thread_index()];
      slots[thread_index()] = arguments.slots[thread_index()];
    }
    if (thread_index() == 0) {
      for (int i = 0; i < C::LAYERS; i++) layers[i] = arguments.layers[i];
      *copy = arguments;
      copy->layers = layers, copy->positions = positions, copy->slots = slots;
    }
    sync_block();
    return *copy;
  }

  // What has arrived before a step is a multiple of the blocks, and not all have arrived before this one has.
  DEV Step(const Arguments& arguments) : a(arguments), rows(arguments.rows[0]), goal(load_acquire(arguments.arrivals)) {
    goal -= goal % block_count();
    while ((2 << crowd_bits) * rows <= C::WARPS) crowd_bits++;
  }

  DEV void arrive() const { arrive_grid(a.arrivals); }
  DEV void wait() const {
    goal += block_count();
    wait_grid(a.arrivals, goal);
  }

  DEV float* state_of(int row) const { return a.states + long(a.slots[row]) * STATE; }
  DEV float* joined() const { return a.work + P1; }
  DEV u16* upper() const { return reinterpret_cast<u16*>(a.work + UP); }
  DEV u16* normed() const { return reinterpret_cast<u16*>(a.work + NORMED); }
  DEV u16* mixed() const { return reinterpret_cast<u16*>(a.work + MIX); }
  DEV static const float* floats(const u8* layer, long at) { return reinterpret_cast<const float*>(layer + at); }
  DEV static Matrix matrix(const u8* buffer, const Place& at, int rows, int columns) {
    return {buffer + at.weights, reinterpret_cast<const u16*>(buffer + at.scales),
            reinterpret_cast<const u16*>(buffer + at.biases), rows, columns};
  }

  DEV Matrix projections(int i) const {
    return matrix(a.layers[i], C::places(C::recurrent(i)).in, C::recurrent(i) ? DELTA_ROWS : ATTENTION_ROWS, H);
  }
  DEV Matrix head() const { return matrix(a.head, {0, C::HEAD_SCALES, C::HEAD_BIASES}, C::VOCABULARY, H); }

  // The hidden state: in `from`, plus the shares of a product.
  template <int SPLITS>
  struct Residual {
    const Step& step;
    const float* from;
    const float* shares;

    DEV float4 read(int row, int k) const {
      float4 sum = load_fresh4(from + long(row) * H + k), more[SPLITS];
#pragma unroll
      for (int s = 0; s < SPLITS; s++) more[s] = load_fresh4(shares + (long(s) * RP + row) * H + k);
#pragma unroll
      for (int s = 0; s < SPLITS; s++) sum.x += more[s].x, sum.y += more[s].y, sum.z += more[s].z, sum.w += more[s].w;
      return sum;
    }
  };

  // The hidden states before the first layer, with shares of nothing.
  DEV void embed() const {
#pragma unroll 1
    for (int i = block_index() * THREADS + thread_index(); i < rows * (H / 4); i += block_count() * THREADS) {
      const int row = i / (H / 4), k = i % (H / 4) * 4;
      *reinterpret_cast<float4*>(a.work + H0 + long(row) * H + k) = embedded(row, k);
      for (int s = 0; s < C::DOWN_SPLITS; s++)
        *reinterpret_cast<float4*>(a.work + PD + (long(s) * RP + row) * H + k) = float4{0, 0, 0, 0};
    }
    arrive();
  }

  DEV float4 embedded(int row, int k) const {
    const long at = long(a.tokens[row]) * H + k;
    float out[4];
    for (int i = 0; i < 4; i++) {
      if constexpr (C::EMBEDDING_BITS == 16) {
        out[i] = widen<C::HALF>(reinterpret_cast<const u16*>(a.embedding)[at + i]);
      } else {
        const u32 word = reinterpret_cast<const u32*>(a.embedding)[(at + i) * C::EMBEDDING_BITS / 32];
        const u32 q = word >> ((at + i) * C::EMBEDDING_BITS % 32) & ((1u << C::EMBEDDING_BITS) - 1);
        const u16* scales = reinterpret_cast<const u16*>(a.embedding + C::EMBEDDING_SCALES);
        const u16* biases = reinterpret_cast<const u16*>(a.embedding + C::EMBEDDING_BIASES);
        const long group = (at + i) / C::EMBEDDING_GROUP;
        out[i] = widen<C::HALF>(scales[group]) * float(q) + widen<C::HALF>(biases[group]);
      }
    }
    return {out[0], out[1], out[2], out[3]};
  }

  // How the normalised hidden states reach shared memory: with few rows every block normalises all of them itself and
  // keeps them in registers meanwhile; with more rows a stage of their own does it once for all blocks (settle).
  static constexpr int LEAST_KEPT = (H + THREADS * 4 - 1) / (THREADS * 4);  // for one row
  static constexpr int KEPT = LEAST_KEPT > 2 ? LEAST_KEPT : 2;              // groups of four numbers that a lane keeps

  // The row that a warp has a part of, and the columns of a lane's groups; several warps share a row while there are fewer
  // rows than warps.
  DEV int crowd() const { return 1 << crowd_bits; }  // warps of a row
  DEV int kept_row() const { return thread_index() / 32 >> crowd_bits; }
  DEV int kept_column(int i) const {
    return ((i << crowd_bits) + (thread_index() / 32 & (crowd() - 1))) * 128 + thread_index() % 32 * 4;
  }
  DEV bool settles() const {
    return C::NT > 1 || C::CHUNK < H || rows * crowd() > C::WARPS || crowd() * 128 * KEPT < H;
  }

  DEV static float4 times(float4 v, float4 w, float scale) {
    return {v.x * w.x * scale, v.y * w.y * scale, v.z * w.z * scale, v.w * w.w * scale};
  }
  DEV static float squares(float4 v) { return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }

  // The hidden states in `kept` go to `to`, row r by block r, their sums of squares to shared memory; what is kept are the
  // states times the norm's weights.
  DEV void measure(float* to, const float4 weight[KEPT], float4 kept[KEPT]) const {
    float sum = 0;
    if (kept_row() < rows) {
#pragma unroll
      for (int i = 0; i < KEPT; i++) {
        if (kept_column(i) >= H) break;
        if (to != nullptr && kept_row() % block_count() == block_index())
          *reinterpret_cast<float4*>(to + long(kept_row()) * H + kept_column(i)) = kept[i];
        sum += squares(kept[i]);
        kept[i] = times(kept[i], weight[i], 1.0f);
      }
    }
    sum = warp_sum(sum);
    if (thread_index() % 32 == 0) S::misc()[thread_index() / 32] = sum;
    sync_block();
  }

  template <class L>
  DEV void stage_kept(const float4 kept[KEPT]) const {
    const int warps = crowd(), row = kept_row();
    if (row >= rows) return;
    float sum = 0;
    for (int c = 0; c < warps; c++) sum += S::misc()[row * warps + c];
    const float scale = rsqrtf(sum / H + C::EPS);
#pragma unroll
    for (int i = 0; i < KEPT; i++)
      if (kept_column(i) < H) put4<L>(S::rows() + row * S::PITCH, kept_column(i), kept[i], scale);
  }

  // Four numbers, rounded, from column k on.
  template <class L>
  DEV static void put4(u16* row, int k, float4 v, float scale) {
    const u32 low = narrow2<C::HALF>(v.x * scale, v.y * scale), high = narrow2<C::HALF>(v.z * scale, v.w * scale);
    if constexpr (L::BITS == 4) {
      u16* to = row + place<L>(k);
      to[0] = u16(low), to[2] = u16(low >> 16), to[4] = u16(high), to[6] = u16(high >> 16);
    } else {
      *reinterpret_cast<uint2*>(row + k) = uint2{low, high};
    }
  }

  // Once for all blocks: normalised numbers to `normed()`, row r by block r.
  template <class L, class R>
  DEV void settle(const R& h, float* to, const float* weight) const {
    float* sums = S::misc();
#pragma unroll 1
    for (int row = block_index(); row < rows; row += block_count()) {
      float4 kept[KEPT];
      float sum = 0;
#pragma unroll
      for (int i = 0; i < KEPT; i++) {
        const int k = (i * THREADS + thread_index()) * 4;
        if (k < H) kept[i] = h.read(row, k);
      }
#pragma unroll
      for (int i = 0; i < KEPT; i++) {
        const int k = (i * THREADS + thread_index()) * 4;
        if (k >= H) break;
        if (to != nullptr) *reinterpret_cast<float4*>(to + long(row) * H + k) = kept[i];
        sum += squares(kept[i]);
      }
      sum = warp_sum(sum);
      sync_block();
      if (thread_index() % 32 == 0) sums[thread_index() / 32] = sum;
      sync_block();
      sum = 0;
      for (int w = 0; w < C::WARPS; w++) sum += sums[w];
      const float scale = rsqrtf(sum / H + C::EPS);
      u16* out = normed() + long(row) * H;
#pragma unroll
      for (int i = 0; i < KEPT; i++) {
        const int k = (i * THREADS + thread_index()) * 4;
        if (k < H) put4<L>(out, k, times(kept[i], *reinterpret_cast<const float4*>(weight + k), 1.0f), scale);
      }
    }
    arrive();
    wait();
  }

  // A product of the normalised hidden states, which other blocks still make; the states go to `to`.
  template <class L, int SHARES, bool PAIRED, class R, class Finish>
  DEV void normed_product(const Matrix& w, const Matrix& second, const R& h, float* to, const float* weight,
                          Finish&& finish) const {
    const bool settled = settles();
    float4 kept[KEPT], weights[KEPT];
    product<C, L, SHARES, PAIRED>(
        rows, w, second, 1,
        [&](int phase) {
          if (phase == 0) {
            if (!settled)
#pragma unroll
              for (int i = 0; i < KEPT; i++)
                if (kept_column(i) < H) weights[i] = *reinterpret_cast<const float4*>(weight + kept_column(i));
            wait();
            if (!settled && kept_row() < rows)
#pragma unroll
              for (int i = 0; i < KEPT; i++)
                if (kept_column(i) < H) kept[i] = h.read(kept_row(), kept_column(i));
          } else if (settled) {
            settle<L>(h, to, weight);
          } else {
            measure(to, weights, kept);
          }
        },
        [&](int begin, int length) {
          if (settled)
            stage_plain(normed(), H, begin, length);
          else
            stage_kept<L>(kept);
        },
        finish);
  }

  // Columns that are already 16-bit numbers, in their places among eight.
  DEV void stage_plain(const u16* from, int width, int begin, int length) const {
    const int pieces = length / 8;
#pragma unroll 1
    for (int row = thread_index() / 32; row < rows; row += C::WARPS)
#pragma unroll 4
      for (int i = thread_index() % 32; i < pieces; i += 32)
        copy_async<16>(reinterpret_cast<u8*>(S::rows() + row * S::PITCH + i * 8),
                       reinterpret_cast<const u8*>(from + long(row) * width + begin + i * 8));
    commit_async();
    wait_async<0>();
  }

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

  // A row of BYTES from memory to shared memory by one warp, whose lanes may read it after sync_warp.
  template <int BYTES>
  DEV static void copy_row(void* to, const void* from) {
    constexpr int PIECE = BYTES % 512 == 0 ? 16 : BYTES % 256 == 0 ? 8 : 4;
#pragma unroll
    for (int at = thread_index() % 32 * PIECE; at < BYTES; at += 32 * PIECE)
      copy_async<PIECE>(static_cast<u8*>(to) + at, static_cast<const u8*>(from) + at);
  }
  // How many rows of so many bytes each warp can have on their way in `room` bytes: a power of two, at most 16.
  static constexpr int ring_of(int bytes, int room) {
    int depth = 16;
    while (depth > 1 && depth * bytes * C::WARPS > room) depth /= 2;
    return depth;
  }

  // The states of recurrent heads as one warp meets them: of every unit the rows of a head's share that are its own, through
  // a ring in shared memory.
  struct States {
    static constexpr int RING = ring_of(4 * C::KEY_DIM, S::PIPE + 2 * RP * S::PITCH);

    const Step& step;
    const int index, shares, width, units;
    int unit, d;
    float* from = nullptr;
    u32 sent = 0, taken = 0;

    DEV States(const Step& step, int index, int shares)
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
    DEV void read(const Step& step, const u8* layer, const Places& at, int index, int shares, int unit) {
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
    DEV void read_fresh(const Step& step, int shares, int unit) {
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

  template <int N>
  DEV static void fresh_each(const float* from, float* to) {
    if constexpr (N % 4 == 0) {
      for (int i = 0; i < N; i += 4) *reinterpret_cast<float4*>(to + i) = load_fresh4(from + i);
    } else {
      for (int i = 0; i < N; i++) to[i] = load_fresh(from + i);
    }
  }
  template <int N>
  DEV static void load_each(const float* from, float* to) {
    if constexpr (N % 4 == 0) {
      for (int i = 0; i < N; i += 4) *reinterpret_cast<float4*>(to + i) = *reinterpret_cast<const float4*>(from + i);
    } else {
      for (int i = 0; i < N; i++) to[i] = from[i];
    }
  }
  template <int N>
  DEV static void store_each(float* to, const float* from) {
    if constexpr (N % 4 == 0) {
      for (int i = 0; i < N; i += 4) *reinterpret_cast<float4*>(to + i) = *reinterpret_cast<const float4*>(from + i);
    } else {
      for (int i = 0; i < N; i++) to[i] = from[i];
    }
  }

  // Attention. A row's context is cut into as many parts as keep all blocks busy.
  DEV int most_parts() const { return least(C::MOST_PARTS, ceil_div(2 * block_count(), rows * BUNDLES)); }
  DEV int parts(int row, int most) const { return least(most, ceil_div(a.positions[row] + 1, 32)); }

  DEV u16* page(int row, int layer, int values, int head, int token) const {
    const long number = a.table[row * a.table_width + token / C::PAGE];
    return a.pages + ((((number * C::ATTENTION_LAYERS + layer) * 2 + values) * C::KV_HEADS + head) * C::PAGE +
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
    static constexpr int BYTES = 2 * C::HEAD_DIM, RING = ring_of(2 * BYTES, S::PIPE);

    const Step& step;
    const int index, most;
    int unit, token = 0, end = 0;
    const u16* from = nullptr;
    u32 sent = 0, taken = 0;

    DEV Tokens(const Step& step, int index, int most) : step(step), index(index), most(most), unit(block_index()) {
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
      from = step.page(unit / (BUNDLES * most), index, 0, key_head, token);
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
          if (token + b * C::WARPS < after) read_each<EACH>(from[b], key);
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
          read_each<EACH>(from[b] + D, value);
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
    u16* page_of = page(row, index, 0, key_head, a.positions[row]);
#pragma unroll
    for (int d = thread_index() % 32; d < D; d += 32) {
      to[d] = narrow<C::HALF>(key[d]);
      to[D + d] = narrow<C::HALF>(load_fresh(in + QUERY_ROWS + KEY_ROWS + key_head * D + d));
      if (writes) page_of[d] = to[d], page_of[KEY_ROWS * C::PAGE + d] = to[D + d];
    }
  }

  // Sums over all lanes of COUNT values (a power of two): lane l gets that of value l / (32 / COUNT).
  template <int COUNT>
  DEV static float share_out(float v[COUNT]) {
    const int lane = thread_index() % 32;
    int mask = 16;
#pragma unroll
    for (int half = COUNT / 2; half > 0; half /= 2, mask /= 2) {
#pragma unroll
      for (int i = 0; i < half; i++) {
        const bool upper = lane & mask;
        const float give = upper ? v[i] : v[i + half];
        v[i] = (upper ? v[i + half] : v[i]) + shuffle_xor(give, mask);
      }
    }
#pragma unroll
    for (; mask > 0; mask /= 2) v[0] += shuffle_xor(v[0], mask);
    return v[0];
  }

  template <int N>
  DEV static void read_each(const u16* from, float* to) {
    if constexpr (N % 8 == 0) {
      for (int i = 0; i < N; i += 8) {
        const uint4 v = *reinterpret_cast<const uint4*>(from + i);
        const u32 w[4] = {v.x, v.y, v.z, v.w};
        for (int j = 0; j < 8; j++) to[i + j] = widen<C::HALF>(u16(w[j / 2] >> (j % 2 * 16)));
      }
    } else {
      for (int i = 0; i < N; i++) to[i] = widen<C::HALF>(from[i]);
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

  // Stores a product's share.
  struct Partial {
    float* to;
    int width, rows;
    DEV void operator()(int split, int output, int row, float low, float) const {
      if (row < rows) to[(long(split) * RP + row) * width + output] = low;
    }
  };

  // Every stage waits for the one before it by itself, when its first weights are on their way. Each product stands here
  // once for all kinds of layers: the code of a step should fit into the instruction caches.
  DEV void run() const {
    float *h = a.work + H0, *other = a.work + H1;
    int deltas = 0, attentions = 0;
    embed();
#pragma unroll 1
    for (int i = 0; i < C::LAYERS; i++) {
      const u8* layer = a.layers[i];
      const bool recurrent = C::recurrent(i);
      const Places& at = C::places(recurrent);
      // Addresses are worked out where they are needed: registers are short here.
      const auto out = [&] { return matrix(layer, at.out, H, recurrent ? VALUES : C::HEADS * C::HEAD_DIM); };
      const auto gate = [&] { return matrix(layer, at.gate, C::INTERMEDIATE, H); };
      const auto up = [&] { return matrix(layer, at.up, C::INTERMEDIATE, H); };
      const auto down = [&] { return matrix(layer, at.down, H, C::INTERMEDIATE); };
      normed_product<Linear, C::IN_SHARES, false>(
          projections(i), projections(i), Residual<C::DOWN_SPLITS>{*this, h, a.work + PD}, other,
          floats(layer, at.in_norm),
          Partial{joined(), JOINED, rows});
      arrive();
      if (recurrent) {
        delta_rule(layer, at, deltas++);
      } else {
        attend(layer, at, attentions++);
        arrive();
        wait();
        join_parts();
      }
      arrive();
      product<C, Linear, C::OUT_SHARES, false>(
          rows, out(), out(), C::OUT_SPLITS,
          [&](int phase) {
            if (phase == 0) wait();
          },
          [&](int begin, int length) {
            if (recurrent && head_shares() > 1)
              stage_gated(floats(layer, at.out_norm), begin, length);
            else
              stage_plain(mixed(), recurrent ? VALUES : C::HEADS * C::HEAD_DIM, begin, length);
          },
          Partial{a.work + PO, H, rows});
      arrive();
      normed_product<Linear, C::UP_SHARES, true>(
          gate(), up(), Residual<C::OUT_SPLITS>{*this, other, a.work + PO}, h, floats(layer, at.post_norm),
          [&](int, int output, int row, float low, float high) {
            if (row < rows) upper()[long(row) * C::INTERMEDIATE + place<Linear>(output)] = narrow<C::HALF>(silu(low) * high);
          });
      arrive();
      product<C, Linear, C::DOWN_SHARES, false>(
          rows, down(), down(), C::DOWN_SPLITS, [&](int phase) {
            if (phase == 0) wait();
          },
          [&](int begin, int length) { stage_plain(upper(), C::INTERMEDIATE, begin, length); },
          Partial{a.work + PD, H, rows});
      arrive();
    }
    finish(Residual<C::DOWN_SPLITS>{*this, h, a.work + PD});
  }

  DEV void finish(const Residual<C::DOWN_SPLITS>& h) const {
    normed_product<Head, C::HEAD_SHARES, false>(head(), head(), h, nullptr, a.norm,
                                             [&](int, int output, int row, float low, float) {
                                               if (row < rows) a.logits[long(row) * C::VOCABULARY + output] = low;
                                             });
    if (block_index() == 0 && thread_index() < rows) a.next_positions[thread_index()] = a.positions[thread_index()] + 1;
  }
};
