// One step of decoding: every row gives one token and gets the logits of the next, in one kernel.
//
// One block a multiprocessor walks through the layers; between stages all blocks wait for each other (sync_grid), because
// a kernel of its own for each stage costs the host more than the stage takes. A block asks for its weights of the
// next stage before it waits. Residuals are added by who reads them: a product that is shared by blocks leaves its
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
  using Linear = Layout<C::BITS, C::GROUP>;
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

  // The workspace, in floats.
  static constexpr long H0 = 0, H1 = H0 + long(RP) * H, P1 = H1 + long(RP) * H, PO = P1 + long(RP) * JOINED;
  static constexpr long PD = PO + long(C::OUT_SPLITS) * RP * H, Y = PD + long(C::DOWN_SPLITS) * RP * H;
  static constexpr long PARTS = Y + long(RP) * MIXED;
  static constexpr long UP = PARTS + long(RP) * C::HEADS * C::MOST_PARTS * PART;  // 16-bit numbers from here on
  static constexpr long MIX = UP + long(RP) * C::INTERMEDIATE / 2;
  static constexpr long NORMED = MIX + long(RP) * MIXED / 2, WORK = NORMED + long(RP) * H / 2;

  // What a block has beyond Shared: a copy of the arguments, and the layers' addresses, which they point to.
  static constexpr int TAIL = (sizeof(Arguments) + 8 * C::LAYERS + 127) / 128 * 128;

  // Puts arguments where all threads read them; a register less each, and none in a thread's own memory.
  DEV static const Arguments& share(const Arguments& arguments, int bytes) {
    Arguments* copy = reinterpret_cast<Arguments*>(shared_memory() + bytes);
    const u8** layers = reinterpret_cast<const u8**>(copy + 1);
    if (thread_index() == 0) {
      for (int i = 0; i < C::LAYERS; i++) layers[i] = arguments.layers[i];
      *copy = arguments;
      copy->layers = layers;
    }
    sync_block();
    return *copy;
  }

  DEV Step(const Arguments& arguments) : a(arguments), rows(arguments.rows[0]) {}

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

  // The hidden state: in `from`, plus the shares of a product; or an embedding.
  struct Residual {
    const Step& step;
    const float* from;
    const float* shares;
    int splits;  // 0: an embedding

    DEV float4 read(int row, int k) const {
      if (splits == 0) return step.embedded(row, k);
      float4 sum = load_fresh4(from + long(row) * H + k);
      for (int s = 0; s < splits; s++) {
        const float4 more = load_fresh4(shares + (long(s) * RP + row) * H + k);
        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
      }
      return sum;
    }
  };

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

  // How the normalised hidden states reach shared memory: with few rows every block normalises all of them itself, and
  // reads them once where they fit into its registers; with more rows a stage of their own does it once (settle).
  static constexpr bool SETTLED = C::NT > 1;
  static constexpr int KEPT = 4;  // groups of four numbers that a lane keeps

  // Sums of squares of the hidden states into shared memory, the states themselves to `to`: row r by block r.
  // Several warps share a row while there are fewer rows than warps. `kept` gets a lane's numbers, as far as they fit.
  DEV int measure(const Residual& h, float* to, float4 kept[KEPT]) const {
    const int warp = thread_index() / 32, lane = thread_index() % 32;
    int crowd = C::WARPS;  // warps of a row
    while (crowd > 1 && C::WARPS / crowd < rows) crowd /= 2;
    sync_block();
#pragma unroll 1
    for (int row = warp / crowd; row < rows; row += C::WARPS / crowd) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < KEPT; i++) {
        const int k = (i * crowd + warp % crowd) * 128 + lane * 4;
        if (k < H) take(h, to, row, k, sum, kept[i]);
      }
