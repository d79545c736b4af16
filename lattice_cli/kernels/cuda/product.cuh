// Products of a weight matrix with a few rows of activations, on tensor cores, the weights read once.
//
// A matrix has its rows (outputs) one after the other, K columns each, in 16-bit numbers or in mlx's affine
// quantization (BITS 4 or 8; word of scale and of bias for each GROUP columns). A warp takes a tile of 16 rows and
// a share of the columns. A product of tensor cores has 32 columns here: each of four lanes in a row of the fragment has
// 8 neighbouring weights of row g and of row g + 8. Which columns meet does not matter as long as both sides agree, so the
// activations lie in shared memory in that order: 8 columns to a unit of 16 bytes.
//
// Quantized weights enter as whole numbers, exact in 16 bits; scale and bias are applied in float32 to the sums of
// each group:  sum w x = scale * sum q x + bias * sum x.
#pragma once

#include "portable.cuh"

// How weights are stored, and what a warp takes of a row in one step: SUBS times 32 columns, in 16-bit numbers one of
// them, which are 64 bytes (32 with SUBS 2 of 4 bits, for widths that are no multiple of 128).
template <int BITS_, int GROUP_, int SUBS_>
struct Layout {
  static constexpr int BITS = BITS_, GROUP = GROUP_, SUBS = SUBS_;
  static constexpr bool QUANTIZED = BITS < 16;
  static constexpr int COLUMNS = 32 * SUBS, ROW_BYTES = COLUMNS * BITS / 8;
  static constexpr int GROUPS = QUANTIZED ? COLUMNS / GROUP : 1;        // of a step
  static constexpr int SCALES = !QUANTIZED ? 0 : GROUPS == 4 ? 8 : 4;   // bytes of a row's scales in a step
  static constexpr int SLOT = 16 * ROW_BYTES + 32 * SCALES;             // of a step's 16 rows: weights, scales, biases

  // Where 16 bytes of row g (modulo 8) lie among the row's, so that lanes that read together meet in no bank.
  DEV static int piece(int g, int number) {
    if constexpr (BITS == 4 && SUBS == 4) return number ^ (g / 2);
    if constexpr (BITS == 4 && SUBS == 2) return number ^ (g / 4);
    if constexpr (BITS == 8) return number ^ (g / 2 % 2 * 2);
    return number;
  }
};

struct Matrix {
  const u8* weights;
  const u16* scales;
  const u16* biases;
  int rows, columns;
};

// Shared memory of a product; see Shared::bytes.
template <class C>
struct Shared {
  static constexpr int RP = 8 * C::NT;              // rows of activations, padded
  static constexpr int PITCH = C::CHUNK + 32;       // numbers from row to row: no two of a read's lanes in one bank
  static constexpr int REDUCED = C::WARPS * C::NT * 4 * 32;
  static constexpr int MISC = 1024;                 // floats: norms, small things
  static constexpr int SUMS = C::SUMMED ? RP * (C::CHUNK / 32) : 0;
  static constexpr int PIPE = C::WARPS * C::DEPTH * C::SLOT;  // bytes of weights on their way
  static constexpr int BYTES = 4 * (REDUCED + MISC + SUMS + C::RESULTS) + PIPE + 2 * RP * PITCH;

  DEV static float* reduced() { return reinterpret_cast<float*>(shared_memory()); }
  DEV static float* misc() { return reduced() + REDUCED; }
  DEV static float* sums() { return misc() + MISC; }
  DEV static float* results() { return sums() + SUMS; }
  DEV static u8* pipe() { return reinterpret_cast<u8*>(results() + C::RESULTS); }
  DEV static u16* rows() { return reinterpret_cast<u16*>(pipe() + PIPE); }
};

// Column k of a row -> its place in shared memory. 4-bit weights come in the order 0 4 1 5 2 6 3 7.
template <class L>
DEV int place(int k) {
  if constexpr (L::BITS == 4) return (k & ~7) + ((k & 3) << 1) + ((k >> 2) & 1);
  return k;
}

// Eight weights of one row as they lie in memory.
template <int BITS>
struct Raw;
template <>
struct Raw<16> {
  using Type = uint4;
};
template <>
struct Raw<8> {
  using Type = uint2;
};
template <>
struct Raw<4> {
  using Type = u32;
};

