// A Gated DeltaNet layer as a block (blocks.h).
//
//   x += out(norm(scan(conv(qkv(norm(x))), gates(a(norm(x)), b(norm(x)))), z(norm(x))))
//
// Per sequence and layer it keeps the inputs that the convolution still needs, and the state of the scan:
//
//   state:   history (taps - 1) x channels, filled up to a cache line | value heads x value_size x key_size
//
// The channels are queries (key heads x key_size), keys (the same) and values (value heads x value_size).
#pragma once

#include "blocks.h"

namespace lattice {
namespace {

struct DeltaShape {
  int64_t key_heads = 0, value_heads = 0, key_size = 0, value_size = 0, taps = 0;

  int64_t keys() const { return key_heads * key_size; }
  int64_t values() const { return value_heads * value_size; }
  int64_t channels() const { return 2 * keys() + values(); }
  int64_t history_floats() const { return ((taps - 1) * channels() + 15) / 16 * 16; }
  int64_t state_floats() const { return (history_floats() + values() * key_size + 15) / 16 * 16; }
};

class DeltaBlock : public Block {
 public:
  Norm norm, out_norm;
  Matrix qkv, z, a, b, out;
  std::vector<float> conv;  // channels x taps
  std::vector<float> a_log, dt_bias;
  DeltaShape shape;
  int64_t layer = 0;  // among the recurrent ones

  void run(const Step& step, float* x) override {
    const Loops& l = best();
    const DeltaLoops& d = delta_loops(chosen_isa);
    const int64_t tokens = step.tokens, hidden = qkv.p.columns, heads = shape.value_heads;
    float* normed = scratch<float, 20>(tokens * hidden);
    float* wide = scratch<float, 21>(tokens * width());
    float* mixed = scratch<float, 22>(tokens * shape.values());
    norm.apply(l, x, tokens, hidden, hidden, normed);
    const Factor four[] = {{&qkv, 0}, {&z, z_column()}, {&a, a_column()}, {&b, b_column()}};
    multiply(four, 4, normed, tokens, wide, width());
    float* turned = convolve(d, step, wide);
    normalize(d, step, turned);
    float* gates = scratch<float, 27>(2 * tokens * heads);  // g, then beta
    each(tokens, 32, [&](int64_t t) {
      const float* row = wide + t * width();
      d.delta_gates(
          row + a_column(), row + b_column(), a_log.data(), dt_bias.data(), 1, heads, gates + t * heads,
          gates + (tokens + t) * heads);
    });
    scan(d, step, turned, gates, mixed);
    each(tokens, 8, [&](int64_t t) {
      for (int64_t h = 0; h < heads; ++h) {
        float* head = mixed + (t * heads + h) * shape.value_size;
        const float* gate = wide + t * width() + z_column() + h * shape.value_size;
        d.gated_norm(head, out_norm.weight.data(), gate, out_norm.eps, shape.value_size, head);
      }
    });
    float* result = scratch<float, 20>(tokens * hidden);  // the normed rows are used up
    multiply(out, mixed, tokens, result);
    each(tokens, 16, [&](int64_t t) { l.add(result + t * hidden, hidden, x + t * hidden); });
  }

 private:
  // A row of what is multiplied first: channels, z, a, b.
  int64_t z_column() const { return shape.channels(); }
  int64_t a_column() const { return z_column() + shape.values(); }
  int64_t b_column() const { return a_column() + shape.value_heads; }
  int64_t width() const { return b_column() + shape.value_heads; }

  float* history(const Part& part) const {
    return reinterpret_cast<float*>(part.extent->state->data()) + layer * shape.state_floats();
  }

  // The convolved channels, (tokens, channels); the history of each sequence moves on.
  float* convolve(const DeltaLoops& d, const Step& step, const float* wide) const {
    const int64_t channels = shape.channels(), kept = shape.taps - 1, rows = step.tokens + kept * int64_t(step.parts.size());
    float* inputs = scratch<float, 28>(rows * channels);  // per sequence: history, then its tokens
    float* turned = scratch<float, 29>(step.tokens * channels);
    constexpr int64_t kBlock = CausalConv::kBlock;
    const int64_t blocks = (channels + kBlock - 1) / kBlock, units = int64_t(step.parts.size()) * blocks;
    each(units, step.tokens <= 2 ? units : 1, [&](int64_t unit) {
      const int64_t index = unit / blocks, first = unit % blocks * kBlock, last = std::min(first + kBlock, channels);
      const Part& part = step.parts[size_t(index)];
      const int64_t count = part.extent->count;
      float *own = inputs + (part.first + kept * index) * channels, *past = history(part);
      const auto copy = [&](const float* from, int64_t stride, int64_t n, float* to) {
        for (int64_t i = 0; i < n; ++i) {
          std::memcpy(to + i * channels + first, from + i * stride + first, size_t(last - first) * sizeof(float));
        }
      };
      copy(past, channels, kept, own);
      copy(wide + part.first * width(), width(), count, own + kept * channels);
      copy(own + count * channels, channels, kept, past);
      CausalConv t{};
      t.tokens = count, t.channels = channels, t.taps = shape.taps, t.weight = conv.data(), t.silu = true;
      t.x = own, t.x_stride = channels, t.out = turned + part.first * channels, t.out_stride = channels;
      d.conv_silu(t, first, last);
    });
    return turned;
  }

  // Queries and keys of length one; queries carry the scale of the scores too (mlx-lm's normalize_qk).
  void normalize(const DeltaLoops& d, const Step& step, float* turned) const {
    const float scale = 1 / std::sqrt(float(shape.key_size)), eps = 1e-6f * scale * scale;
    each(step.tokens, 8, [&](int64_t t) {
      float* row = turned + t * shape.channels();
      for (int64_t h = 0; h < 2 * shape.key_heads; ++h) {
        float* head = row + h * shape.key_size;
        d.scaled_norm(head, eps, h < shape.key_heads ? scale * scale : scale, shape.key_size, head);
      }
    });
  }

  void scan(const DeltaLoops& d, const Step& step, const float* turned, const float* gates, float* mixed) const {
    constexpr int64_t kSlice = 32;  // state rows of one unit
    const int64_t heads = shape.value_heads, slices = (shape.value_size + kSlice - 1) / kSlice;
    const int64_t group = heads / shape.key_heads, channels = shape.channels();
    each(int64_t(step.parts.size()) * heads * slices, 1, [&](int64_t unit) {
      const Part& part = step.parts[size_t(unit / slices / heads)];
      const int64_t h = unit / slices % heads, first = unit % slices * kSlice;
      DeltaScan t{};
      t.tokens = part.extent->count, t.key_size = shape.key_size, t.value_size = shape.value_size;
      t.q = turned + part.first * channels + h / group * shape.key_size;
      t.k = t.q + shape.keys();
      t.v = turned + part.first * channels + 2 * shape.keys() + h * shape.value_size;
      t.q_stride = t.k_stride = t.v_stride = channels;
      t.g = gates + part.first * heads + h, t.beta = t.g + step.tokens * heads, t.gate_stride = heads;
      t.after = history(part) + shape.history_floats() + h * shape.value_size * shape.key_size;
      t.before = t.after;
      t.out = mixed + (part.first * heads + h) * shape.value_size, t.out_stride = shape.values();
      d.delta_scan(t, first, std::min(first + kSlice, shape.value_size), scratch<float, 30>(t.work_floats()));
    });
  }
};

}  // namespace
}  // namespace lattice