#pragma unroll 1
      for (int k = (KEPT * crowd + warp % crowd) * 128 + lane * 4; k < H; k += crowd * 128) {
        float4 v;
        take(h, to, row, k, sum, v);
      }
      sum = warp_sum(sum);
      if (lane == 0) S::misc()[row * crowd + warp % crowd] = sum;
    }
    sync_block();
    return crowd;
  }

  DEV void take(const Residual& h, float* to, int row, int k, float& sum, float4& v) const {
    v = h.read(row, k);
    sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    if (to != nullptr && row % block_count() == block_index()) *reinterpret_cast<float4*>(to + long(row) * H + k) = v;
  }

  DEV float scale_of(int row, int crowd) const {
    float sum = 0;
    for (int c = 0; c < crowd; c++) sum += S::misc()[row * crowd + c];
    return rsqrtf(sum / H + C::EPS);
  }

  template <class L>
  DEV void put_normed(int row, int k, float4 v, float scale, const float* weight) const {
    const float4 w = *reinterpret_cast<const float4*>(weight + k);
    put<C, L>(row, k, v.x * scale * w.x), put<C, L>(row, k + 1, v.y * scale * w.y);
    put<C, L>(row, k + 2, v.z * scale * w.z), put<C, L>(row, k + 3, v.w * scale * w.w);
  }

  // Columns of the normalised hidden states into shared memory.
  template <class L>
  DEV void stage_normed(const Residual& h, const float* weight, int crowd, const float4 kept[KEPT], int begin,
                        int length) const {
    const int warp = thread_index() / 32, lane = thread_index() % 32;
    if (length == H && rows * crowd <= C::WARPS && crowd * 128 * KEPT >= H) {  // all of it is in registers
      const int row = warp / crowd;
      if (row < rows) {
        const float scale = scale_of(row, crowd);
#pragma unroll
        for (int i = 0; i < KEPT; i++) {
          const int k = (i * crowd + warp % crowd) * 128 + lane * 4;
          if (k < H) put_normed<L>(row, k, kept[i], scale, weight);
        }
      }
      return;
    }
#pragma unroll 1
    for (int i = thread_index(); i < rows * length / 4; i += THREADS) {
      const int row = i / (length / 4), k = i % (length / 4) * 4;
      put_normed<L>(row, k, h.read(row, begin + k), scale_of(row, crowd), weight + begin);
    }
  }

  // The same for many rows, once for all blocks: normalised numbers to `normed()`.
  DEV void settle(const Residual& h, float* to, const float* weight) const {
    if (block_index() < rows) {
      float* sums = S::misc();
#pragma unroll 1
      for (int row = block_index(); row < rows; row += block_count()) {
        float sum = 0;
#pragma unroll 1
        for (int k = thread_index() * 4; k < H; k += THREADS * 4) {
          float4 v;
          take(h, to, row, k, sum, v);
        }
        sum = warp_sum(sum);
        sync_block();
        if (thread_index() % 32 == 0) sums[thread_index() / 32] = sum;
        sync_block();
        sum = 0;
        for (int w = 0; w < C::WARPS; w++) sum += sums[w];
        const float scale = rsqrtf(sum / H + C::EPS);
#pragma unroll 1
        for (int k = thread_index() * 4; k < H; k += THREADS * 4) {
          const float4 v = h.read(row, k), w = *reinterpret_cast<const float4*>(weight + k);
          u16* out = normed() + long(row) * H + k;
          out[0] = narrow<C::HALF>(v.x * scale * w.x), out[1] = narrow<C::HALF>(v.y * scale * w.y);
          out[2] = narrow<C::HALF>(v.z * scale * w.z), out[3] = narrow<C::HALF>(v.w * scale * w.w);
        }
      }
    }
    sync_grid(a.arrivals);
  }

  // A product of the normalised hidden states, after what other blocks still do; the states go to `to`.
  template <class L, int SHARES, bool PAIRED, class Finish>
  DEV void normed_product(const Matrix& w, const Matrix& second, const Residual& h, float* to, const float* weight,
                          bool wait, Finish&& finish) const {
    if constexpr (SETTLED) {
      product<C, L, SHARES, PAIRED>(
          rows, w, second, 1,
          [&] {
            if (wait) sync_grid(a.arrivals);
            settle(h, to, weight);
          },
          [&](int begin, int length) { stage_plain<L>(normed(), H, begin, length); }, finish);
    } else {
      int crowd = 1;
      float4 kept[KEPT];
      product<C, L, SHARES, PAIRED>(
          rows, w, second, 1,
          [&] {
            if (wait) sync_grid(a.arrivals);
            crowd = measure(h, to, kept);
          },
          [&](int begin, int length) { stage_normed<L>(h, weight, crowd, kept, begin, length); }, finish);
    }
  }

  // Columns that are already 16-bit numbers.
  template <class L>
  DEV void stage_plain(const u16* from, int width, int begin, int length) const {
#pragma unroll 1
    for (int i = thread_index(); i < rows * length / 8; i += THREADS) {
      const int row = i / (length / 8), k = i % (length / 8) * 8;
      const uint4 v = load_fresh16(from + long(row) * width + begin + k);
      if constexpr (L::BITS == 4) {
        const u32 w[4] = {v.x, v.y, v.z, v.w};
        u16* to = S::rows() + row * S::PITCH + k;
        for (int j = 0; j < 8; j++) to[place<L>(j)] = u16(w[j / 2] >> (j % 2 * 16));
      } else {
        *reinterpret_cast<uint4*>(S::rows() + row * S::PITCH + k) = v;
      }
    }
  }

  // One head of a recurrent layer's output: a norm, times silu of its gate; one warp, each lane its numbers.
  static constexpr int GATED_EACH = C::VALUE_DIM / 32;
  DEV void gate(int row, int column, const float* weight, float y[GATED_EACH]) const {
    const int lane = thread_index() % 32;
    float sum = 0;
    for (int e = 0; e < GATED_EACH; e++) sum += y[e] * y[e];
    sum = warp_sum(sum);
    const float scale = rsqrtf(sum / C::VALUE_DIM + C::EPS);
    for (int e = 0; e < GATED_EACH; e++) {
      const float z = load_fresh(joined() + long(row) * JOINED + CHANNELS + column + lane * GATED_EACH + e);
      y[e] *= scale * weight[lane * GATED_EACH + e] * silu(z);
    }
  }

  // A whole head at once, by the block that made it.
  DEV void gate_head(int row, int head, const float* results, const float* weight) const {
    sync_block();
    if (thread_index() / 32 == 0) {
      const int at = thread_index() * GATED_EACH;
      float y[GATED_EACH];
      for (int e = 0; e < GATED_EACH; e++) y[e] = results[at + e];
      gate(row, head * C::VALUE_DIM, weight, y);
      for (int e = 0; e < GATED_EACH; e++)
        mixed()[long(row) * VALUES + head * C::VALUE_DIM + at + e] = narrow<C::HALF>(y[e]);
    }
  }

  // Columns of the recurrent layer's output whose heads several blocks have made.
  DEV void stage_gated(const float* weight, int begin, int length) const {
    const int warp = thread_index() / 32, lane = thread_index() % 32, heads = length / C::VALUE_DIM;
#pragma unroll 1
    for (int i = warp; i < rows * heads; i += C::WARPS) {
      const int row = i / heads, k = i % heads * C::VALUE_DIM;
      float y[GATED_EACH];
      for (int e = 0; e < GATED_EACH; e++)
        y[e] = load_fresh(a.work + Y + long(row) * VALUES + begin + k + lane * GATED_EACH + e);
      gate(row, begin + k, weight, y);
      for (int e = 0; e < GATED_EACH; e++) put<C, Linear>(row, k + lane * GATED_EACH + e, y[e]);
    }
  }

  // Blocks that share a head's values; one when there are rows enough to keep nearly all blocks busy.
  DEV int head_shares() const {
    int shares = most(C::VALUE_DIM / C::WARPS, 1);
    while (shares > 1 && rows * C::VALUE_HEADS * shares / 2 * 10 >= block_count() * 9) shares /= 2;
    return shares;
  }

  // Asks for the states of a block's first unit.
  DEV void warm_states(int index) const {
    const int shares = head_shares(), width = C::VALUE_DIM / shares, unit = block_index();
    if (unit >= rows * C::VALUE_HEADS * shares) return;
    const int row = unit / (C::VALUE_HEADS * shares), head = unit / shares % C::VALUE_HEADS;
    const float* from =
        state_of(row) + ((long(index) * C::VALUE_HEADS + head) * C::VALUE_DIM + unit % shares * width) * C::KEY_DIM;
    for (int i = thread_index() * 32; i < width * C::KEY_DIM; i += THREADS * 32) prefetch(from + i);
  }

  // A recurrent layer's own work: convolution, gates, and the delta rule on the states of (row, head, share of the
  // values). https://arxiv.org/abs/2412.06464, as Qwen3.5 has it.
  DEV void delta_rule(const u8* layer, const Places& at, int index) const {
    constexpr int KD = C::KEY_DIM, EACH = KD / 32, RATIO = C::VALUE_HEADS / C::KEY_HEADS;
    const int shares = head_shares(), width = C::VALUE_DIM / shares, warp = thread_index() / 32, lane = thread_index() % 32;
    float *q = S::misc(), *k = q + KD, *v = k + KD, *norms = v + C::VALUE_DIM, *results = norms + 2;
#pragma unroll 1
    for (int unit = block_index(); unit < rows * C::VALUE_HEADS * shares; unit += block_count()) {
      const int row = unit / (C::VALUE_HEADS * shares), head = unit / shares % C::VALUE_HEADS, share = unit % shares;
      const int key_head = head / RATIO, position = a.positions[row];
      const float* in = joined() + long(row) * JOINED;
      float* taps = state_of(row) + DELTAS + long(index) * 4 * CHANNELS;
      float* states = state_of(row) + ((long(index) * C::VALUE_HEADS + head) * C::VALUE_DIM + share * width) * KD + lane * EACH;
      float first[EACH];  // the state's first row is on its way meanwhile
      if (warp < width) load_each<EACH>(states + long(warp) * KD, first);
      const float b = load_fresh(in + CHANNELS + VALUES + head);
      const float x = load_fresh(in + CHANNELS + VALUES + C::VALUE_HEADS + head) + floats(layer, at.dt_bias)[head];
      sync_block();
#pragma unroll 1
      for (int i = thread_index(); i < 2 * KD + width; i += THREADS) {
        const int channel = i < KD       ? key_head * KD + i
                            : i < 2 * KD ? (C::KEY_HEADS + key_head) * KD + i - KD
                                         : 2 * C::KEY_HEADS * KD + head * C::VALUE_DIM + share * width + i - 2 * KD;
        const float now = load_fresh(in + channel);
        const float4 w = *reinterpret_cast<const float4*>(floats(layer, at.conv) + 4 * channel);
        float sum = w.w * now;
        sum += w.z * taps[((position + 3) & 3) * CHANNELS + channel];
        sum += w.y * taps[((position + 2) & 3) * CHANNELS + channel];
        sum += w.x * taps[((position + 1) & 3) * CHANNELS + channel];
        const bool owner = i >= 2 * KD || (head % RATIO == 0 && share == 0);
        if (owner) taps[(position & 3) * CHANNELS + channel] = now;
        q[i] = silu(sum);  // q, k and v lie one after the other
      }
      sync_block();
      if (warp < 2) {
        float sum = 0;
        for (int i = lane; i < KD; i += 32) sum += q[warp * KD + i] * q[warp * KD + i];
        sum = warp_sum(sum);
        if (lane == 0) norms[warp] = rsqrtf(sum + 1e-6f) * (warp == 0 ? rsqrtf(float(KD)) : 1.0f);
      }
      sync_block();
      const float decay = expf(-expf(floats(layer, at.a_log)[head]) * softplus(x)), beta = sigmoid(b);
      float kk[EACH], qq[EACH];
      for (int e = 0; e < EACH; e++) kk[e] = k[lane * EACH + e] * norms[1], qq[e] = q[lane * EACH + e] * norms[0];
#pragma unroll 2
      for (int d = warp; d < width; d += C::WARPS) {
        float* state = states + long(d) * KD;
        float s[EACH], memory = 0;
        if (d == warp)
          for (int e = 0; e < EACH; e++) s[e] = first[e];
        else
          load_each<EACH>(state, s);
        for (int e = 0; e < EACH; e++) s[e] *= decay, memory += s[e] * kk[e];
        memory = warp_sum(memory);
        const float change = (v[d] - memory) * beta;
        float out = 0;
        for (int e = 0; e < EACH; e++) s[e] += kk[e] * change, out += s[e] * qq[e];
        out = warp_sum(out);
        store_each<EACH>(state, s);
        if (lane == 0 && shares > 1) a.work[Y + long(row) * VALUES + head * C::VALUE_DIM + share * width + d] = out;
        if (lane == 0 && shares == 1) results[d] = out;
      }
      if (shares == 1) gate_head(row, head, results, floats(layer, at.out_norm));
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
  DEV int parts(int row) const {
    const int most = least(C::MOST_PARTS, ceil_div(2 * block_count(), rows * BUNDLES));
    return least(most, ceil_div(a.positions[row] + 1, 32));
  }

  DEV u16* page(int row, int layer, int values, int head, int token) const {
    const long number = a.table[row * a.table_width + token / C::PAGE];
    return a.pages + ((((number * C::ATTENTION_LAYERS + layer) * 2 + values) * C::KV_HEADS + head) * C::PAGE +
                      token % C::PAGE) * C::HEAD_DIM;
  }

  // One head of the joined product, normalised and turned, into shared memory; one warp.
  DEV void turned(const float* from, const float* norm, int position, float* to) const {
    constexpr int D = C::HEAD_DIM;
    const int lane = thread_index() % 32;
    float scale = 1;
    if constexpr (C::HEAD_NORM) {
      float sum = 0;
#pragma unroll 1
      for (int d = lane; d < D; d += 32) {
        const float x = load_fresh(from + d);
        sum += x * x;
      }
      scale = rsqrtf(warp_sum(sum) / D + C::EPS);
    }
#pragma unroll 1
    for (int d = lane; d < D; d += 32) to[d] = load_fresh(from + d) * scale * (C::HEAD_NORM ? norm[d] : 1.0f);
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

  DEV void attend(const u8* layer, const Places& at, int index) const {
    constexpr int D = C::HEAD_DIM, EACH = D / 32;
    const int warp = thread_index() / 32, lane = thread_index() % 32;
    float* heads = reinterpret_cast<float*>(S::rows());        // (TOGETHER + 1, D): queries, the new key
    float* merged = heads + (TOGETHER + 1) * D;                // (WARPS, TOGETHER, PART)
    const int most = least(C::MOST_PARTS, ceil_div(2 * block_count(), rows * BUNDLES));
#pragma unroll 1
    for (int unit = block_index(); unit < rows * BUNDLES * most; unit += block_count()) {
      const int row = unit / (BUNDLES * most), bundle = unit / most % BUNDLES, part = unit % most;
      const int count = parts(row), position = a.positions[row];
      if (part >= count) continue;
      const int key_head = bundle / (PER_KEY / TOGETHER), head0 = bundle * TOGETHER;
      const float* in = joined() + long(row) * JOINED;
      const bool last = part == count - 1;
      sync_block();
#pragma unroll 1
      for (int h = warp; h <= TOGETHER; h += C::WARPS) {
        const bool query = h < TOGETHER;
        const float* from = query ? in + (head0 + h) * D * (C::GATED ? 2 : 1) : in + QUERY_ROWS + key_head * D;
        if (query || last) turned(from, floats(layer, query ? at.q_norm : at.k_norm), position, heads + h * D);
      }
      sync_block();
      float q[TOGETHER][EACH], acc[TOGETHER][EACH], top[TOGETHER], sum[TOGETHER];
      for (int h = 0; h < TOGETHER; h++) {
        top[h] = -1e30f, sum[h] = 0;
        for (int e = 0; e < EACH; e++) q[h][e] = heads[h * D + lane * EACH + e] * C::SCALE, acc[h][e] = 0;
      }
      // The last part's last token is the new one, which the last warp meets.
      const int begin = position * part / count, end = position * (part + 1) / count;
      const bool writes = last && warp == C::WARPS - 1;
#pragma unroll 1
      for (int token = begin + warp; token < end || writes; token += C::WARPS) {
        float key[EACH], value[EACH];
        const bool fresh = token >= end;
        u16* keys = page(row, index, 0, key_head, fresh ? position : token) + lane * EACH;
        u16* values = keys + KEY_ROWS * C::PAGE;
        if (fresh) {
          const float* made = in + QUERY_ROWS + KEY_ROWS + key_head * D + lane * EACH;
          for (int e = 0; e < EACH; e++) {  // rounded as it will be read from now on
            const u16 k16 = narrow<C::HALF>(heads[TOGETHER * D + lane * EACH + e]), v16 = narrow<C::HALF>(load_fresh(made + e));
            if (head0 % PER_KEY == 0) keys[e] = k16, values[e] = v16;
            key[e] = widen<C::HALF>(k16), value[e] = widen<C::HALF>(v16);
          }
        } else {
          read_each<EACH>(keys, key);
          read_each<EACH>(values, value);
        }
        for (int h = 0; h < TOGETHER; h++) {
          float score = 0;
          for (int e = 0; e < EACH; e++) score += q[h][e] * key[e];
          score = warp_sum(score);
          const float higher = fmaxf(top[h], score), keep = expf(top[h] - higher), weight = expf(score - higher);
          top[h] = higher;
          sum[h] = sum[h] * keep + weight;
          for (int e = 0; e < EACH; e++) acc[h][e] = acc[h][e] * keep + weight * value[e];
        }
        if (fresh) break;
      }
      for (int h = 0; h < TOGETHER; h++) {
        float* to = merged + (warp * TOGETHER + h) * PART;
        if (lane == 0) to[0] = top[h], to[1] = sum[h];
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
          const float weight = expf(from[0] - high);
          total += weight * from[1], out += weight * from[2 + d];
        }
        float* to = a.work + PARTS + ((long(row) * C::HEADS + head0 + h) * C::MOST_PARTS + part) * PART;
        if (d == 0) to[0] = high, to[1] = total;
        to[2 + d] = out;
      }
    }
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
#pragma unroll 1
    for (int i = block_index() + thread_index() / 32 * block_count(); i < rows * C::HEADS * PIECES; i += warps) {
      const int head_of_row = i / PIECES, d = i % PIECES * 32 + lane;
      const int row = head_of_row / C::HEADS, head = head_of_row % C::HEADS, count = parts(row);
      const float* from = a.work + PARTS + long(head_of_row) * C::MOST_PARTS * PART;
      float high = -1e30f, total = 0;
      for (int p = lane; p < count; p += 32) high = fmaxf(high, load_fresh(from + p * PART));
      high = warp_most(high);
      sync_warp();  // the weights before have been read
      for (int p = lane; p < count; p += 32) {
        const float weight = expf(load_fresh(from + p * PART) - high);
        weights[p] = weight;
        total += weight * load_fresh(from + p * PART + 1);
      }
      total = warp_sum(total);
      sync_warp();
      float out = 0;
#pragma unroll 4
      for (int p = 0; p < count; p++) out += weights[p] * load_fresh(from + p * PART + 2 + d);
      out /= total;
      if constexpr (C::GATED) out *= sigmoid(load_fresh(joined() + long(row) * JOINED + (head * 2 + 1) * D + d));
      mixed()[long(head_of_row) * D + d] = narrow<C::HALF>(out);
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
#pragma unroll 1
    for (int i = 0; i < C::LAYERS; i++) {
      const u8* layer = a.layers[i];
      const bool recurrent = C::recurrent(i);
      const Places& at = C::places(recurrent);
      const Residual before{*this, h, a.work + PD, i == 0 ? 0 : C::DOWN_SPLITS};
      const Residual between{*this, other, a.work + PO, C::OUT_SPLITS};
      const int width = recurrent ? VALUES : C::HEADS * C::HEAD_DIM;
      const Matrix in = matrix(layer, at.in, recurrent ? DELTA_ROWS : ATTENTION_ROWS, H), out = matrix(layer, at.out, H, width);
      const Matrix gate = matrix(layer, at.gate, C::INTERMEDIATE, H), up = matrix(layer, at.up, C::INTERMEDIATE, H);
      const Matrix down = matrix(layer, at.down, H, C::INTERMEDIATE);
      normed_product<Linear, C::IN_SHARES, false>(in, in, before, other, floats(layer, at.in_norm), i > 0,
                                                  Partial{joined(), JOINED, rows});
      if (recurrent) {
        warm_states(deltas);
        sync_grid(a.arrivals);
        delta_rule(layer, at, deltas++);
      } else {
        sync_grid(a.arrivals);
        attend(layer, at, attentions++);
        sync_grid(a.arrivals);
        join_parts();
      }
      const bool gated_later = recurrent && head_shares() > 1;
      product<C, Linear, C::OUT_SHARES, false>(
          rows, out, out, C::OUT_SPLITS, [&] { sync_grid(a.arrivals); },
          [&](int begin, int length) {
            if (gated_later)
              stage_gated(floats(layer, at.out_norm), begin, length);
            else
              stage_plain<Linear>(mixed(), width, begin, length);
          },
          Partial{a.work + PO, H, rows});
      normed_product<Linear, C::UP_SHARES, true>(gate, up, between, h, floats(layer, at.post_norm), true,
                                                 [&](int, int output, int row, float low, float high) {
                                                   if (row < rows)
                                                     upper()[long(row) * C::INTERMEDIATE + output] =
                                                         narrow<C::HALF>(silu(low) * high);
                                                 });
      product<C, Linear, C::DOWN_SHARES, false>(
          rows, down, down, C::DOWN_SPLITS, [&] { sync_grid(a.arrivals); },
          [&](int begin, int length) { stage_plain<Linear>(upper(), C::INTERMEDIATE, begin, length); },
          Partial{a.work + PD, H, rows});
    }
    finish(Residual{*this, h, a.work + PD, C::DOWN_SPLITS});
  }

  DEV void finish(const Residual& h) const {
    using L = Layout<C::HEAD_BITS, C::HEAD_GROUP>;
    const Matrix w = matrix(a.head, {0, C::HEAD_SCALES, C::HEAD_BIASES}, C::VOCABULARY, H);
    normed_product<L, C::HEAD_SHARES, false>(w, w, h, nullptr, a.norm, true,
                                             [&](int, int output, int row, float low, float) {
                                               if (row < rows) a.logits[long(row) * C::VOCABULARY + output] = low;
                                             });
    if (block_index() == 0 && thread_index() < rows) a.next_positions[thread_index()] = a.positions[thread_index()] + 1;
  }
};