// What is added to a weight when it enters: numbers whose last bits are the weight's need no conversion, which is slow.
template <int BITS, bool HALF>
struct Offset {
  static constexpr float VALUE = BITS == 16 || (BITS == 8 && !HALF) ? 0.0f : HALF ? 1024.0f : 128.0f;
};
template <bool HALF>
DEV void expand(const uint4& raw, u32 out[4]) {
  out[0] = raw.x, out[1] = raw.y, out[2] = raw.z, out[3] = raw.w;
}
template <bool HALF>
DEV void expand_bytes(u32 raw, u32 out[2]) {
  if constexpr (HALF) {
    out[0] = pick_bytes(raw, 0x64646464u, 0x4140), out[1] = pick_bytes(raw, 0x64646464u, 0x4342);
  } else {  // 2 to the 23 and a byte, less 2 to the 23, has the byte in its upper half
    const float magic = 8388608.0f;
    const float a = as_float(pick_bytes(raw, 0x4b000000u, 0x7650)) - magic, b = as_float(pick_bytes(raw, 0x4b000000u, 0x7651)) - magic;
    const float c = as_float(pick_bytes(raw, 0x4b000000u, 0x7652)) - magic, d = as_float(pick_bytes(raw, 0x4b000000u, 0x7653)) - magic;
    out[0] = pick_bytes(as_bits(a), as_bits(b), 0x7632), out[1] = pick_bytes(as_bits(c), as_bits(d), 0x7632);
  }
}
template <bool HALF>
DEV void expand(const uint2& raw, u32 out[4]) {
  expand_bytes<HALF>(raw.x, out);
  expand_bytes<HALF>(raw.y, out + 2);
}
template <bool HALF>
DEV void expand(u32 raw, u32 out[4]) {
  for (int i = 0; i < 4; i++) out[i] = ((raw >> (4 * i)) & 0x000f000fu) | (HALF ? 0x64006400u : 0x43004300u);
}

// Sums of the rounded activations of each group, where the warps do not add them up themselves; all threads, after a barrier.
template <class C, class L>
DEV void sum_groups(int rows, int length) {
  constexpr int UNITS = L::GROUP / 8;
  const int total = rows * length / 8;
  const int padded = ceil_div(total, 32) * 32;
#pragma unroll 1
  for (int i = thread_index(); i < padded; i += C::WARPS * 32) {
    const int row = i / (length / 8), unit = i % (length / 8);
    float sum = 0;
    if (i < total) {
      const u16* from = Shared<C>::rows() + row * Shared<C>::PITCH + unit * 8;
      for (int j = 0; j < 8; j++) sum += widen<C::HALF>(from[j]);
    }
    for (int mask = 1; mask < UNITS; mask *= 2) sum += shuffle_xor(sum, mask);
    if (i < total && unit % UNITS == 0) Shared<C>::sums()[row * (C::CHUNK / 32) + unit / UNITS] = sum;
  }
}

// A block's part of a product in pieces: TILES tiles (a unit) and as many columns as activations are in shared memory.
// Where one piece of the columns is not all, a group of units goes through the same piece before the next is put there.
struct Segment {
  int tile;   // the unit's first tile
  int split;  // the part of the columns that this block has
  int begin;  // the first column
  int number; // which of its group
};

// The weights of a product as one warp meets them, from the block's first segment to its last. They come through a ring in
// shared memory: a register file that loads by itself, so that weights are on their way while the warp waits for what they
// are to be multiplied with, and while it adds up what it has.
template <class C, class L, int SHARES, bool PAIRED>
struct Stream {
  static constexpr int TILES = C::WARPS / SHARES, ROWS = PAIRED ? 8 : 16;
  static constexpr int KEPT = PAIRED ? 2 : 4, RESULTS = TILES * C::NT * KEPT * 32 * (PAIRED ? 2 : 1);  // floats of a unit
  static constexpr int TOGETHER = C::RESULTS / RESULTS > 1 ? C::RESULTS / RESULTS : 1;                 // units of a group

  const Matrix &w, &second;
  const int tiles, splits, width;  // `tiles`: whole units of them
  Segment next{};
  int left = 0;
  u32 sent = 0, taken = 0;
  const u8 *low = nullptr, *high = nullptr, *scales = nullptr;

  DEV Stream(const Matrix& w, const Matrix& second, int splits)
      : w(w), second(second), tiles(ceil_div(w.rows, ROWS * TILES) * TILES), splits(splits), width(w.columns / splits) {
    next = first();
    open();
  }
  // As many steps as `goal` on their way.
  DEV void fill(u32 goal) {
#pragma unroll 1
    while (sent < goal) send();
  }

