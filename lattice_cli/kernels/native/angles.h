// The angles of RoPE: pair i of a head at position p is turned by p * scale * base^(-i / half).
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace lattice {
namespace {

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

  int64_t half() const { return half_; }

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

  // Cosines, then sines, of one position to `target` (2 * half).
  void fill(int64_t position, float* target) const {
    for (int64_t i = 0; i < half_; ++i) {
      const double angle = double(position) * double(scale_) * frequencies_[size_t(i)];
      target[i] = float(std::cos(angle));
      target[half_ + i] = float(std::sin(angle));
    }
  }

 private:
  static constexpr int64_t kKept = 16384;

  int64_t half_, kept_ = 0;
  float scale_;
  bool keep_ = true;
  std::vector<double> frequencies_;
  std::vector<float> table_, single_;
};

}  // namespace
}  // namespace lattice
