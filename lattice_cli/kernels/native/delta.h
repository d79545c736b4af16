// Gated DeltaNet layers as primitives: mlx-lm's gated_delta_update, mx.conv1d of each channel by itself, and SiLU.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/variant.h>

#include "pointwise.h"

namespace lattice {
namespace {

const DeltaLoops& delta_best() { return delta_loops(chosen_isa); }

// A (batch, tokens, heads, size) array whose last dimension is dense: where it lies, or a copy of it.
struct Heads {
  const float* data;
  int64_t batch, token, head;

  template <int USE>
  static Heads of(const View& x) {
    if (x.strides[3] == 1 || x.shape[3] == 1) return {x.data, x.strides[0], x.strides[1], x.strides[2]};
    const int64_t head = x.shape[3], token = head * x.shape[2];
    return {x.copy<USE>(), token * x.shape[1], token, head};
  }
  const float* at(int64_t b, int64_t h) const { return data + b * batch + h * head; }
};

// The gates of all tokens: a, b, g and beta are (tokens, heads), dense.
void compute_gates(
    const float* a, const float* b, const float* a_log, const float* dt_bias, float most_beta, int64_t tokens,
    int64_t heads, float* g, float* beta) {
  constexpr int64_t kChunk = 32;
  const DeltaLoops& l = delta_best();
  team->run((tokens + kChunk - 1) / kChunk, [&](int64_t chunk) {
    for (int64_t t = kChunk * chunk; t < tokens && t < kChunk * (chunk + 1); ++t) {
      const int64_t at = t * heads;
      l.delta_gates(a + at, b + at, a_log, dt_bias, most_beta, heads, g + at, beta + at);
    }
  });
}

// Room that begins on a cache line, where mlx's own begins anywhere: a step of decoding reads and writes little else
// than states, and half as fast across lines.
void make_aligned_room(array& out) {
  mx::allocator::Data memory = mx::allocator::malloc(out.nbytes() + 64);
  const auto at = reinterpret_cast<uintptr_t>(memory.buffer().raw_ptr());
  array::Flags flags{};
  flags.contiguous = flags.row_contiguous = true;
  flags.col_contiguous = out.size() <= 1;
  out.set_data(std::move(memory), out.size(), out.strides(), flags, int64_t((64 - at % 64) % 64 / sizeof(float)));
}

// Whether an output may take an input's memory. Each output of a primitive keeps the inputs, and mlx counts that as use; so all
// but the one evaluated let go of them here, as mlx has them do right afterwards.
bool take_input(const std::vector<array>& inputs, size_t i, std::vector<array>& outputs) {
  for (array& out : outputs) {
    if (out.is_tracer()) return false;
    if (&out.inputs() != &inputs) out.inputs().clear();
  }
  return inputs[i].is_donatable() && inputs[i].flags().row_contiguous;
}

class GatedDelta : public CpuPrimitive {
 public:
  // Inputs: q, k (B, T, Hk, Dk), v (B, T, Hv, Dv), a, b (B, T, Hv), A_log, dt_bias (Hv), then the state
  // (B, Hv, Dv, Dk) and the mask (B, T) where there are such. Outputs: (B, T, Hv, Dv) and the new state, in the
  // memory of the old one where nobody else has that.
  GatedDelta(mx::Stream stream, float most_beta, bool stated, bool masked)
      : CpuPrimitive(stream), most_beta_(most_beta), stated_(stated), masked_(masked) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    make_room(outputs[0]);
    const array& old = inputs[stated_ ? 7 : 0];
    if (stated_ && take_input(inputs, 7, outputs)) {
      outputs[1].copy_shared_buffer(old);
    } else {
      make_aligned_room(outputs[1]);
    }
    encoder().dispatch([q = View(inputs[0]), k = View(inputs[1]), v = View(inputs[2]), a = View(inputs[3]),
                        b = View(inputs[4]), a_log = View(inputs[5]), dt_bias = View(inputs[6]), old = View(old),
                        mask = ViewOf<uint8_t>(inputs.back()), most_beta = most_beta_, stated = stated_,
                        masked = masked_, after = outputs[1].data<float>(), out = outputs[0].data<float>()] {
      const int64_t B = v.shape[0], T = v.shape[1], Hv = v.shape[2], Dv = v.shape[3];
      float *g = scratch<float, 10>(B * T * Hv), *beta = scratch<float, 11>(B * T * Hv);
      compute_gates(
          a.rows<12>(), b.rows<13>(), a_log.rows<14>(), dt_bias.rows<15>(), most_beta, B * T, Hv, g, beta);
      DeltaScan scan{};
      scan.tokens = T, scan.key_size = q.shape[3], scan.value_size = Dv;
      scan.before = stated ? old.rows<16>() : nullptr;
      scan.after = after;
      scan.mask = masked ? mask.rows<17>() : nullptr;
      scan.g = g, scan.beta = beta, scan.gate_stride = Hv;
      scan.out = out, scan.out_stride = Hv * Dv;
      scan_all(scan, Heads::of<18>(q), Heads::of<19>(k), Heads::of<20>(v), B, Hv, Hv / q.shape[2]);
    });
  }

