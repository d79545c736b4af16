// Products of a weight matrix with a few rows of activations, on tensor cores, the weights read once.
//
// A matrix has its rows (outputs) one after the other, K columns each, in 16-bit numbers or in mlx's affine
// quantization (BITS 4 or 8; word of scale and of bias for each GROUP columns). A warp takes a tile of 16 rows and
// a share of the columns. One step is 32 columns: each of four lanes in a row of the fragment reads 8 neighbouring
// weights of row g and of row g + 8. Which columns meet in one tensor-core product does not matter as long as both sides
// agree, so the activations lie in shared memory in that order: 8 columns to a unit of 16 bytes.
//
// Quantized weights enter as whole numbers, exact in 16 bits; scale and bias are applied in float32 to the sums of
// each group:  sum w x = scale * sum q x + bias * sum x.
#pragma once

#include "portable.cuh"

template <int BITS_, int GROUP_>
struct Layout {
  static constexpr int BITS = BITS_, GROUP = GROUP_;
  static constexpr bool QUANTIZED = BITS < 16;
  static constexpr int STEPS = QUANTIZED ? GROUP / 32 : 1;  // that share a scale
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
  static constexpr int SUMS = RP * (C::CHUNK / 32);
  static constexpr int PIPE = C::WARPS * C::DEPTH * 2 * 512;  // bytes of weights on their way
  static constexpr int BYTES = 4 * (REDUCED + MISC + SUMS) + PIPE + 2 * RP * PITCH;

  DEV static float* reduced() { return reinterpret_cast<float*>(shared_memory()); }
  DEV static float* misc() { return reduced() + REDUCED; }
  DEV static float* sums() { return misc() + MISC; }
  DEV static u8* pipe() { return reinterpret_cast<u8*>(sums() + SUMS); }
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

template <bool HALF>
DEV void expand(const uint4& raw, u32 out[4]) {
  out[0] = raw.x, out[1] = raw.y, out[2] = raw.z, out[3] = raw.w;
}
// A byte as the last bits of 2 to the 23 is a float32 with that much more: converting whole numbers is slow on a GPU.
DEV float byte_of(u32 raw, int i) { return as_float(0x4b000000u | ((raw >> (8 * i)) & 255)) - 8388608.0f; }
template <bool HALF>
DEV void expand_bytes(u32 raw, u32 out[2]) {
  out[0] = narrow2<HALF>(byte_of(raw, 0), byte_of(raw, 1));
  out[1] = narrow2<HALF>(byte_of(raw, 2), byte_of(raw, 3));
}
template <bool HALF>
DEV void expand(const uint2& raw, u32 out[4]) {
  expand_bytes<HALF>(raw.x, out);
  expand_bytes<HALF>(raw.y, out + 2);
}
// 4 bits q as the 16-bit number OFFSET + q, which differs from OFFSET in its last bits only.
template <bool HALF>
struct Nibble {
  static constexpr u32 ONES = HALF ? 0x64006400u : 0x43004300u;
  static constexpr float OFFSET = HALF ? 1024.0f : 128.0f;
};
template <bool HALF>
DEV void expand(u32 raw, u32 out[4]) {
  for (int i = 0; i < 4; i++) out[i] = ((raw >> (4 * i)) & 0x000f000fu) | Nibble<HALF>::ONES;
}

// Puts one activation into its place, rounded.
template <class C, class L>
DEV void put(int row, int k, float value) {
  Shared<C>::rows()[row * Shared<C>::PITCH + place<L>(k)] = narrow<C::HALF>(value);
}

// Sums of the rounded activations of each group; all threads, after a barrier.
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

// One warp's share of a tile: rows of two matrices (or of the same) that the lane's fragments have, and columns
// [begin, begin + 32 steps) of them; of their groups of STEPS steps every SHARES-th is this warp's, from `share` on.
//
// Weights come through a ring in shared memory, where each lane reads just what it has copied: a register file that loads
// by itself, so that weights are on their way while the warp waits for what they are to be multiplied with.
template <class C, class L, int SHARES>
struct Tile {
  static constexpr int BYTES = L::BITS;  // of eight weights

  const Matrix *low_of, *high_of;
  int low, high, begin, share, steps;

