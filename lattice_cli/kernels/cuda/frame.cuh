// What all stages of a step need: its arguments and sizes, the workspace, the barrier, and how rows come into shared memory.
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

// A row of BYTES from memory to shared memory by one warp, whose lanes may read it after sync_warp.
template <int BYTES>
DEV void copy_row(void* to, const void* from) {
  constexpr int PIECE = BYTES % 512 == 0 ? 16 : BYTES % 256 == 0 ? 8 : 4;
#pragma unroll
  for (int at = thread_index() % 32 * PIECE; at < BYTES; at += 32 * PIECE)
    copy_async<PIECE>(static_cast<u8*>(to) + at, static_cast<const u8*>(from) + at);
}
// How many rows of so many bytes each of the warps can have on their way in `room` bytes: a power of two, at most 16.
constexpr int ring_of(int warps, int bytes, int room) {
  int depth = 16;
  while (depth > 1 && depth * bytes * warps > room) depth /= 2;
  return depth;
}

template <int N>
DEV void fresh_each(const float* from, float* to) {
  if constexpr (N % 4 == 0) {
    for (int i = 0; i < N; i += 4) *reinterpret_cast<float4*>(to + i) = load_fresh4(from + i);
  } else {
    for (int i = 0; i < N; i++) to[i] = load_fresh(from + i);
  }
}
template <int N>
DEV void load_each(const float* from, float* to) {
  if constexpr (N % 4 == 0) {
    for (int i = 0; i < N; i += 4) *reinterpret_cast<float4*>(to + i) = *reinterpret_cast<const float4*>(from + i);
  } else {
    for (int i = 0; i < N; i++) to[i] = from[i];
  }
}
template <int N>
DEV void store_each(float* to, const float* from) {
  if constexpr (N % 4 == 0) {
    for (int i = 0; i < N; i += 4) *reinterpret_cast<float4*>(to + i) = *reinterpret_cast<const float4*>(from + i);
  } else {
    for (int i = 0; i < N; i++) to[i] = from[i];
  }
}

// Sums over all lanes of COUNT values (a power of two): lane l gets that of value l / (32 / COUNT).
template <int COUNT>
DEV float share_out(float v[COUNT]) {
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

template <bool HALF, int N>
DEV void read_each(const u16* from, float* to) {
  if constexpr (N % 8 == 0) {
    for (int i = 0; i < N; i += 8) {
      const uint4 v = *reinterpret_cast<const uint4*>(from + i);
      const u32 w[4] = {v.x, v.y, v.z, v.w};
      for (int j = 0; j < 8; j++) to[i + j] = widen<HALF>(u16(w[j / 2] >> (j % 2 * 16)));
    }
  } else {
    for (int i = 0; i < N; i++) to[i] = widen<HALF>(from[i]);
  }
}

template <class C>
struct Frame {
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
  static constexpr int TAIL = sizeof(Arguments) + 8 * C::LAYERS + 8 * RP;
  static constexpr int ATTENTION = 4 * ((TOGETHER + 2) * C::HEAD_DIM + C::WARPS * TOGETHER * PART);  // over the activations

  static_assert(WORK == C::WORK_NUMBERS && TAIL <= C::TAIL_BYTES, "cuda_plan.py reckons otherwise");
  static_assert(S::BYTES <= C::SHARED_BYTES && S::BYTES - 2 * RP * S::PITCH + ATTENTION <= C::SHARED_BYTES, "here, too");

  // Puts arguments where all threads read them; a register less each, and none in a thread's own memory.
  DEV static const Arguments& share(const Arguments& arguments) {
    Arguments* copy = reinterpret_cast<Arguments*>(shared_memory() + C::SHARED_BYTES);
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
  DEV Frame(const Arguments& arguments) : a(arguments), rows(arguments.rows[0]), goal(load_acquire(arguments.arrivals)) {
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
};