  const char* name() const override { return "LatticeGatedDelta"; }

 private:
  static constexpr int64_t kSlice = 32;  // state rows of one unit: a head of 128 feeds four threads

  // `scan` says where the first head of the first sequence lies; `group` value heads share a key head.
  static void scan_all(const DeltaScan& scan, Heads q, Heads k, Heads v, int64_t B, int64_t Hv, int64_t group) {
    const int64_t slices = (scan.value_size + kSlice - 1) / kSlice, state = scan.key_size * scan.value_size;
    const DeltaLoops& l = delta_best();
    team->run(B * Hv * slices, [&](int64_t unit) {
      const int64_t head = unit / slices, b = head / Hv, h = head % Hv, gates = b * scan.tokens * Hv + h;
      DeltaScan own = scan;
      own.q = q.at(b, h / group), own.q_stride = q.token;
      own.k = k.at(b, h / group), own.k_stride = k.token;
      own.v = v.at(b, h), own.v_stride = v.token;
      own.g += gates, own.beta += gates;
      own.out += gates * scan.value_size;
      own.after += head * state;
      if (own.before) own.before += head * state;
      if (own.mask) own.mask += b * scan.tokens;
      const int64_t row = unit % slices * kSlice, end = row + kSlice;
      l.delta_scan(own, row, end < scan.value_size ? end : scan.value_size, scratch<float, 21>(own.work_floats()));
    });
  }

  float most_beta_;
  bool stated_, masked_;
};

using Maybe = std::optional<array>;

bool delta_fits(
    const array& q, const array& k, const array& v, const array& a, const array& b, const array& a_log,
    const array& dt_bias, const Maybe& state, const Maybe& mask) {
  for (const array* x : {&q, &k, &v, &a, &b, &a_log, &dt_bias}) {
    if (!is_float(*x) || x->size() == 0) return false;
  }
  if (q.ndim() != 4 || k.shape() != q.shape() || v.ndim() != 4) return false;
  const int B = v.shape(0), T = v.shape(1), Hv = v.shape(2), Hk = q.shape(2);
  const mx::Shape heads{Hv}, gates{B, T, Hv}, stored{B, Hv, v.shape(3), q.shape(3)}, tokens{B, T};
  return q.shape(0) == B && q.shape(1) == T && Hv % Hk == 0 && a.shape() == gates && b.shape() == gates &&
      a_log.shape() == heads && dt_bias.shape() == heads &&
      (!state || (is_float(*state) && state->shape() == stored)) &&
      (!mask || (mask->dtype() == mx::bool_ && mask->shape() == tokens));
}

// mlx-lm 0.32's function of this name. `original` is called for what is not known here: gates per key, bounded gates,
// other types, training.
nanobind::object gated_delta_update(
    const nanobind::callable& original, const array& q, const array& k, const array& v, const array& a, const array& b,
    const array& a_log, const array& dt_bias, const Maybe& state, const Maybe& mask, bool use_kernel,
    const std::optional<double>& lower_bound, bool allow_neg_eigval) {
  using namespace nanobind::literals;
  if (!use_kernel || lower_bound || !on_cpu({}) || !delta_fits(q, k, v, a, b, a_log, dt_bias, state, mask)) {
    return original(
        q, k, v, a, b, a_log, dt_bias, state, mask, "use_kernel"_a = use_kernel, "lower_bound"_a = lower_bound,
        "allow_neg_eigval"_a = allow_neg_eigval);
  }
  std::vector<array> inputs{q, k, v, a, b, a_log, dt_bias};
  if (state) inputs.push_back(*state);
  if (mask) inputs.push_back(*mask);
  const mx::Shape stored{v.shape(0), v.shape(2), v.shape(3), q.shape(3)};
  const float most_beta = allow_neg_eigval ? 2.0f : 1.0f;
  const auto outputs = array::make_arrays(
      {v.shape(), stored}, {mx::float32, mx::float32},
      std::make_shared<GatedDelta>(mx::to_stream({}), most_beta, state.has_value(), mask.has_value()), inputs);
  return nanobind::make_tuple(outputs[0], outputs[1]);
}

// The convolution.

class ChannelConv : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    make_room(outputs[0]);
    encoder().dispatch([x = View(inputs[0]), weight = View(inputs[1]), tokens = int64_t(outputs[0].shape(1)),
                        out = outputs[0].data<float>()] {
      const int64_t channels = x.shape[2];
      const bool dense = x.strides[2] == 1 || channels == 1;
      const float* source = dense ? x.data : x.copy<10>();
      const int64_t row = dense ? x.strides[1] : channels, batch = dense ? x.strides[0] : channels * x.shape[1];
      CausalConv conv{};
      conv.channels = channels, conv.taps = weight.shape[1], conv.weight = weight.rows<11>();
      conv.x_stride = row, conv.out_stride = channels;
      constexpr int64_t kTokens = 64, kBlock = CausalConv::kBlock;
      const int64_t blocks = (channels + kBlock - 1) / kBlock, parts = (tokens + kTokens - 1) / kTokens;
      const DeltaLoops& l = delta_best();
      team->run(x.shape[0] * parts * blocks, [&](int64_t unit) {
        const int64_t block = unit % blocks * kBlock, b = unit / blocks / parts, t = unit / blocks % parts * kTokens;
        CausalConv own = conv;
        own.tokens = tokens - t < kTokens ? tokens - t : kTokens;
        own.x = source + b * batch + t * row;
        own.out = out + (b * tokens + t) * channels;
        l.conv_silu(own, block, block + kBlock < channels ? block + kBlock : channels);
      });
    });
  }

  const char* name() const override { return "LatticeChannelConv"; }
};

