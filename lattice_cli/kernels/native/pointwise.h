// RMSNorm, SwiGLU and RoPE as primitives.
#pragma once

#include "angles.h"
#include "primitive.h"

namespace lattice {
namespace {

class RmsNorm : public CpuPrimitive {
 public:
  RmsNorm(mx::Stream stream, float eps) : CpuPrimitive(stream), eps_(eps) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    make_room(outputs[0]);
    const int64_t size = outputs[0].shape(-1), rows = size ? int64_t(outputs[0].size()) / size : 0;
    const bool weighted = inputs.size() > 1;
    encoder().dispatch([x = View(inputs[0]), w = View(inputs.back()), weighted, eps = eps_, size, rows,
                        out = outputs[0].data<float>()] {
      const float* source = x.rows<0>();
      const float* weight = weighted ? w.rows<4>() : nullptr;
      const Loops& l = best();
      team->run((rows + 15) / 16, [&](int64_t chunk) {
        for (int64_t r = 16 * chunk; r < rows && r < 16 * chunk + 16; ++r) {
          l.rms_norm(source + r * size, weight, eps, size, out + r * size);
        }
      });
    });
  }

  std::vector<mx::Shape> output_shapes(const std::vector<array>& inputs) override { return {inputs[0].shape()}; }
  const char* name() const override { return "LatticeRmsNorm"; }

 private:
  float eps_;
};

array rms_norm(const array& x, const std::optional<array>& weight, float eps, mx::StreamOrDevice s) {
  const bool fits = !weight || (is_float(*weight) && weight->ndim() == 1 && weight->shape(0) == x.shape(-1));
  if (x.ndim() == 0 || !is_float(x) || !fits || !on_cpu(s)) return mx::fast::rms_norm(x, weight, eps, s);
  std::vector<array> inputs{x};
  if (weight) inputs.push_back(*weight);
  return array(x.shape(), mx::float32, std::make_shared<RmsNorm>(mx::to_stream(s), eps), std::move(inputs));
}

// SwiGLU.

class SwiGlu : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    make_room(outputs[0]);
    const int64_t size = int64_t(outputs[0].size());
    encoder().dispatch([gate = View(inputs[0]), x = View(inputs[1]), size, out = outputs[0].data<float>()] {
      const float *g = gate.rows<0>(), *v = x.rows<4>();
      constexpr int64_t kChunk = 4096;
      const Loops& l = best();
      team->run((size + kChunk - 1) / kChunk, [&](int64_t chunk) {
        const int64_t at = chunk * kChunk;
        l.swiglu(g + at, v + at, size - at < kChunk ? size - at : kChunk, out + at);
      });
    });
  }

  std::vector<mx::Shape> output_shapes(const std::vector<array>& inputs) override { return {inputs[0].shape()}; }
  const char* name() const override { return "LatticeSwiGlu"; }
};

array swiglu(const array& gate, const array& x) {
  if (!is_float(gate) || !is_float(x) || gate.shape() != x.shape() || !on_cpu({})) {
    return mx::multiply(mx::multiply(gate, mx::sigmoid(gate)), x);
  }
  return array(gate.shape(), mx::float32, std::make_shared<SwiGlu>(mx::to_stream({})), {gate, x});
}

// RoPE.

class Rope : public CpuPrimitive {
 public:
  Rope(mx::Stream stream, int dims, bool traditional, float base, float scale, int offset, bool periods, bool offsets)
      : CpuPrimitive(stream), dims_(dims), traditional_(traditional), base_(base), scale_(scale), offset_(offset),
        periods_(periods), offsets_(offsets) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    make_room(outputs[0]);
    const array& x = inputs[0];
    const int64_t B = x.shape(0), H = x.ndim() == 4 ? x.shape(1) : 1, L = x.shape(-2), D = x.shape(-1);
    if (x.size() == 0) return;
    const auto& s = x.strides();
    const int64_t sb = s[0], sh = x.ndim() == 4 ? s[1] : 0, sl = s[x.ndim() - 2];
    const bool dense = s.back() == 1 || D == 1;
    const int32_t* offsets = offsets_ ? inputs[1].data<int32_t>() : nullptr;
    const int64_t offset_step = offsets_ && inputs[1].size() > 1 ? inputs[1].strides()[0] : 0;
    const float* periods = periods_ ? inputs.back().data<float>() : nullptr;
    encoder().dispatch([=, view = View(x), half = int64_t(dims_) / 2, traditional = traditional_, base = base_,
                        scale = scale_, first = offset_, out = outputs[0].data<float>()] {
      static thread_local std::map<std::tuple<int64_t, float, float>, Angles> known;
      std::optional<Angles> own;
      if (periods) own.emplace(periods, half, scale);
      Angles& angles = own ? *own : known.try_emplace({half, base, scale}, half, double(base), scale).first->second;
      const float* source = dense ? view.data : view.copy<0>();
      const int64_t b_step = dense ? sb : H * L * D, h_step = dense ? sh : L * D, l_step = dense ? sl : D;
      const Loops& l = best();
      for (int64_t b = 0; b < B; ++b) {
        for (int64_t row = 0; row < L; ++row) {
          const float* turn = angles.at((offsets ? offsets[b * offset_step] : first) + row);
          for (int64_t h = 0; h < H; ++h) {
            l.rope(
                source + b * b_step + h * h_step + row * l_step, turn, turn + half, half, D, traditional,
                out + ((b * H + h) * L + row) * D);
          }
        }
      }
    });
  }

  std::vector<mx::Shape> output_shapes(const std::vector<array>& inputs) override { return {inputs[0].shape()}; }
  const char* name() const override { return "LatticeRope"; }

 private:
  int dims_;
  bool traditional_;
  float base_, scale_;
  int offset_;
  bool periods_, offsets_;
};

array rope(
    const array& x, int dims, bool traditional, std::optional<float> base, float scale,
    const std::variant<int, array>& offset, const std::optional<array>& freqs, mx::StreamOrDevice s) {
  const array* offsets = std::get_if<array>(&offset);
  const bool shaped = (x.ndim() == 3 || x.ndim() == 4) && dims > 0 && dims % 2 == 0 && dims <= x.shape(-1);
  const bool placed = !offsets || (offsets->size() == 1 && offsets->ndim() <= 1) ||
      (offsets->ndim() == 1 && offsets->shape(0) == x.shape(0));
  const bool turned = freqs ? is_float(*freqs) && freqs->ndim() == 1 && freqs->shape(0) == dims / 2 : base.has_value();
  if (!is_float(x) || !shaped || !placed || !turned || !on_cpu(s)) {
    return offsets ? mx::fast::rope(x, dims, traditional, base, scale, *offsets, freqs, s)
                   : mx::fast::rope(x, dims, traditional, base, scale, std::get<int>(offset), freqs, s);
  }
  std::vector<array> inputs{x};
  if (offsets) inputs.push_back(mx::astype(*offsets, mx::int32, s));
  if (freqs) inputs.push_back(mx::contiguous(*freqs, false, s));
  const int first = offsets ? 0 : std::get<int>(offset);
  return array(
      x.shape(), mx::float32,
      std::make_shared<Rope>(
          mx::to_stream(s), dims, traditional, base.value_or(0), scale, first, freqs.has_value(), offsets != nullptr),
      std::move(inputs));
}

}  // namespace
}  // namespace lattice