  DEV Segment first() const { return placed(block_index() * TILES, 0); }
  DEV Segment placed(int tile, int split) const {
    while (tile >= tiles && split < splits) tile -= tiles, split++;
    return {tile, split, split * width, 0};
  }
  DEV bool over(const Segment& at) const { return at.split >= splits; }
  DEV int length(const Segment& at) const { return least(C::CHUNK, (at.split + 1) * width - at.begin); }
  DEV bool begins(const Segment& at) const { return at.begin == at.split * width; }
  DEV bool ends(const Segment& at) const { return at.begin + C::CHUNK >= (at.split + 1) * width; }

  DEV Segment after(const Segment& at) const {
    const int stride = block_count() * TILES;
    if (width > C::CHUNK) {
      if (at.number + 1 < TOGETHER && at.tile + stride < tiles) return {at.tile + stride, at.split, at.begin, at.number + 1};
      if (!ends(at)) return {at.tile - at.number * stride, at.split, at.begin + C::CHUNK, 0};
    }
    return placed(at.tile + stride, at.split);
  }

  // Steps of this warp: of the segment's every SHARES-th.
  DEV int own_tile(const Segment& at) const { return at.tile + thread_index() / 32 / SHARES; }
  DEV int steps(const Segment& at) const {
    const int count = length(at) / L::COLUMNS - thread_index() / 32 % SHARES;
    return own_tile(at) * ROWS < w.rows && count > 0 ? (count + SHARES - 1) / SHARES : 0;
  }
  DEV int row(const Segment& at, int r) const { return least(own_tile(at) * ROWS + (PAIRED ? r % 8 : r), w.rows - 1); }
  DEV int first_column(const Segment& at) const { return at.begin + thread_index() / 32 % SHARES * L::COLUMNS; }

  // Goes to the next segment that has something for this warp.
  DEV void open() {
    while (!over(next) && (left = steps(next)) == 0) next = after(next);
    if (over(next)) return;
    const int lane = thread_index() % 32, g = lane / 4, column = first_column(next);
    const int at = column * L::BITS / 8 + lane % 4 * 16, pitch = w.columns * L::BITS / 8;
    low = w.weights + (long(row(next, g)) * pitch + at);
    high = (PAIRED ? second : w).weights + (long(row(next, g + 8)) * pitch + at);
    if constexpr (L::QUANTIZED) {
      const Matrix& of = PAIRED && lane % 16 >= 8 ? second : w;
      scales = reinterpret_cast<const u8*>((lane < 16 ? of.scales : of.biases) +
                                           long(row(next, lane % 16)) * (w.columns / L::GROUP) + column / L::GROUP);
    }
    next = after(next);
  }

  DEV u8* slot(u32 number) const {
    return Shared<C>::pipe() + (thread_index() / 32 * C::DEPTH + number % C::DEPTH) * L::SLOT;
  }
  DEV void send() {
    if (left > 0) {
      const int lane = thread_index() % 32, g = lane / 4;
      u8* to = slot(sent);
      if (L::ROW_BYTES == 64 || lane % 4 * 16 < L::ROW_BYTES) {
        copy_async<16>(to + g * L::ROW_BYTES + L::piece(g, lane % 4) * 16, low);
        copy_async<16>(to + (g + 8) * L::ROW_BYTES + L::piece(g, lane % 4) * 16, high);
      }
      if constexpr (L::QUANTIZED)  // one number alone comes with its neighbour
        copy_async<L::SCALES>(to + 16 * L::ROW_BYTES + lane * L::SCALES,
                              L::GROUPS > 1 ? scales : reinterpret_cast<const u8*>(reinterpret_cast<u64>(scales) & ~u64(3)));
      low += SHARES * L::ROW_BYTES, high += SHARES * L::ROW_BYTES, scales += 2 * SHARES * L::GROUPS;
      if (--left == 0) open();
    }
    commit_async();
    sent++;
  }
};

