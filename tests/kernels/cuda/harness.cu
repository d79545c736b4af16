// The kernels of a prompt (prompt.cuh, scan.cuh) once each on ragged rows, for NVIDIA's compute-sanitizer: a program of its
// own, because under racecheck mlx's own products end with an illegal access.
//   nvcc -std=c++17 -lineinfo -I lattice_cli/kernels/cuda tests/kernels/cuda/harness.cu -o harness
//   compute-sanitizer --tool racecheck --error-exitcode 9 ./harness
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace k {
#include "portable.cuh"
#include "prompt.cuh"
#include "scan.cuh"
}

using u16 = unsigned short;
constexpr int KEY_HEADS = 2, VALUE_HEADS = 6, KEY_DIM = 128, VALUE_DIM = 128, HIDDEN = 256, HEADS = 6, KV_HEADS = 2, DIM = 64;
constexpr int CHANNELS = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM, SHARES = VALUE_DIM / 16;
constexpr long PITCH = CHANNELS + VALUE_HEADS * VALUE_DIM + 2 * VALUE_HEADS, HEAD = long(VALUE_DIM) * KEY_DIM;
constexpr long TAPS = VALUE_HEADS * HEAD, STRIDE = TAPS + 4 * CHANNELS;
using Scan = k::SpanScan<false, KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM>;

__global__ void prepare(const u16* parts, const float* conv, const float* a, const float* d, const float* states,
                        const int* slots, const int* positions, const int* counts, int tokens, float* q, float* keys,
                        float* v, float* m) {
  k::prepare_span<false, KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM>(parts, conv, a, d, states + TAPS, STRIDE, slots,
                                                                     positions, counts, tokens, q, keys, v, m);
}
__global__ void scan(const float* q, const float* keys, const float* v, const float* m, const u16* parts, float* states,
                     const int* slots, const int* positions, const int* counts, int tokens, float* out) {
  const int share = k::block_index() % SHARES, head = k::block_index() / SHARES % VALUE_HEADS;
  const int row = k::block_index() / (SHARES * VALUE_HEADS);
  float* own = states + slots[row] * STRIDE;
  const Scan all{q, keys, v, m, k::ceil_div(tokens, k::SPAN), row, head, share};
  all.run(tokens, counts[row], own + head * HEAD, out);
  all.keep_taps(parts, tokens, counts[row], positions[row], own + TAPS);
}
__global__ void norm(const float* h, const u16* more, const float* w, float* sum, u16* out) {
  k::add_norm<false, HIDDEN, false>(h, more, w, 1e-6f, sum, out);
}
__global__ void gated(const float* made, const u16* parts, const float* w, long tokens, u16* out) {
  k::gated_norm<false, VALUE_HEADS, VALUE_DIM>(made, parts, PITCH, CHANNELS, w, 1e-6f, tokens, out);
}
__global__ void heads(const u16* parts, const float* norm, const float* turns, u16* pages, const int* table,
                      const int* positions, const int* counts, int tokens, int rows, u16* q, u16* keys, u16* v) {
  k::attention_heads<false, HEADS, KV_HEADS, DIM, 16, true, true, 1, 128>(
      parts, norm, norm, turns, 1e-6f, pages, 0, table, 1, positions, counts, tokens, rows, q, keys, v);
}
__global__ void gather(const u16* pages, const int* table, const int* positions, const int* counts, int tokens, int rows,
                       u16* keys, u16* v) {
  k::gather_pages<KV_HEADS, DIM, 1, 128>(pages, 0, table, 1, positions, counts, tokens, rows, keys, v);
}

// Random numbers of a size on the GPU; a size of 0 is zeros.
template <class T>
T* numbers(size_t count, float size = 0) {
  std::vector<T> made(count);
  for (T& one : made) {
    const float value = size * (rand() / float(RAND_MAX) - 0.5f);
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    one = sizeof(T) == 2 ? T(bits >> 16) : T(value);
  }
  T* there;
  cudaMalloc(&there, count * sizeof(T));
  cudaMemcpy(there, made.data(), count * sizeof(T), cudaMemcpyHostToDevice);
  return there;
}
int* ints(std::vector<int> made) {
  int* there;
  cudaMalloc(&there, made.size() * 4);
  cudaMemcpy(there, made.data(), made.size() * 4, cudaMemcpyHostToDevice);
  return there;
}

int main() {
  const int tokens = 37, rows = 2, spans = (tokens + 15) / 16, all = tokens + 5;
  int *counts = ints({37, 20}), *positions = ints({5, 0}), *slots = ints({1, 0}), *table = ints({1, 0});
  u16* parts = numbers<u16>(rows * tokens * PITCH, 2);
  float *states = numbers<float>(2 * STRIDE, 1), *small = numbers<float>(VALUE_HEADS, 1);
  float *q = numbers<float>(rows * spans * KEY_HEADS * 16 * KEY_DIM), *keys = numbers<float>(rows * spans * KEY_HEADS * 16 * KEY_DIM);
  float *v = numbers<float>(rows * spans * VALUE_HEADS * 16 * VALUE_DIM), *m = numbers<float>(rows * spans * VALUE_HEADS * k::MATRICES);
  float* out = numbers<float>(long(rows) * tokens * VALUE_HEADS * VALUE_DIM);
  const int room = 4 * (2 * 16 * (KEY_DIM + 4) + 2 * 16 * 17 + 3 * 16);
  prepare<<<rows * spans * VALUE_HEADS, 128, room>>>(parts, numbers<float>(CHANNELS * 4, 1), small, small, states, slots,
                                                     positions, counts, tokens, q, keys, v, m);
  cudaFuncSetAttribute(scan, cudaFuncAttributeMaxDynamicSharedMemorySize, Scan::BYTES);
  scan<<<rows * VALUE_HEADS * SHARES, 128, Scan::BYTES>>>(q, keys, v, m, parts, states, slots, positions, counts, tokens, out);
  norm<<<rows * tokens, 128, 16>>>(numbers<float>(rows * tokens * HIDDEN, 1), numbers<u16>(rows * tokens * HIDDEN, 1),
                                   numbers<float>(HIDDEN, 1), numbers<float>(rows * tokens * HIDDEN),
                                   numbers<u16>(rows * tokens * HIDDEN));
  gated<<<(rows * tokens * VALUE_HEADS + 3) / 4, 128>>>(out, parts, numbers<float>(VALUE_DIM, 1), rows * tokens,
                                                        numbers<u16>(rows * tokens * VALUE_HEADS * VALUE_DIM));
  u16 *pages = numbers<u16>(4 * KV_HEADS * 128 * DIM, 1), *made = numbers<u16>(rows * KV_HEADS * all * DIM);
  u16* values = numbers<u16>(rows * KV_HEADS * all * DIM);
  heads<<<(rows * tokens * (HEADS + 2 * KV_HEADS) + 3) / 4, 128, 16 * DIM>>>(
      numbers<u16>(rows * tokens * (2 * HEADS + 2 * KV_HEADS) * DIM, 1), numbers<float>(DIM, 1), numbers<float>(16, 1), pages,
      table, positions, counts, tokens, rows, numbers<u16>(rows * HEADS * tokens * DIM), made, values);
  gather<<<(rows * KV_HEADS * all * DIM / 8 + 255) / 256, 256>>>(pages, table, positions, counts, all, rows, made, values);
  const cudaError_t error = cudaDeviceSynchronize();
  std::printf("%s\n", cudaGetErrorString(error));
  return error != cudaSuccess;
}
