// What the programs of this folder share: random numbers, and counting what failed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

inline std::mt19937 random_bits(4);
inline int failures = 0, checks = 0;

inline int any(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_bits); }
inline float normal() { return std::normal_distribution<float>()(random_bits); }
inline std::vector<float> normals(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal();
  return values;
}

inline void expect(bool good, const std::string& what) {
  ++checks;
  if (!good && ++failures < 40) std::printf("FAILED %s\n", what.c_str());
}

// Largest difference over the largest magnitude of the reference.
inline double error(const std::vector<float>& got, const std::vector<double>& want) {
  double worst = 0, size = 1e-30;
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(got[i])) return 1e30;
    worst = std::max(worst, std::fabs(double(got[i]) - want[i]));
    size = std::max(size, std::fabs(want[i]));
  }
  return worst / size;
}