// mx.conv1d. Ours: each channel by itself, 2 to 8 taps, no padding, steps of one, float32 input.
array conv1d(
    const array& x, const array& weight, int stride, int padding, int dilation, int groups, mx::StreamOrDevice s) {
  const bool plain = stride == 1 && padding == 0 && dilation == 1;
  const bool shaped = x.ndim() == 3 && weight.ndim() == 3 && x.shape(2) == groups && weight.shape(0) == groups &&
      weight.shape(2) == 1 && weight.shape(1) >= 2 && weight.shape(1) <= CausalConv::kMostTaps &&
      x.shape(1) >= weight.shape(1) && x.size() > 0;
  const bool known = is_float(x) && mx::issubdtype(weight.dtype(), mx::floating) && weight.dtype() != mx::float64;
  if (!plain || !shaped || !known || !on_cpu(s) || x.is_tracer() || weight.is_tracer()) {
    return mx::conv1d(x, weight, stride, padding, dilation, groups, s);
  }
  return array(
      {x.shape(0), x.shape(1) - weight.shape(1) + 1, groups}, mx::float32,
      std::make_shared<ChannelConv>(mx::to_stream(s)), {x, mx::astype(weight, mx::float32, s)});
}

// SiLU.

class Silu : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    if (take_input(inputs, 0, outputs)) {
      outputs[0].copy_shared_buffer(inputs[0]);
    } else {
      make_room(outputs[0]);
    }
    encoder().dispatch([x = View(inputs[0]), size = int64_t(outputs[0].size()), out = outputs[0].data<float>()] {
      const float* source = x.rows<10>();
      constexpr int64_t kChunk = 4096;
      const DeltaLoops& l = delta_best();
      team->run((size + kChunk - 1) / kChunk, [&](int64_t chunk) {
        const int64_t at = chunk * kChunk;
        l.silu(source + at, size - at < kChunk ? size - at : kChunk, out + at);
      });
    });
  }

  const char* name() const override { return "LatticeSilu"; }
};

// mlx.nn 0.32's function of this name, which is `original`.
nanobind::object silu(const nanobind::callable& original, const array& x) {
  if (!is_float(x) || !on_cpu({}) || x.is_tracer()) return original(x);
  return nanobind::cast(array(x.shape(), mx::float32, std::make_shared<Silu>(mx::to_stream({})), {x}));
}

// mlx-lm 0.32's function of this name, which is `original`: silu(gate) * x in float32, in the type of h.
nanobind::object precise_swiglu(
    const nanobind::callable& original, const array& h, const array& gate, const array& x) {
  const bool floats = is_float(h) && is_float(gate) && is_float(x) && gate.shape() == x.shape();
  if (!floats || !on_cpu({}) || gate.is_tracer() || x.is_tracer()) return original(h, gate, x);
  return nanobind::cast(swiglu(gate, x));
}

void bind_delta(nanobind::module_& m) {
  using namespace nanobind::literals;
  namespace nb = nanobind;
  m.def("gated_delta_update", &gated_delta_update, "original"_a, "q"_a, "k"_a, "v"_a, "a"_a, "b"_a, "A_log"_a,
        "dt_bias"_a, "state"_a = nb::none(), "mask"_a = nb::none(), nb::kw_only(), "use_kernel"_a = true,
        "lower_bound"_a = nb::none(), "allow_neg_eigval"_a = false);
  m.def("silu", &silu, "original"_a, "x"_a);
  m.def("precise_swiglu", &precise_swiglu, "original"_a, "h"_a, "gate"_a, "x"_a);
  m.def("conv1d", &conv1d, nb::arg(), nb::arg(), "stride"_a = 1, "padding"_a = 0, "dilation"_a = 1, "groups"_a = 1,
        nb::kw_only(), "stream"_a = nb::none());
}

}  // namespace
}  // namespace lattice
