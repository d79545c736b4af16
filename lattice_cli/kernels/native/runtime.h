// What all computing code shares: the instruction set in use, the team of threads, scratch memory.
#pragma once

#include <cstdint>
#include <vector>

#include "loops.h"
#include "team.h"

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

// Calls work(i) for every i in [0, count), `per_chunk` of them at a time, on the team.
template <class Work>
void each(int64_t count, int64_t per_chunk, const Work& work) {
  team->run((count + per_chunk - 1) / per_chunk, [&](int64_t chunk) {
    const int64_t end = (chunk + 1) * per_chunk < count ? (chunk + 1) * per_chunk : count;
    for (int64_t i = chunk * per_chunk; i < end; ++i) work(i);
  });
}

}  // namespace
}  // namespace lattice
