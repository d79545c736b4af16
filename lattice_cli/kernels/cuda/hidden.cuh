// The hidden states: from embeddings on, normalised in front of each product.
#pragma once

#include "frame.cuh"

template <class C>
struct Hidden : Frame<C> {
  using F = Frame<C>;
  using F::F;
  using typename F::S;
  using F::H, F::RP, F::THREADS, F::H0, F::PD, F::a, F::rows, F::crowd_bits, F::arrive, F::wait, F::normed;

  // The hidden state: in `from`, plus the shares of a product.
  template <int SPLITS>
  struct Residual {
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

  DEV static float4 times(float4 v, float4 w) { return {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w}; }
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
        kept[i] = times(kept[i], weight[i]);
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
        if (k < H) put4<L>(out, k, times(kept[i], *reinterpret_cast<const float4*>(weight + k)), scale);
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

  // Columns that are already 16-bit numbers, in the order that `place` says.
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
};
