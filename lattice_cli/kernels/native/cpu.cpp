// The Python module `lattice_cpu`: the loops of this folder as primitives of an mlx graph.
//
// Each primitive takes float32, runs on a CPU stream and has the signature of the mlx function it stands in for
// (mlx 0.32); what it does not know goes to that function, so a caller need not ask. Shapes: see loops.h.
//
// The work of a primitive is a lambda that mlx's stream thread runs later. It captures raw pointers and numbers
// only: mlx keeps the arrays alive, and no Python object may be touched there (the main thread waits for this
// one while it holds the interpreter).

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <map>
#include <stdexcept>
#include <tuple>

#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/fast.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

#include "loops.h"
#include "team.h"

namespace nb = nanobind;
namespace mx = mlx::core;
using mx::array;

namespace lattice {
namespace {

Isa chosen_isa = best_isa();
Team* team = nullptr;  // made by start(), never deleted

const Loops& best() { return loops(chosen_isa); }

// `wanted` elements of scratch memory of this thread, one piece per use. Contents are arbitrary.
template <class T, int USE>
T* scratch(int64_t wanted) {
  static thread_local std::vector<T> memory;
  if (int64_t(memory.size()) < wanted) memory.resize(size_t(wanted));
  return memory.data();
}

// An array as an operand: where it lies, or how to make it dense.
template <class T>
struct ViewOf {
  const T* data;
  mx::Shape shape;
  mx::Strides strides;
  bool dense;

  explicit ViewOf(const array& a)
      : data(reinterpret_cast<const T*>(a.data<char>())), shape(a.shape()), strides(a.strides()),
        dense(a.flags().row_contiguous) {}

  // All elements in row order: in place, or in this thread's scratch memory number USE.
  template <int USE>
  const T* rows() const { return dense ? data : copy<USE>(); }

  template <int USE>
  const T* copy() const {
    int64_t size = 1;
    for (auto length : shape) size *= length;
    T* target = scratch<T, USE>(size);
    std::vector<int64_t> index(shape.size(), 0);
    for (int64_t i = 0; i < size; ++i) {
      int64_t at = 0;
      for (size_t d = 0; d < shape.size(); ++d) at += index[d] * strides[d];
      target[i] = data[at];
      for (size_t d = shape.size(); d-- > 0;) {
        if (++index[d] < shape[d]) break;
        index[d] = 0;
      }
    }
    return target;
  }
};
using View = ViewOf<float>;

bool is_float(const array& a) { return a.dtype() == mx::float32; }
bool on_cpu(mx::StreamOrDevice s) { return mx::to_stream(s).device == mx::Device::cpu; }
void make_room(array& out) { out.set_data(mx::allocator::malloc(out.nbytes())); }

class CpuPrimitive : public mx::Primitive {
 public:
  using mx::Primitive::Primitive;
  void eval_gpu(const std::vector<array>&, std::vector<array>&) override {
    throw std::runtime_error("lattice's primitives run on a CPU");
  }

 protected:
  mx::cpu::CommandEncoder& encoder() { return mx::cpu::get_command_encoder(stream()); }
};

// Quantized weights.

// A packed matrix. `store` may begin anywhere: the blocks start `shift` bytes in, on a cache line.
struct PackedWeight {
  Packed layout;
  array store;
  int64_t shift;

