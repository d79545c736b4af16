// Draws from a vocabulary as primitives: kernels/draws.py says what they compute.
//
// A step ends with one, when everything else is cold: as some forty small operations it takes a tenth of a small
// model's step, though each is quick when it is repeated.
#pragma once

#include <nanobind/nanobind.h>

#include "order.h"
#include "primitive.h"

namespace lattice {
namespace {

class DrawLikeliest : public CpuPrimitive {
 public:
  DrawLikeliest(mx::Stream stream, float scale, float min_p, float top_p)
      : CpuPrimitive(stream), scale_(scale), min_p_(min_p), top_p_(top_p) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    make_room(outputs[0]);
    encoder().dispatch([logits = View(inputs[0]), noise = View(inputs[1]), out = outputs[0].data<uint32_t>(),
                        scale = scale_, min_p = min_p_, top_p = top_p_] {
      const int64_t rows = logits.shape[0], vocabulary = logits.shape[1], count = noise.shape[1];
      const float* x = logits.rows<10>();
      const float* g = noise.rows<13>();
      for (int64_t row = 0; row < rows; ++row) {
        out[row] = one(x + row * vocabulary, vocabulary, g + row * count, count, scale, min_p, top_p);
      }
    });
  }

  const char* name() const override { return "LatticeDrawLikeliest"; }

 private:
  static uint32_t one(const float* x, int64_t vocabulary, const float* noise, int64_t count, float scale, float min_p,
                      float top_p) {
    static thread_local std::vector<Place> kept;
    likeliest(x, vocabulary, count, kept);
    for (Place& place : kept) place.value *= scale;
    const float most = kept[0].value;
    float total = 0;
    for (Place& place : kept) {
      if (min_p > 0 && place.value < most + std::log(min_p)) place.value = kNever;
      total += std::exp(place.value - most);
    }
    float drawn = kNever, mass = 0;
    uint32_t best = kept[0].id;
    const float limit = top_p < 1 ? std::max(top_p, 1e-7f) : std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < count; ++i) {
      const Place& place = kept[size_t(i)];
      if (mass / total >= limit) break;
      mass += std::exp(place.value - most);
      const float sum = place.value + noise[i];
      if (sum > drawn) drawn = sum, best = place.id;
    }
    return best;
  }

  float scale_, min_p_, top_p_;
};

