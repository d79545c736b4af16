// What the test programs of the native kernels share: random shapes, a count of failures, errors.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "loops.h"

using namespace lattice;

static std::mt19937 random_bits(4);
static int failures = 0, checks = 0;

static int any(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_bits); }
static float normal() { return std::normal_distribution<float>()(random_bits); }
static std::vector<float> normals(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal();
  return values;
}

static void expect(bool good, const std::string& what) {
  ++checks;
  if (!good && ++failures < 40) std::printf("FAILED %s\n", what.c_str());
}

// Largest difference over the largest magnitude of the reference.
static double error(const std::vector<float>& got, const std::vector<double>& want) {
  double worst = 0, size = 1e-30;
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(got[i])) return 1e30;
    worst = std::max(worst, std::fabs(double(got[i]) - want[i]));
    size = std::max(size, std::fabs(want[i]));
  }
  return worst / size;
}

static uint16_t to_float16(float value) {  // nearest below, for tests: any float16 will do
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const int exponent = int((bits >> 23) & 255) - 112;
  if (exponent <= 0) return uint16_t(bits >> 16 & 0x8000);
  return uint16_t((bits >> 16 & 0x8000) | uint32_t(exponent) << 10 | (bits >> 13 & 1023));
}

// Runs a program's tests in every instruction set that is here, then `rest` once; the program's exit status.
template <class Each, class Rest>
static int run_tests(int count, char** words, const Each& each, const Rest& rest) {
  const int shapes = count > 1 ? std::atoi(words[1]) : 60;
  for (const Isa isa : kAllIsas) {
    if (!has_isa(isa)) continue;
    std::printf("testing %s\n", isa_name(isa));
    each(isa, std::string(isa_name(isa)), shapes);
  }
  rest(shapes);
  std::printf("%d checks, %d failed\n", checks, failures);
  return failures ? 1 : 0;
}