  Packed at(const uint8_t* base) const {
    Packed p = layout;
    p.data = base + shift;
    return p;
  }
};

PackedWeight pack(array codes, array scales, array biases, int group, int bits) {
  if (codes.ndim() != 2 || scales.ndim() != 2 || biases.shape() != scales.shape() || codes.dtype() != mx::uint32 ||
      biases.dtype() != scales.dtype()) {
    throw std::invalid_argument("pack: codes (rows, words) in uint32, scales and biases (rows, groups) expected");
  }
  const bool known = bits == 2 || bits == 3 || bits == 4 || bits == 5 || bits == 6 || bits == 8;
  if (!known || (group != 32 && group != 64 && group != 128) ||
      int64_t(codes.shape(1)) * 32 != int64_t(scales.shape(1)) * group * bits) {
    throw std::invalid_argument("pack: no such layout");
  }
  Packed p;
  p.rows = codes.shape(0), p.columns = int64_t(scales.shape(1)) * group, p.group = group, p.bits = stored_bits(bits);
  if (scales.dtype() == mx::float16) {
    p.kind = ScaleKind::float16;
  } else if (scales.dtype() == mx::bfloat16) {
    p.kind = ScaleKind::bfloat16;
  } else if (scales.dtype() == mx::float32) {
    p.kind = ScaleKind::float32;
  } else {
    throw std::invalid_argument("pack: scales are float16, bfloat16 or float32");
  }
  codes = mx::contiguous(codes, false, mx::Device::cpu);
  scales = mx::contiguous(scales, false, mx::Device::cpu);
  biases = mx::contiguous(biases, false, mx::Device::cpu);
  mx::eval(codes, scales, biases);
  const int64_t bytes = p.bytes() + 64;
  if (bytes > INT32_MAX) throw std::invalid_argument("pack: the matrix is too large");
  mx::allocator::Data memory = mx::allocator::malloc(size_t(bytes));
  auto* target = static_cast<uint8_t*>(memory.buffer().raw_ptr());
  const int64_t shift = (64 - int64_t(reinterpret_cast<uintptr_t>(target) % 64)) % 64;
  const auto bytes_of = [](const array& a) { return reinterpret_cast<const uint8_t*>(a.data<char>()); };
  team->run((p.blocks() + 15) / 16, [&](int64_t chunk) {
    const int64_t last = 16 * chunk + 16 < p.blocks() ? 16 * chunk + 16 : p.blocks();
    pack_blocks(p, target + shift, bytes_of(codes), bits, bytes_of(scales), bytes_of(biases), 16 * chunk, last);
  });
  return {p, array(std::move(memory), {int(bytes)}, mx::uint8), shift};
}

// Rows of x -> what a product reads, in this thread's scratch memory.
Operand prepare(const Loops& l, const Packed& p, const float* x, int64_t rows, bool exact) {
  Operand operand;
  operand.rows = rows;
  float* sums = scratch<float, 1>(rows * p.groups());
  operand.sums = sums;
  const int64_t chunk_rows = 8, columns = p.columns;
  if (exact) {
    operand.values = x;
    team->run((rows + chunk_rows - 1) / chunk_rows, [&](int64_t chunk) {
      for (int64_t r = chunk * chunk_rows; r < rows && r < (chunk + 1) * chunk_rows; ++r) {
        l.sum_groups(x + r * columns, columns, p.group, sums + r * p.groups());
      }
    });
    return operand;
  }
  int8_t* codes = scratch<int8_t, 2>(rows * columns);
  float* scales = scratch<float, 3>(rows * columns / 32);
  operand.codes = codes, operand.scales = scales;
  team->run((rows + chunk_rows - 1) / chunk_rows, [&](int64_t chunk) {
    for (int64_t r = chunk * chunk_rows; r < rows && r < (chunk + 1) * chunk_rows; ++r) {
      l.quantize_row(
          x + r * columns, columns, p.group, codes + r * columns, scales + r * columns / 32, sums + r * p.groups());
    }
  });
  return operand;
}

// Blocks of one chunk: four chunks a thread, in steps of the widest tile; everything at once where that is little.
int64_t blocks_per_chunk(const Packed& p, int64_t rows) {
  if (rows * p.rows * p.columns < 100'000) return p.blocks();
  const int64_t share = p.blocks() / (4 * team->threads());
  return share < 4 ? 4 : share / 4 * 4;
}

void multiply(const Packed& p, const float* x, int64_t rows, bool exact, float* out) {
  const Loops& l = best();
  const FlushDenormals flush;
  const Operand operand = prepare(l, p, x, rows, exact);
  const int64_t step = blocks_per_chunk(p, rows), blocks = p.blocks();
  team->run((blocks + step - 1) / step, [&](int64_t chunk) {
    const int64_t first = chunk * step, last = first + step < blocks ? first + step : blocks;
    l.product(p, operand, first, last, out, p.rows);
  });
}

class Product : public CpuPrimitive {
 public:
  Product(mx::Stream stream, Packed layout, int64_t shift, bool exact)
      : CpuPrimitive(stream), layout_(layout), shift_(shift), exact_(exact) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    make_room(outputs[0]);
    if (outputs[0].size() == 0) return;
    Packed p = layout_;
    p.data = inputs[1].data<uint8_t>() + shift_;
    const int64_t rows = int64_t(inputs[0].size()) / p.columns;
    encoder().dispatch([p, x = View(inputs[0]), rows, exact = exact_, out = outputs[0].data<float>()] {
      multiply(p, x.rows<0>(), rows, exact, out);
    });
  }

  std::vector<mx::Shape> output_shapes(const std::vector<array>& inputs) override {
    mx::Shape shape = inputs[0].shape();
    shape.back() = int(layout_.rows);
    return {shape};
  }

  const char* name() const override { return "LatticeProduct"; }

 private:
  Packed layout_;
  int64_t shift_;
  bool exact_;
};

array product(const array& x, const PackedWeight& w, bool exact, mx::StreamOrDevice s) {
  if (x.ndim() < 1 || x.shape(-1) != w.layout.columns) {
    throw std::invalid_argument("product: x has " + std::to_string(x.ndim() ? x.shape(-1) : 0) +
        " columns, the weights have " + std::to_string(w.layout.columns));
  }
  mx::Shape shape = x.shape();
  shape.back() = int(w.layout.rows);
  return array(
      shape, mx::float32, std::make_shared<Product>(mx::to_stream(s), w.layout, w.shift, exact),
      {mx::astype(x, mx::float32, s), w.store});
}

class Rows : public CpuPrimitive {
 public:
  Rows(mx::Stream stream, Packed layout, int64_t shift) : CpuPrimitive(stream), layout_(layout), shift_(shift) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    make_room(outputs[0]);
    Packed p = layout_;
    p.data = inputs[1].data<uint8_t>() + shift_;
    const int64_t count = int64_t(inputs[0].size());
    encoder().dispatch([p, ids = inputs[0].data<int32_t>(), count, out = outputs[0].data<float>()] {
      team->run((count + 15) / 16, [&](int64_t chunk) {
        for (int64_t i = 16 * chunk; i < count && i < 16 * chunk + 16; ++i) {
          const int64_t row = ids[i] < 0 ? ids[i] + p.rows : ids[i];
          if (row >= 0 && row < p.rows) {
            unpack_row(p, row, out + i * p.columns);
          } else {
            std::memset(out + i * p.columns, 0, size_t(p.columns) * sizeof(float));
          }
        }
      });
    });
  }