  // How many steps are this warp's.
  DEV int own() const {
    const int groups = steps / L::STEPS - share;
    return groups <= 0 ? 0 : (groups + SHARES - 1) / SHARES * L::STEPS;
  }
  DEV int step_of(int j) const { return (share + j / L::STEPS * SHARES) * L::STEPS + j % L::STEPS; }
  DEV u8* slot(int j, int row) const {
    const int warp = thread_index() / 32, lane = thread_index() % 32;
    return Shared<C>::pipe() + (((warp * C::DEPTH + j % C::DEPTH) * 2 + row) * 32 + lane) * BYTES;
  }
  DEV void send(int j) const {
    if (j < own()) {
      const long pitch = long(low_of->columns) * L::BITS / 8, lane = thread_index() % 4;
      const long at = (long(begin) + step_of(j) * 32 + lane * 8) * L::BITS / 8;
      copy_async<BYTES>(slot(j, 0), low_of->weights + low * pitch + at);
      copy_async<BYTES>(slot(j, 1), high_of->weights + high * pitch + at);
    }
    commit_async();
  }
  DEV void send_first() const {
#pragma unroll 1
    for (int j = 0; j < C::DEPTH; j++) send(j);
  }
};

// Scale and bias of a group of columns, of both rows of a lane.
template <class C, class L>
struct Affine {
  u16 scale_low = 0, scale_high = 0, bias_low = 0, bias_high = 0;

  template <class T>
  DEV void read(const T& tile, int j) {
    if constexpr (L::QUANTIZED) {
      if (j >= tile.own()) return;
      const long per_row = tile.low_of->columns / L::GROUP, column = (tile.begin / 32 + tile.step_of(j)) / L::STEPS;
      scale_low = tile.low_of->scales[tile.low * per_row + column];
      scale_high = tile.high_of->scales[tile.high * per_row + column];
      bias_low = tile.low_of->biases[tile.low * per_row + column];
      bias_high = tile.high_of->biases[tile.high * per_row + column];
    }
  }

