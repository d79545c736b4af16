// What the loops of Gated DeltaNet layers and of row reductions work on, and the table to call them by. Included by
// loops.h, which compiles them with all others: `delta_loops(isa)`.
#pragma once

#include <cstdint>

namespace lattice {

// The gated delta rule for one value head of one sequence: a state of value_size rows x key_size, dense, that each
// token decays by g, corrects towards k -> v by the share beta, and reads with q. Strides: floats from a token to the
// next; the numbers of one token are dense.
struct DeltaScan {
  static constexpr int64_t kRows = 8, kTile = 16;  // rows done at once, tokens done at once: they fit the first cache
  int64_t tokens, key_size, value_size;
  const float *q, *k, *v, *g, *beta;
  int64_t q_stride, k_stride, v_stride, gate_stride;
  const uint8_t* mask = nullptr;  // a byte per token; zero: the token leaves the state as it was
  const float* before = nullptr;  // null: zeros; may be `after` itself
  float* after;
  float* out;
  int64_t out_stride;

  int64_t padded() const { return (key_size + 15) / 16 * 16; }
  int64_t work_floats() const { return 2 * (kRows + kTile) * padded() + 16; }
};

// A causal convolution of each channel by itself: out[t][c] = sum over j of x[t + j][c] * weight[c][j]. So x has
// taps - 1 rows of history first. Strides count floats between rows; channels are dense.
struct CausalConv {
  static constexpr int64_t kMostTaps = 8, kBlock = 256;  // channels whose weights are turned at once
  int64_t tokens, channels, taps;
  const float* x;
  int64_t x_stride;
  const float* weight;
  bool silu;
  float* out;
  int64_t out_stride;
};

struct DeltaLoops {
  void (*delta_scan)(const DeltaScan& t, int64_t first, int64_t last, float* work);
  void (*delta_gates)(
      const float* a, const float* b, const float* a_log, const float* dt_bias, float most_beta, int64_t heads,
      float* g, float* beta);
  void (*silu)(const float* x, int64_t size, float* out);
  void (*conv_silu)(const CausalConv& t, int64_t first, int64_t last);
  void (*scaled_norm)(const float* x, float eps, float scale, int64_t size, float* out);
  void (*gated_norm)(const float* x, const float* weight, const float* gate, float eps, int64_t size, float* out);
  void (*soft_sum)(const float* x, int64_t size, float* top, float* total);
  float (*soft_join)(const float* tops, const float* totals, int64_t count);
  int64_t (*largest)(const float* x, int64_t size);
};

#define LATTICE_DELTA_TABLE \
  inline const DeltaLoops delta_table = { \
      delta_scan, delta_gates, silu, conv_silu, scaled_norm, gated_norm, soft_sum, soft_join, largest};

}  // namespace lattice