// The products of a segment with the activations in shared memory, whose first column is the segment's. With one tile of
// activation rows there are two sums, so that one product need not wait for the other.
template <class C, class L, int SHARES, bool PAIRED>
DEV void accumulate(Stream<C, L, SHARES, PAIRED>& stream, const Segment& at, float acc[][4]) {
  using T = typename Raw<L::BITS>::Type;
  constexpr int NT = C::NT, PARTS = NT == 1 ? 2 : NT;
  const int lane = thread_index() % 32, g = lane / 4, t = lane % 4, own = stream.steps(at);
  const int column = stream.first_column(at);
  int group = (column - at.begin) / L::GROUP;
  const u16* x = Shared<C>::rows() + g * Shared<C>::PITCH + t * 8 + column - at.begin;
  // Which half of a word has the scale, where a step has one.
  const int per_row = stream.w.columns / L::GROUP, own_low = stream.row(at, g) * per_row + column / L::GROUP;
  const int own_high = stream.row(at, g + 8) * per_row + column / L::GROUP;
  int j = 0;
  const auto take = [&] {
    const u8* from = stream.slot(stream.taken);
#pragma unroll
    for (int q = 0; q < L::GROUPS; q++) {
      float part[PARTS][4] = {}, ones[4] = {};
#pragma unroll
      for (int s = q * (L::SUBS / L::GROUPS); s < (q + 1) * (L::SUBS / L::GROUPS); s++) {
        const int byte = (s * 4 + t) * L::BITS;  // of this lane's eight weights in a row
        const int place = g * L::ROW_BYTES + L::piece(g, byte / 16) * 16 + byte % 16;
        u32 lo[4], hi[4];
        expand<C::HALF>(*reinterpret_cast<const T*>(from + place), lo);
        expand<C::HALF>(*reinterpret_cast<const T*>(from + 8 * L::ROW_BYTES + place), hi);
#pragma unroll
        for (int n = 0; n < NT; n++) {
          const uint4 b = *reinterpret_cast<const uint4*>(x + s * 32 + n * 8 * Shared<C>::PITCH);
          float* one = L::QUANTIZED ? part[n] : acc[n];
          float* other = NT > 1 ? one : L::QUANTIZED ? part[1] : acc[1];
          multiply_add<C::HALF>(one, lo[0], hi[0], lo[1], hi[1], b.x, b.y);
          multiply_add<C::HALF>(other, lo[2], hi[2], lo[3], hi[3], b.z, b.w);
          if constexpr (L::QUANTIZED && NT == 1) {
            constexpr u32 ONE = C::HALF ? 0x3c003c00u : 0x3f803f80u;
            multiply_add<C::HALF>(ones, ONE, ONE, ONE, ONE, b.x, b.y);
            multiply_add<C::HALF>(ones, ONE, ONE, ONE, ONE, b.z, b.w);
          }
        }
      }
      if constexpr (L::QUANTIZED) {  // acc += scale * part + bias * sum of the activations of the group
        const auto scale_of = [&](int which, int r, int own) {
          const u16* found = reinterpret_cast<const u16*>(from + 16 * L::ROW_BYTES + (which * 16 + r) * L::SCALES);
          return widen<C::HALF>(found[L::GROUPS > 1 ? q : own & 1]);
        };
        const float low = scale_of(0, g, own_low + j * SHARES), high = scale_of(0, g + 8, own_high + j * SHARES);
        const float offset = Offset<L::BITS, C::HALF>::VALUE;
        const float more_low = scale_of(1, g, own_low + j * SHARES) - offset * low;
        const float more_high = scale_of(1, g + 8, own_high + j * SHARES) - offset * high;
#pragma unroll
        for (int n = 0; n < NT; n++) {
          float sum0 = ones[0], sum1 = ones[1];
          if constexpr (NT > 1) {
            const float* sums = Shared<C>::sums() + (n * 8 + 2 * t) * (C::CHUNK / 32) + group + q;
            sum0 = sums[0], sum1 = sums[C::CHUNK / 32];
          } else {
            for (int i = 0; i < 4; i++) part[0][i] += part[1][i];
          }
          acc[n][0] += low * part[n][0] + more_low * sum0;
          acc[n][1] += low * part[n][1] + more_low * sum1;
          acc[n][2] += high * part[n][2] + more_high * sum0;
          acc[n][3] += high * part[n][3] + more_high * sum1;
        }
      }
    }
    x += SHARES * L::COLUMNS, group += SHARES * L::GROUPS, j++, stream.taken++;
  };
  const auto run = [&](int count) {  // steps that are there
    if constexpr (L::QUANTIZED) {
      sync_warp();
#pragma unroll 1
      for (int i = 0; i < count; i++) take();
      sync_warp();  // who reads what another lane copies
    } else {
#pragma unroll 2
      for (int i = 0; i < count; i++) take();
    }
  };
  int left = own;
#pragma unroll 1
  while (left > 0) {
    // As many as are there for sure. When nothing is left to ask for, all that comes has been: half of it is waited for
    // at once, and then the rest.
    int count = least(left, 2);
    if (stream.left > 0) {
      wait_async<C::DEPTH - 2>();
    } else {
      const int coming = int(stream.sent - stream.taken);
      if (coming > C::DEPTH / 2) {
        wait_async<C::DEPTH / 2>();
        count = least(left, coming - C::DEPTH / 2);
      } else {
        wait_async<0>();
        count = least(left, coming);
      }
    }
    run(count);
    left -= count;
    if (stream.left > 0) stream.fill(stream.taken + C::DEPTH);
  }
}