  const char* name() const override { return "LatticeRows"; }

 private:
  Packed layout_;
  int64_t shift_;
};

// The weights of rows `ids` in float32, (..., columns).
array embed(const array& ids, const PackedWeight& w, mx::StreamOrDevice s) {
  mx::Shape shape = ids.shape();
  shape.push_back(int(w.layout.columns));
  return array(
      shape, mx::float32, std::make_shared<Rows>(mx::to_stream(s), w.layout, w.shift),
      {mx::contiguous(mx::astype(ids, mx::int32, s), false, s), w.store});
}

// RMSNorm.

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

// Frequencies of the pairs and what a position is multiplied by; cosines and sines of the first positions are
// kept, since every layer asks for the same.
class Angles {
 public:
  Angles(int64_t half, double base, float scale) : half_(half), scale_(scale) {
    for (int64_t i = 0; i < half; ++i) frequencies_.push_back(std::pow(base, -double(i) / double(half)));
  }
  Angles(const float* periods, int64_t half, float scale) : half_(half), scale_(scale), keep_(false) {
    for (int64_t i = 0; i < half; ++i) frequencies_.push_back(1.0 / double(periods[i]));
  }

  // Cosines, then sines, of one position; good until the next call.
  const float* at(int64_t position) {
    if (!keep_ || position < 0 || position >= kKept) {
      single_.resize(size_t(2 * half_));
      fill(position, single_.data());
      return single_.data();
    }
    while (kept_ <= position) {
      table_.resize(size_t((kept_ + 1) * 2 * half_));
      fill(kept_, table_.data() + kept_ * 2 * half_);
      ++kept_;
    }
    return table_.data() + position * 2 * half_;
  }

 private:
  static constexpr int64_t kKept = 16384;

  void fill(int64_t position, float* target) const {
    for (int64_t i = 0; i < half_; ++i) {
      const double angle = double(position) * double(scale_) * frequencies_[size_t(i)];
      target[i] = float(std::cos(angle));
      target[half_ + i] = float(std::sin(angle));
    }
  }

  int64_t half_, kept_ = 0;
  float scale_;
  bool keep_ = true;
  std::vector<double> frequencies_;
  std::vector<float> table_, single_;
};

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

// Attention.

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

NB_MODULE(lattice_cpu, m) {
  using namespace lattice;
  using namespace nb::literals;

  nb::module_::import_("mlx.core");
  nb::class_<PackedWeight>(m, "PackedWeight")
      .def_prop_ro("store", [](const PackedWeight& w) { return w.store; })
      .def_prop_ro("rows", [](const PackedWeight& w) { return w.layout.rows; })
      .def_prop_ro("columns", [](const PackedWeight& w) { return w.layout.columns; });
  m.def("start", [](int threads) {
    if (team == nullptr) team = new Team(threads - 1);
  }, "threads"_a, "Make the team of threads, once; before anything else.");
  m.def("resize", [](int threads) { team->resize(threads); }, "threads"_a);
  m.def("isa", [] { return std::string(isa_name(chosen_isa)); });
  m.def("choose", [](const std::string& name) {
    for (Isa isa : {Isa::plain, Isa::neon, Isa::avx2, Isa::avx512}) {
      if (name == isa_name(isa) && has_isa(isa)) return chosen_isa = isa, true;
    }
    return false;
  }, "isa"_a, "Use an instruction set by name; False where this processor lacks it. For tests.");
  m.def("pack", &pack, "weight"_a, "scales"_a, "biases"_a, "group_size"_a, "bits"_a);
  m.def("product", &product, "x"_a, "weight"_a, "exact"_a = false, "stream"_a = nb::none());
  m.def("embed", &embed, "ids"_a, "weight"_a, "stream"_a = nb::none());
  m.def("rms_norm", &rms_norm, "x"_a, "weight"_a.none(), "eps"_a, nb::kw_only(), "stream"_a = nb::none());
  m.def("swiglu", &swiglu, "gate"_a, "x"_a);
  m.def("rope", &rope, "a"_a, "dims"_a, nb::kw_only(), "traditional"_a, "base"_a.none(), "scale"_a, "offset"_a,
        "freqs"_a = nb::none(), "stream"_a = nb::none());
  m.def("sdpa", &sdpa, "q"_a, "k"_a, "v"_a, nb::kw_only(), "scale"_a, "mask"_a = nb::none(), "sinks"_a = nb::none(),
        "force_fused"_a = false, "stream"_a = nb::none());
}
