// mx.fast.scaled_dot_product_attention as a primitive.
#pragma once

#include "primitive.h"

namespace lattice {
namespace {

void attend(Attention t) {
  const Loops& l = best();
  t.choose_unit_rows();
  if (!t.few()) {
    team->run(t.units(), [&](int64_t unit) {
      l.attention_rows(t, unit, scratch<float, 5>(t.work_floats() + t.queries() * (t.D + 2)));
    });
    return;
  }
  float* partial = scratch<float, 6>(t.partial_floats());
  team->run(t.units(), [&](int64_t unit) {
    l.attention_split(t, unit, partial, scratch<float, 5>(t.work_floats()));
  });
  l.attention_join(t, partial);
}

class Sdpa : public CpuPrimitive {
 public:
  Sdpa(mx::Stream stream, float scale, bool causal) : CpuPrimitive(stream), scale_(scale), causal_(causal) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    const array &q = inputs[0], &k = inputs[1], &v = inputs[2];
    Attention t{};
    t.B = q.shape(0), t.H = q.shape(1), t.L = q.shape(2), t.D = q.shape(3), t.KV = k.shape(1), t.S = k.shape(2);
    // In memory (B, L, H, D): a model turns it around next, and this makes that free.
    array& out = outputs[0];
    const mx::Strides strides{t.L * t.H * t.D, t.D, t.H * t.D, 1};
    array::Flags flags{};
    flags.contiguous = true;
    flags.row_contiguous = t.L == 1 || t.H == 1;
    flags.col_contiguous = out.size() <= 1;
    out.set_data(mx::allocator::malloc(out.nbytes()), out.size(), strides, flags);
    if (out.size() == 0) return;
    t.q = q.data<float>(), t.out = out.data<float>();
    t.half = k.dtype() == mx::float16;
    t.k = k.data<char>(), t.v = v.data<char>();
    t.scale = scale_, t.causal = causal_;
    for (int i = 0; i < 3; ++i) {
      t.q_strides[i] = q.strides()[size_t(i)], t.k_strides[i] = k.strides()[size_t(i)];
      t.v_strides[i] = v.strides()[size_t(i)], t.out_strides[i] = strides[size_t(i)];
    }
    if (inputs.size() > 3) {
      const array& mask = inputs[3];
      t.mask = mask.data<char>();
      t.additive = mask.dtype() == mx::float32;
      for (size_t i = 0; i < mask.ndim(); ++i) {
        const size_t from = mask.ndim() - 1 - i;
        t.mask_strides[3 - i] = mask.shape(int(from)) == 1 ? 0 : mask.strides()[from];
      }
    }
    const bool q_dense = last_dense(q), k_dense = last_dense(k), v_dense = last_dense(v);
    encoder().dispatch([t, q_dense, k_dense, v_dense, q = View(q), k = View(k), v = View(v),
                        k_half = ViewOf<uint16_t>(k), v_half = ViewOf<uint16_t>(v)] {
      Attention own = t;
      const auto row_order = [&](int64_t(&strides)[3], int64_t heads, int64_t rows) {
        strides[0] = heads * rows * t.D, strides[1] = rows * t.D, strides[2] = t.D;
      };
      if (!q_dense) own.q = q.copy<0>(), row_order(own.q_strides, t.H, t.L);
      if (!k_dense) {
        own.k = t.half ? (const void*)k_half.copy<7>() : k.copy<7>();
        row_order(own.k_strides, t.KV, t.S);
      }
      if (!v_dense) {
        own.v = t.half ? (const void*)v_half.copy<8>() : v.copy<8>();
        row_order(own.v_strides, t.KV, t.S);
      }
      attend(own);
    });
  }

  const char* name() const override { return "LatticeAttention"; }

 private:
  static bool last_dense(const array& a) { return a.strides().back() == 1 || a.shape(-1) == 1; }

  float scale_;
  bool causal_;
};

bool mask_fits(const array& mask, const array& q, const array& k) {
  if (mask.ndim() > 4 || (mask.dtype() != mx::bool_ && mask.dtype() != mx::float32)) return false;
  const int want[4] = {q.shape(0), q.shape(1), q.shape(2), k.shape(2)};
  for (size_t i = 0; i < mask.ndim(); ++i) {
    const int length = mask.shape(int(mask.ndim() - 1 - i));
    if (length != 1 && length != want[3 - i]) return false;
  }
  return true;
}

array sdpa(
    const array& q, const array& k, const array& v, float scale,
    const std::variant<std::monostate, std::string, array>& mask, const std::optional<array>& sinks,
    bool force_fused, mx::StreamOrDevice s) {
  const auto* mode = std::get_if<std::string>(&mask);
  const auto* given = std::get_if<array>(&mask);
  const auto stored = [](const array& a) { return a.dtype() == mx::float32 || a.dtype() == mx::float16; };
  const bool shaped = q.ndim() == 4 && k.ndim() == 4 && k.shape() == v.shape() && q.shape(0) == k.shape(0) &&
      q.shape(3) == k.shape(3) && k.shape(1) > 0 && q.shape(1) % k.shape(1) == 0 && k.shape(2) > 0;
  const bool known = is_float(q) && stored(k) && k.dtype() == v.dtype() && !sinks && (!mode || *mode == "causal" || mode->empty()) &&
      shaped && (!given || mask_fits(*given, q, k)) && !(mode && *mode == "causal" && k.shape(2) < q.shape(2));
  if (!known || !on_cpu(s)) {
    return mx::fast::scaled_dot_product_attention(
        q, k, v, scale, mode ? *mode : given ? "array" : "", given ? std::optional<array>(*given) : std::nullopt, sinks,
        force_fused, s);
  }
  std::vector<array> inputs{q, k, v};
  if (given) inputs.push_back(*given);
  const bool causal = mode && *mode == "causal";
  return array(
      q.shape(), mx::float32, std::make_shared<Sdpa>(mx::to_stream(s), scale, causal), std::move(inputs));
}

}  // namespace
}  // namespace lattice