  // acc += scale * part + bias * sum of the activations of group `group` in shared memory.
  DEV void apply(int group, const float part[][4], float acc[][4]) const {
    const int t = thread_index() % 4;
    constexpr float offset = L::BITS == 4 ? Nibble<C::HALF>::OFFSET : 0.0f;
    const float low = widen<C::HALF>(scale_low), high = widen<C::HALF>(scale_high);
    const float more_low = widen<C::HALF>(bias_low) - offset * low, more_high = widen<C::HALF>(bias_high) - offset * high;
#pragma unroll
    for (int n = 0; n < C::NT; n++) {
      const float* sums = Shared<C>::sums() + (n * 8 + 2 * t) * (C::CHUNK / 32) + group;
      const float sum0 = sums[0], sum1 = sums[C::CHUNK / 32];
      acc[n][0] += low * part[n][0] + more_low * sum0;
      acc[n][1] += low * part[n][1] + more_low * sum1;
      acc[n][2] += high * part[n][2] + more_high * sum0;
      acc[n][3] += high * part[n][3] + more_high * sum1;
    }
  }
};

// The products of a tile with the activations in shared memory, whose first column is the tile's.
template <class C, class L, int SHARES>
DEV void accumulate(const Tile<C, L, SHARES>& tile, Affine<C, L> affine, float acc[][4]) {
  using T = typename Raw<L::BITS>::Type;
  const int lane = thread_index() % 32, g = lane / 4, t = lane % 4, own = tile.own();
  const u16* x = Shared<C>::rows() + g * Shared<C>::PITCH + t * 8;
#pragma unroll 1
  for (int j = 0; j < own; j += L::STEPS) {
    float part[C::NT][4] = {};
    Affine<C, L> next;
    next.read(tile, j + L::STEPS);
#pragma unroll
    for (int s = 0; s < L::STEPS; s++) {
      wait_async<C::DEPTH - 1>();
      u32 lo[4], hi[4];
      expand<C::HALF>(*reinterpret_cast<const T*>(tile.slot(j + s, 0)), lo);
      expand<C::HALF>(*reinterpret_cast<const T*>(tile.slot(j + s, 1)), hi);
      const u16* columns = x + tile.step_of(j + s) * 32;
#pragma unroll
      for (int n = 0; n < C::NT; n++) {
        const uint4 b = *reinterpret_cast<const uint4*>(columns + n * 8 * Shared<C>::PITCH);
        float* c = L::QUANTIZED ? part[n] : acc[n];
        multiply_add<C::HALF>(c, lo[0], hi[0], lo[1], hi[1], b.x, b.y);
        multiply_add<C::HALF>(c, lo[2], hi[2], lo[3], hi[3], b.z, b.w);
      }
      tile.send(j + s + C::DEPTH);
    }
    if constexpr (L::QUANTIZED) {
      affine.apply(tile.step_of(j) / L::STEPS, part, acc);
      affine = next;
    }
  }
}

// Adds up the warps' shares of a block's tiles and hands the results out.
template <class C, int SHARES, bool PAIRED, class Finish>
DEV void finish_tiles(int rows, int split, int first_tile, float acc[][4], Finish&& finish) {
  constexpr int TILES = C::WARPS / SHARES, VALUES = C::NT * 4, KEPT = PAIRED ? 2 : 4;
  const int warp = thread_index() / 32, lane = thread_index() % 32;
  float* reduced = Shared<C>::reduced();
  if constexpr (SHARES > 1) {
    sync_block();  // the results of the unit before have been read
    for (int n = 0; n < C::NT; n++)
      for (int i = 0; i < 4; i++) reduced[(warp * VALUES + n * 4 + i) * 32 + lane] = acc[n][i];
    sync_block();
  }
  const auto hand_out = [&](int tile, int n, int i, int from, float low, float high) {
    const int output = tile * (PAIRED ? 8 : 16) + from / 4 + (i >= 2 ? 8 : 0), row = n * 8 + from % 4 * 2 + i % 2;
    if (output < rows) finish(split, output, row, low, high);
  };
  if constexpr (SHARES == 1) {
    for (int n = 0; n < C::NT; n++)
      for (int i = 0; i < KEPT; i++)
        hand_out(first_tile + warp, n, i, lane, acc[n][i], PAIRED ? acc[n][i + 2] : 0.0f);
  } else {
#pragma unroll 1
    for (int at = thread_index(); at < TILES * C::NT * KEPT * 32; at += C::WARPS * 32) {
      const int from = at % 32, i = at / 32 % KEPT, n = at / (32 * KEPT) % C::NT, tile = at / (32 * KEPT * C::NT);
      float low = 0, high = 0;
      for (int s = 0; s < SHARES; s++) {
        const float* values = reduced + ((tile * SHARES + s) * VALUES + n * 4 + i) * 32 + from;
        low += values[0];
        if (PAIRED) high += values[64];
      }
      hand_out(first_tile + tile, n, i, from, low, high);
    }
  }
}

// The whole product. SHARES warps share the columns of a tile, and so do `splits` blocks: the columns of split s are
// [s K / splits, (s + 1) K / splits). PAIRED: a tile is 8 rows of `w` and the same 8 of `second`.
//
// `ready()` is called once, when the first weights are on their way: it waits for what the activations come from.
// `stage(begin, length)` puts columns of the `rows` activations into shared memory (put); what is in the rows after them
// goes into results that nobody takes;
// `finish(split, output, row, low, high)` takes result `output` of activation row `row`; of a paired tile both matrices'
// results, else `high` is nothing.
template <class C, class L, int SHARES, bool PAIRED, class Ready, class Stage, class Finish>
DEV void product(int rows, const Matrix& w, const Matrix& second, int splits, Ready&& ready, Stage&& stage, Finish&& finish) {
  constexpr int TILES = C::WARPS / SHARES;  // of a block at once
  constexpr int ROWS = PAIRED ? 8 : 16;
  const int warp = thread_index() / 32, g = thread_index() % 32 / 4;
  const int tiles = ceil_div(w.rows, ROWS), batches = ceil_div(tiles, TILES), width = w.columns / splits;
  const auto tile_at = [&](int unit, int begin, int end) {
    const int number = unit % batches * TILES + warp / SHARES;
    Tile<C, L, SHARES> tile{&w, PAIRED ? &second : &w, least(number * ROWS + g, w.rows - 1), 0, begin, warp % SHARES, 0};
    tile.high = PAIRED ? tile.low : least(number * ROWS + g + 8, w.rows - 1);
    if (number < tiles && unit < batches * splits) tile.steps = least(C::CHUNK, end - begin) / 32;
    return tile;
  };
  int staged = -1, unit = block_index();
  bool waited = false;
#pragma unroll 1
  while (unit < batches * splits) {
    const int split = unit / batches, end = (split + 1) * width;
    float acc[C::NT][4] = {};
#pragma unroll 1
    for (int begin = split * width; begin < end; begin += C::CHUNK) {
      const Tile<C, L, SHARES> tile = tile_at(unit, begin, end);
      Affine<C, L> affine;
      tile.send_first();
      affine.read(tile, 0);
      if (!waited) ready();
      waited = true;
      if (staged != begin) {
        sync_block();
        stage(begin, end - begin < C::CHUNK ? end - begin : C::CHUNK);
        sync_block();
        if constexpr (L::QUANTIZED) {
          sum_groups<C, L>(rows, end - begin < C::CHUNK ? end - begin : C::CHUNK);
          sync_block();
        }
        staged = begin;
      }
      accumulate<C, L, SHARES>(tile, affine, acc);
      wait_async<0>();
    }
    finish_tiles<C, SHARES, PAIRED>(w.rows, split, unit % batches * TILES, acc, finish);
    unit += block_count();
  }
  if (!waited) ready();
}
