// What the kernels need of a GPU: number formats, warp collectives, products of small matrices, loads that skip a
// cache, a barrier of the whole grid. On a GPU they are instructions; tests/kernels/cuda/emulator.h has them in plain C++,
// so that the kernels' arithmetic is checked on machines without one.
#pragma once

#ifndef LATTICE_EMULATED

#define DEV __device__ __forceinline__

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

extern __shared__ __align__(128) u8 lattice_shared[];

DEV u8* shared_memory() { return lattice_shared; }
DEV int block_index() { return blockIdx.x; }
DEV int block_count() { return gridDim.x; }
DEV int thread_index() { return threadIdx.x; }
DEV void sync_block() { __syncthreads(); }
DEV void sync_warp() { __syncwarp(); }
DEV float shuffle_xor(float value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }

// Loads of what other blocks wrote in this kernel: past the first-level cache, which does not see their writes.
DEV float load_fresh(const float* from) { return __ldcg(from); }
DEV float4 load_fresh4(const float* from) { return __ldcg(reinterpret_cast<const float4*>(from)); }

// Copies into shared memory that go on by themselves. `commit_async` closes a batch of them, `wait_async<N>` waits until
// all but the newest N batches of this thread are there.
template <int BYTES>
DEV void copy_async(u8* to, const u8* from) {
  const u32 place = static_cast<u32>(__cvta_generic_to_shared(to));
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(place), "l"(from), "n"(BYTES) : "memory");
}
DEV void commit_async() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
DEV void wait_async() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// c += a b with a (16, 16), b (16, 8): Nvidia's m16n8k16 fragments, 32-bit registers of two numbers each.
template <bool HALF>
DEV void multiply_add(float c[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  if constexpr (HALF) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

DEV float as_float(u32 bits) { return __uint_as_float(bits); }
DEV u32 as_bits(float value) { return __float_as_uint(value); }

// In instructions, so that no header must be found and read.
template <bool HALF>
DEV float widen(u16 bits) {
  if constexpr (HALF) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
  return as_float(u32(bits) << 16);
}
template <bool HALF>
DEV u32 narrow2(float low, float high) {
  u32 both;
  if constexpr (HALF) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
template <bool HALF>
DEV u16 narrow(float value) { return u16(narrow2<HALF>(value, 0.0f)); }

// A number that blocks wait for each other by: what a block did before it added is seen by who read the sum.
DEV void add_release(u64* to) { asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(to) : "memory"); }
DEV u64 load_acquire(const u64* from) {
  u64 seen;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(from) : "memory");
  return seen;
}
DEV void stop() { __trap(); }
// Bytes of two words, numbered from a's first to b's last, as the digits of `which` say.
DEV u32 pick_bytes(u32 a, u32 b, u32 which) { return __byte_perm(a, b, which); }

#endif  // LATTICE_EMULATED

// A barrier of the whole grid in two halves, so that a block can do something between them: all blocks have arrived before
// one goes on. `arrivals` only ever grows; all blocks must be on the GPU at once, so there are no more of them than
// multiprocessors. A grid that waits for seconds has lost a block: it ends with a trap.
DEV void arrive_grid(u64* arrivals) {
  sync_block();
  if (thread_index() == 0) add_release(arrivals);
}
DEV void wait_grid(const u64* arrivals, u64 goal) {
  if (thread_index() == 0)
    for (u64 spins = 0; load_acquire(arrivals) < goal; spins++)
      if (spins == 100000000ull) stop();
  sync_block();
}

DEV float warp_sum(float value) {
  for (int mask = 16; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
  return value;
}
DEV float warp_most(float value) {
  for (int mask = 16; mask > 0; mask /= 2) value = fmaxf(value, shuffle_xor(value, mask));
  return value;
}
DEV float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
DEV float silu(float x) { return x / (1.0f + expf(-x)); }
DEV float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
DEV int ceil_div(int a, int b) { return (a + b - 1) / b; }
DEV int least(int a, int b) { return a < b ? a : b; }
DEV int most(int a, int b) { return a > b ? a : b; }