// Adds up the warps' shares of a unit, and what earlier pieces of the columns gave (`kept`, unless this is the first); the
// last piece's results are handed out.
template <class C, int SHARES, bool PAIRED, class Finish>
DEV void finish_unit(int rows, int split, int first_tile, float* kept, bool first, bool last, const float acc[][4],
                     Finish&& finish) {
  constexpr int TILES = C::WARPS / SHARES, VALUES = C::NT * 4, KEPT = PAIRED ? 2 : 4, COUNT = TILES * C::NT * KEPT * 32;
  const int warp = thread_index() / 32, lane = thread_index() % 32;
  float* reduced = Shared<C>::reduced();
  sync_block();  // the results of the unit before have been read
  for (int n = 0; n < C::NT; n++)
    for (int i = 0; i < 4; i++)
      reduced[(warp * VALUES + n * 4 + i) * 32 + lane] = acc[n][i] + (C::NT == 1 ? acc[1][i] : 0.0f);
  sync_block();
#pragma unroll 1
  for (int at = thread_index(); at < COUNT; at += C::WARPS * 32) {
    const int from = at % 32, i = at / 32 % KEPT, n = at / (32 * KEPT) % C::NT, tile = at / (32 * KEPT * C::NT);
    float low = 0, high = 0;
#pragma unroll
    for (int s = 0; s < SHARES; s++) {
      const float* values = reduced + ((tile * SHARES + s) * VALUES + n * 4 + i) * 32 + from;
      low += values[0];
      if (PAIRED) high += values[64];
    }
    if (!first) {
      low += kept[at];
      if (PAIRED) high += kept[COUNT + at];
    }
    if (!last) {
      kept[at] = low;
      if (PAIRED) kept[COUNT + at] = high;
      continue;
    }
    const int output = (first_tile + tile) * (PAIRED ? 8 : 16) + from / 4 + (i >= 2 ? 8 : 0), row = n * 8 + from % 4 * 2 + i % 2;
    if (output < rows) finish(split, output, row, low, high);
  }
}

// The whole product. SHARES warps share the columns of a tile, and so do `splits` blocks: the columns of split s are
// [s K / splits, (s + 1) K / splits). PAIRED: a tile is 8 rows of `w` and the same 8 of `second`.
//
// `ready(0)` is called when some of the first weights are on their way: it waits for what the activations come from.
// `ready(1)` is called when all are: the memory's queues are long, and who waits for other blocks stands in them, too.
// `stage(begin, length)` puts columns of the `rows` activations into shared memory; what is in the rows after them
// goes into results that nobody takes;
// `finish(split, output, row, low, high)` takes result `output` of activation row `row`; of a paired tile both matrices'
// results, else `high` is nothing.
template <class C, class L, int SHARES, bool PAIRED, class Ready, class Stage, class Finish>
DEV void product(int rows, const Matrix& w, const Matrix& second, int splits, Ready&& ready, Stage&& stage, Finish&& finish) {
  using S = Stream<C, L, SHARES, PAIRED>;
  S stream(w, second, splits);
#pragma unroll 1
  for (int phase = 0; phase < 2; phase++) {
    stream.fill(phase == 0 ? C::DEPTH / 2 : C::DEPTH);
    ready(phase);
  }
  int staged = -1;
  float acc[C::NT == 1 ? 2 : C::NT][4];
#pragma unroll 1
  for (Segment at = stream.first(); !stream.over(at); at = stream.after(at)) {
    if (staged != at.begin) {
      if (staged >= 0) sync_block();  // what is there has been read
      stage(at.begin, stream.length(at));
      sync_block();
      if constexpr (L::QUANTIZED && C::NT > 1) {
        sum_groups<C, L>(rows, stream.length(at));
        sync_block();
      }
      staged = at.begin;
    }
    const bool alone = S::TOGETHER == 1;  // then the sums of a unit stay in registers from piece to piece
    if (!alone || stream.begins(at))
      for (int n = 0; n < (C::NT == 1 ? 2 : C::NT); n++)
        for (int i = 0; i < 4; i++) acc[n][i] = 0;
    accumulate<C, L, SHARES, PAIRED>(stream, at, acc);
    if (alone && !stream.ends(at)) continue;
    finish_unit<C, SHARES, PAIRED>(w.rows, at.split, at.tile,
                                   Shared<C>::results() + at.number * S::RESULTS, alone || stream.begins(at),
                                   alone || stream.ends(at), acc, finish);
  }
  wait_async<0>();
}
