// A GPU in plain C++: every thread of every block is a fiber, which gives way wherever the kernel waits for others
// (a warp's collectives, a block's and the grid's barriers). For checking kernels' arithmetic without a GPU; slow.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define LATTICE_EMULATED
#define DEV inline

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct uint2 { u32 x, y; };
struct uint4 { u32 x, y, z, w; };
struct float4 { float x, y, z, w; };

struct Barrier {
  int waiting = 0, generation = 0;
};
struct Warp {
  Barrier barrier;
  float values[32];
  u32 words[32][6];
};
struct Block {
  Barrier barrier;
  std::vector<u8> shared;
  std::vector<Warp> warps;
};
struct Fiber {
  ucontext_t start;
  jmp_buf at;
  std::vector<u8> stack;
  int block, thread;
  bool begun = false, done = false;
};
struct Grid {
  std::vector<Block> blocks;
  std::vector<Fiber> fibers;
  int threads = 0, first = 0, total = 0;
  Fiber* now = nullptr;
  jmp_buf home;
  ucontext_t origin;
  std::function<void()> kernel;
};
inline Grid grid;

inline void give_way() {
  Fiber* self = grid.now;
  if (_setjmp(self->at) == 0) _longjmp(grid.home, 1);
}
inline void wait(Barrier& barrier, int count) {
  const int generation = barrier.generation;
  if (++barrier.waiting == count) {
    barrier.waiting = 0;
    barrier.generation++;
    return;
  }
  while (barrier.generation == generation) give_way();
}
inline Block& own_block() { return grid.blocks[grid.now->block]; }
inline Warp& own_warp() { return own_block().warps[grid.now->thread / 32]; }

inline u8* shared_memory() { return own_block().shared.data(); }
inline int block_index() { return grid.first + grid.now->block; }
inline int block_count() { return grid.total; }
inline int thread_index() { return grid.now->thread; }
inline void sync_block() { wait(own_block().barrier, grid.threads); }
inline void sync_warp() { wait(own_warp().barrier, 32); }
inline void add_release(u64* to) { ++*to; }
inline u64 load_acquire(const u64* from) {
  give_way();
  return *from;
}
inline void stop() { std::abort(); }
inline u32 pick_bytes(u32 a, u32 b, u32 which) {
  u32 out = 0;
  for (int i = 0; i < 4; i++) {
    const int number = which >> (4 * i) & 7;
    out |= ((number < 4 ? a >> (8 * number) : b >> (8 * (number - 4))) & 255) << (8 * i);
  }
  return out;
}
inline float shuffle_xor(float value, int mask) {
  Warp& warp = own_warp();
  const int lane = thread_index() % 32;
  warp.values[lane] = value;
  sync_warp();
  const float other = warp.values[lane ^ mask];
  sync_warp();
  return other;
}
inline float load_fresh(const float* from) { return *from; }
inline float4 load_fresh4(const float* from) { return *reinterpret_cast<const float4*>(from); }
template <int BYTES>
inline void copy_async(u8* to, const u8* from) { std::memcpy(to, from, BYTES); }
inline void commit_async() {}
template <int N>
inline void wait_async() {}
inline float as_float(u32 bits) {
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}
inline u32 as_bits(float value) {
  u32 out;
  std::memcpy(&out, &value, 4);
  return out;
}
template <bool HALF>
inline float widen(u16 bits) {
  if constexpr (HALF) {
    _Float16 half;
    std::memcpy(&half, &bits, 2);
    return float(half);
  }
  return as_float(u32(bits) << 16);
}
template <bool HALF>
inline u16 narrow(float value) {
  if constexpr (HALF) {
    const _Float16 half = _Float16(value);
    u16 bits;
    std::memcpy(&bits, &half, 2);
    return bits;
  }
  u32 bits;
  std::memcpy(&bits, &value, 4);
  return u16((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}
template <bool HALF>
inline u32 narrow2(float low, float high) {
  return u32(narrow<HALF>(low)) | u32(narrow<HALF>(high)) << 16;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

// The fragments of m16n8k16 as PTX defines them ("Matrix Fragments for mma.m16n8k16").
template <bool HALF>
inline void multiply_add(float c[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  Warp& warp = own_warp();
  const int lane = thread_index() % 32, g = lane / 4, t = lane % 4;
  const u32 mine[6] = {a0, a1, a2, a3, b0, b1};
  std::memcpy(warp.words[lane], mine, sizeof mine);
  sync_warp();
  const auto number = [](u32 word, int high) { return widen<HALF>(u16(word >> (high * 16))); };
  for (int i = 0; i < 4; i++) {
    const int row = g + (i >= 2 ? 8 : 0), column = 2 * t + i % 2;
    float sum = c[i];
    for (int k = 0; k < 16; k++) {
      const u32* a = warp.words[row % 8 * 4 + k % 8 / 2];
      const u32* b = warp.words[column * 4 + k % 8 / 2];
      sum += number(a[(k >= 8 ? 2 : 0) + (row >= 8 ? 1 : 0)], k % 2) * number(b[4 + (k >= 8 ? 1 : 0)], k % 2);
    }
    c[i] = sum;
  }
  sync_warp();
}

inline void begin_fiber() {
  Fiber* self = grid.now;
  grid.kernel();
  self->done = true;
  for (;;) _longjmp(grid.home, 1);
}

// Runs blocks that are on the GPU at the same time.
inline void run_blocks(int blocks, int threads, size_t shared) {
  grid.blocks.assign(blocks, Block{});
  for (Block& block : grid.blocks) {
    block.shared.assign(shared + 16, 0xff);  // what nobody wrote is not a number
    block.warps.assign((threads + 31) / 32, Warp{});
  }
  if (int(grid.fibers.size()) != blocks * threads) grid.fibers = std::vector<Fiber>(size_t(blocks) * threads);
  for (int i = 0; i < blocks * threads; i++) {
    Fiber& fiber = grid.fibers[i];
    fiber.block = i / threads;
    fiber.thread = i % threads;
    fiber.begun = fiber.done = false;
    fiber.stack.resize(32 * 1024);
  }
  for (bool working = true; working;) {
    working = false;
    for (Fiber& fiber : grid.fibers) {
      if (fiber.done) continue;
      working = true;
      grid.now = &fiber;
      if (_setjmp(grid.home) != 0) continue;
      if (fiber.begun) _longjmp(fiber.at, 1);
      fiber.begun = true;
      getcontext(&fiber.start);
      fiber.start.uc_stack.ss_sp = fiber.stack.data();
      fiber.start.uc_stack.ss_size = fiber.stack.size();
      fiber.start.uc_link = nullptr;
      makecontext(&fiber.start, begin_fiber, 0);
      setcontext(&fiber.start);
    }
  }
}

// Runs a kernel on `blocks` blocks of `threads` threads with so much shared memory: `together` where they wait for each
// other, else one after the other.
inline void launch(int blocks, int threads, size_t shared, bool together, std::function<void()> kernel) {
  grid.kernel = std::move(kernel);
  grid.threads = threads;
  grid.total = blocks;
  for (grid.first = 0; grid.first < blocks; grid.first += together ? blocks : 1)
    run_blocks(together ? blocks : 1, threads, shared);
}