class DrawKept : public CpuPrimitive {
 public:
  DrawKept(mx::Stream stream, float scale, float min_p, float top_p)
      : CpuPrimitive(stream), scale_(scale), min_p_(min_p), top_p_(top_p) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    make_room(outputs[0]);
    encoder().dispatch([logits = View(inputs[0]), share = inputs[1].data<float>(), out = outputs[0].data<uint32_t>(),
                        scale = scale_, min_p = min_p_, top_p = top_p_] {
      const int64_t vocabulary = logits.shape[1];
      float* values = scratch<float, 11>(vocabulary);
      const float most = scaled(logits.rows<10>(), vocabulary, scale, min_p, values);
      if (!(std::abs(most) < std::numeric_limits<float>::infinity())) {  // nothing may come, or one thing must
        *out = uint32_t(std::find(values, values + vocabulary, most) - values);
      } else {
        *out = top_p < 1 ? by_rank(values, vocabulary, most, top_p, *share) : by_id(values, vocabulary, most, *share);
      }
    });
  }

  const char* name() const override { return "LatticeDrawKept"; }

 private:
  static constexpr int64_t kFew = 256, kPiece = 1024;

  // What `min_p` keeps, scaled, and the largest of it; no -0 among it.
  static float scaled(const float* x, int64_t size, float scale, float min_p, float* values) {
    for (int64_t i = 0; i < size; ++i) values[i] = number(x[i]) * scale + 0.0f;
    const float most = most_of(values, size), floor = most + std::log(min_p);
    for (int64_t i = 0; min_p > 0 && i < size; ++i) values[i] = values[i] < floor ? kNever : values[i];
    return most;
  }

  // The masses of pieces of the vocabulary, and of all.
  static double masses_of(const float* values, int64_t size, float most, std::vector<double>& masses) {
    const DeltaLoops& l = delta_loops(chosen_isa);
    double all = 0;
    masses.clear();
    for (int64_t i = 0; i < size; i += kPiece) {
      float top, total;
      l.soft_sum(values + i, std::min(kPiece, size - i), &top, &total);
      masses.push_back(total > 0 ? double(total) * std::exp(top - most) : 0);
      all += masses.back();
    }
    return all;
  }

  // Among the smallest set of the likeliest whose mass reaches `top_p`. PERF: nearly always it is among a few; a sort of
  // all takes 0.3 ms for 49,152.
  static uint32_t by_rank(const float* values, int64_t vocabulary, float most, float top_p, float share) {
    static thread_local std::vector<double> masses;
    static thread_local std::vector<Place> kept;
    const double limit = std::max(top_p, 1e-7f) * masses_of(values, vocabulary, most, masses);
    double mass = 0;
    const auto reach = [&] {
      size_t count = 0;
      for (mass = 0; count < kept.size() && mass < limit; ++count) mass += std::exp(kept[count].value - most);
      kept.resize(count);
      return mass >= limit;
    };
    likeliest(values, vocabulary, std::min(kFew, vocabulary), kept);
    if (!reach() && vocabulary > kFew) {
      sorted(values, vocabulary, kept);
      reach();
    }
    double target = share * mass;
    for (const Place& place : kept) {
      if ((target -= std::exp(place.value - most)) < 0) return place.id;
    }
    return kept.back().id;  // by rounding
  }

  static uint32_t by_id(const float* values, int64_t vocabulary, float most, float share) {
    static thread_local std::vector<double> masses;
    double target = share * masses_of(values, vocabulary, most, masses);
    size_t piece = 0;
    while (piece + 1 < masses.size() && target >= masses[piece]) target -= masses[piece++];
    uint32_t last = 0;
    for (int64_t id = int64_t(piece) * kPiece; id < vocabulary; ++id) {
      if (!(values[id] > kNever)) continue;
      last = uint32_t(id);
      if ((target -= std::exp(values[id] - most)) < 0) break;
    }
    return last;
  }

  float scale_, min_p_, top_p_;
};

// draws.draw_likeliest; `original` takes what is not float32 on a CPU.
nanobind::object draw_likeliest(nanobind::object original, const array& logits, const array& noise, float scale,
                                float min_p, float top_p) {
  if (!is_float(logits) || !is_float(noise) || !on_cpu({}) || logits.ndim() != 2 || noise.ndim() != 2 ||
      logits.is_tracer()) {
    return original(logits, noise, scale, min_p, top_p);
  }
  if (noise.shape(0) != logits.shape(0) || noise.shape(1) < 1 || noise.shape(1) > logits.shape(1)) {
    throw std::invalid_argument("draw_likeliest: noise is (rows, count), count at most the vocabulary");
  }
  return nanobind::cast(array({logits.shape(0)}, mx::uint32,
                              std::make_shared<DrawLikeliest>(mx::to_stream({}), scale, min_p, top_p), {logits, noise}));
}

// draws.draw_kept; `original` takes what is not one row of float32 on a CPU.
nanobind::object draw_kept(nanobind::object original, const array& logits, const array& key, float scale, float min_p,
                           float top_p) {
  if (!is_float(logits) || !on_cpu({}) || logits.ndim() != 2 || logits.shape(0) != 1 || logits.shape(1) < 1 ||
      logits.is_tracer()) {
    return original(logits, key, scale, min_p, top_p);
  }
  const array share = mx::random::uniform({1}, mx::float32, key);  // as mx.random.categorical has it of one row
  return nanobind::cast(array({1}, mx::uint32,
                              std::make_shared<DrawKept>(mx::to_stream({}), scale, min_p, top_p), {logits, share}));
}

void bind_draw(nanobind::module_& m) {
  using namespace nanobind::literals;
  m.def("draw_likeliest", &draw_likeliest, "original"_a, "logits"_a, "noise"_a, "scale"_a, "min_p"_a, "top_p"_a);
  m.def("draw_kept", &draw_kept, "original"_a, "logits"_a, "key"_a, "scale"_a, "min_p"_a, "top_p"_a);
}

}  // namespace
}  // namespace lattice
