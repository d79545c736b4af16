// mx.logsumexp and mx.argmax over the last axis as primitives.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "primitive.h"

namespace lattice {
namespace {

// Rows cut into pieces that threads share: by the row's length alone, so that results do not depend on threads.
struct Pieces {
  static constexpr int64_t kPiece = 8192;
  int64_t rows, size;

  explicit Pieces(const array& a) : rows(int64_t(a.size()) / a.shape(-1)), size(a.shape(-1)) {}
  int64_t per_row() const { return (size + kPiece - 1) / kPiece; }

  // Calls work(piece, first number of it, how many numbers) for every piece of every row.
  template <class Work>
  void run(const float* x, const Work& work) const {
    const int64_t count = per_row(), total = rows * count, chunk = size < 512 ? 16 : 1;
    team->run((total + chunk - 1) / chunk, [&](int64_t part) {
      for (int64_t piece = part * chunk; piece < total && piece < (part + 1) * chunk; ++piece) {
        const int64_t at = piece % count * kPiece;
        work(piece, x + piece / count * size + at, size - at < kPiece ? size - at : kPiece);
      }
    });
  }
};

class LogSumExp : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    make_room(outputs[0]);
    encoder().dispatch([x = View(inputs[0]), pieces = Pieces(inputs[0]), out = outputs[0].data<float>()] {
      const int64_t count = pieces.per_row();
      float *tops = scratch<float, 11>(pieces.rows * count), *totals = scratch<float, 12>(pieces.rows * count);
      const DeltaLoops& l = delta_loops(chosen_isa);
      pieces.run(x.rows<10>(), [&](int64_t piece, const float* first, int64_t size) {
        l.soft_sum(first, size, tops + piece, totals + piece);
      });
      for (int64_t row = 0; row < pieces.rows; ++row) {
        out[row] = l.soft_join(tops + row * count, totals + row * count, count);
      }
    });
  }

  const char* name() const override { return "LatticeLogSumExp"; }
};

class ArgMax : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    make_room(outputs[0]);
    encoder().dispatch([x = View(inputs[0]), pieces = Pieces(inputs[0]), out = outputs[0].data<uint32_t>()] {
      const int64_t count = pieces.per_row();
      const float* source = x.rows<10>();
      auto* places = scratch<int64_t, 11>(pieces.rows * count);
      float* tops = scratch<float, 12>(count);
      const DeltaLoops& l = delta_loops(chosen_isa);
      pieces.run(source, [&](int64_t piece, const float* first, int64_t size) {
        places[piece] = l.largest(first, size) + piece % count * Pieces::kPiece;
      });
      for (int64_t row = 0; row < pieces.rows; ++row) {
        for (int64_t i = 0; i < count; ++i) tops[i] = source[row * pieces.size + places[row * count + i]];
        out[row] = uint32_t(places[row * count + l.largest(tops, count)]);
      }
    });
  }

  const char* name() const override { return "LatticeArgMax"; }
};

bool reducible(const array& a, mx::StreamOrDevice s) {
  return is_float(a) && a.size() > 0 && on_cpu(s) && !a.is_tracer();
}
bool is_last(const array& a, int axis) { return axis == -1 || axis == int(a.ndim()) - 1; }

// The last axis gone, or of length one.
mx::Shape reduced(const array& a, bool keepdims) {
  mx::Shape shape = a.shape();
  shape.pop_back();
  if (keepdims) shape.push_back(1);
  return shape;
}

using Axes = std::variant<std::monostate, int, std::vector<int>>;

array logsumexp(const array& a, const Axes& axis, bool keepdims, mx::StreamOrDevice s) {
  const int* one = std::get_if<int>(&axis);
  const auto* some = std::get_if<std::vector<int>>(&axis);
  const bool last = a.ndim() > 0 &&
      (one ? is_last(a, *one) : some ? some->size() == 1 && is_last(a, some->front()) : a.ndim() == 1);
  if (last && reducible(a, s)) {
    return array(reduced(a, keepdims), mx::float32, std::make_shared<LogSumExp>(mx::to_stream(s)), {a});
  }
  if (one) return mx::logsumexp(a, *one, keepdims, s);
  return some ? mx::logsumexp(a, *some, keepdims, s) : mx::logsumexp(a, keepdims, s);
}

array argmax(const array& a, const std::optional<int>& axis, bool keepdims, mx::StreamOrDevice s) {
  const bool last = a.ndim() > 0 && (axis ? is_last(a, *axis) : a.ndim() == 1);
  if (last && reducible(a, s)) {
    return array(reduced(a, keepdims), mx::uint32, std::make_shared<ArgMax>(mx::to_stream(s)), {a});
  }
  return axis ? mx::argmax(a, *axis, keepdims, s) : mx::argmax(a, keepdims, s);
}

void bind_reduce(nanobind::module_& m) {
  using namespace nanobind::literals;
  namespace nb = nanobind;
  m.def("logsumexp", &logsumexp, nb::arg(), "axis"_a = nb::none(), "keepdims"_a = false, nb::kw_only(),
        "stream"_a = nb::none());
  m.def("argmax", &argmax, nb::arg(), "axis"_a = nb::none(), "keepdims"_a = false, nb::kw_only(),
        "stream"_a = nb::none());
}

}  // namespace
}  // namespace lattice
