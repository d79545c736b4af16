// The likeliest of a vocabulary in order: the largest numbers first, of equals the lowest id. No number (NaN) is below
// every number, so that an order exists.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace lattice {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

struct Place {
  float value;
  uint32_t id;
};

inline bool before(const Place& a, const Place& b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }
inline float number(float x) { return x == x ? x : kNever; }

// The largest of some numbers, NaNs left out.
inline float most_of(const float* x, int64_t size) {
  float lanes[4] = {kNever, kNever, kNever, kNever};
  for (int64_t i = 0; i + 4 <= size; i += 4) {
    for (int lane = 0; lane < 4; ++lane) lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
  }
  for (int64_t i = size & ~int64_t(3); i < size; ++i) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
  return std::max(std::max(lanes[0], lanes[1]), std::max(lanes[2], lanes[3]));
}

// The `count` first. They lie in the `count` blocks with the largest maxima (the lowest ids of equals).
inline void likeliest(const float* x, int64_t vocabulary, int64_t count, std::vector<Place>& found) {
  constexpr int64_t kBlock = 32;
  const int64_t blocks = (vocabulary + kBlock - 1) / kBlock;
  static thread_local std::vector<Place> tops;
  tops.resize(size_t(blocks));
  for (int64_t b = 0; b < blocks; ++b) {
    tops[size_t(b)] = {most_of(x + b * kBlock, std::min(kBlock, vocabulary - b * kBlock)), uint32_t(b)};
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

// All that are above `kNever`. Digits of 11 bits, least first, which keeps the order of equals. No number is -0.
inline void sorted(const float* x, int64_t vocabulary, std::vector<Place>& found) {
  constexpr int kDigits = 3, kBits = 11, kValues = 1 << kBits;
  struct Keyed {
    uint32_t key, id;
    uint32_t digit(int number) const { return key >> (number * kBits) & (kValues - 1); }
  };
  static thread_local std::vector<Keyed> from, to;
  from.clear();
  std::array<std::array<uint32_t, kValues>, kDigits> places{};
  for (int64_t id = 0; id < vocabulary; ++id) {
    if (!(x[id] > kNever)) continue;
    uint32_t bits;
    std::memcpy(&bits, x + id, 4);
    from.push_back({bits >> 31 ? bits : ~bits & 0x7fffffff, uint32_t(id)});  // goes up as numbers go down
    for (int d = 0; d < kDigits; ++d) ++places[size_t(d)][from.back().digit(d)];
  }
  to.resize(from.size());
  for (int d = 0; d < kDigits; ++d) {
    auto& place = places[size_t(d)];
    if (!from.empty() && place[from[0].digit(d)] == from.size()) continue;  // all alike
    uint32_t at = 0;
    for (uint32_t& first : place) at += std::exchange(first, at);
    for (const Keyed& each : from) to[place[each.digit(d)]++] = each;
    from.swap(to);
  }
  found.clear();
  for (const Keyed& each : from) found.push_back({x[each.id], each.id});
}

}  // namespace
}  // namespace lattice
