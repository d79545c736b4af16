// A draw among the likeliest of a vocabulary as one primitive: kernels/draws.py says what it computes.
//
// A step ends with it, when everything else is cold: as some forty small operations it takes a tenth of a small
// model's step, though each is quick when it is repeated.
#pragma once

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include <nanobind/nanobind.h>

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
  static constexpr int64_t kBlock = 32;
  static constexpr float kNever = -std::numeric_limits<float>::infinity();

  struct Place {
    float value;
    uint32_t id;
  };
  static bool before(const Place& a, const Place& b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }

  // No number is below every number, so that an order exists.
  static float number(float x) { return x == x ? x : kNever; }

  // The `count` largest lie in the `count` blocks with the largest maxima (the lowest ids of equals).
  static void likeliest(const float* x, int64_t vocabulary, int64_t count, std::vector<Place>& found) {
    const int64_t blocks = (vocabulary + kBlock - 1) / kBlock;
    static thread_local std::vector<Place> tops;
    tops.resize(size_t(blocks));
    for (int64_t b = 0; b < blocks; ++b) {
      const float* first = x + b * kBlock;
      const int64_t size = std::min(kBlock, vocabulary - b * kBlock);
      float lanes[4] = {kNever, kNever, kNever, kNever};
      for (int64_t i = 0; i + 4 <= size; i += 4) {
        for (int lane = 0; lane < 4; ++lane) lanes[lane] = first[i + lane] > lanes[lane] ? first[i + lane] : lanes[lane];
      }
      for (int64_t i = size & ~int64_t(3); i < size; ++i) lanes[0] = first[i] > lanes[0] ? first[i] : lanes[0];
      tops[size_t(b)] = {std::max(std::max(lanes[0], lanes[1]), std::max(lanes[2], lanes[3])), uint32_t(b)};
    }
    const int64_t kept = std::min(count, blocks);
    std::nth_element(tops.begin(), tops.begin() + (kept - 1), tops.end(), before);
    found.clear();
    for (int64_t i = 0; i < kept; ++i) {
      const int64_t first = int64_t(tops[size_t(i)].id) * kBlock;
      for (int64_t id = first; id < std::min(first + kBlock, vocabulary); ++id) {
        found.push_back({number(x[id]), uint32_t(id)});
      }
    }
    std::partial_sort(found.begin(), found.begin() + count, found.end(), before);
    found.resize(size_t(count));
  }

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

void bind_draw(nanobind::module_& m) {
  using namespace nanobind::literals;
  m.def("draw_likeliest", &draw_likeliest, "original"_a, "logits"_a, "noise"_a, "scale"_a, "min_p"_a, "top_p"_a);
}

}  // namespace
}  // namespace lattice
