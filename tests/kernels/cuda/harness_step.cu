// A step of decoding in small (plan.py), of several numbers of rows, for NVIDIA's compute-sanitizer: a program of its own, because under
// racecheck mlx's own kernels end with an illegal access. Without the sanitizer it says how long a step takes.
//   python -m tests.kernels.cuda.plan 16 4 > plan.h
//   nvcc -std=c++17 -lineinfo -I lattice_cli/kernels/cuda -I . tests/kernels/cuda/harness_step.cu -o harness_step
//   compute-sanitizer --tool racecheck --error-exitcode 9 ./harness_step
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace k {
#include "portable.cuh"
#include "plan.h"
#include "product.cuh"
#include "step.cuh"
}

using C = k::C;
using Step = k::Step<C>;
struct Layers {
  const k::u8* at[C::LAYERS];
};

__global__ void __launch_bounds__(C::WARPS * 32, 1) step(Layers layers, k::Arguments arguments) {
  arguments.layers = layers.at;
  Step(Step::share(arguments)).run();
}
// Small numbers in 16 bits, some of each sign; as words of quantized weights they are as good as others.
__global__ void scatter(k::u16* to, long count) {
  for (long i = blockIdx.x * long(blockDim.x) + threadIdx.x; i < count; i += long(gridDim.x) * blockDim.x) {
    const k::u32 mixed = (k::u32(i) * 2654435761u) ^ (k::u32(i) >> 7);
    to[i] = k::u16(0x3c00 + (mixed >> 9) % 256 + ((mixed >> 20) & 1) * 0x8000);
  }
}
__global__ void fill(float* to, long count, float value) {
  for (long i = threadIdx.x; i < count; i += blockDim.x) to[i] = value;
}
template <class T>
T* numbers(long count) {
  T* made;
  if (cudaMalloc(&made, count * sizeof(T)) != cudaSuccess) std::exit(3);
  cudaMemset(made, 0, count * sizeof(T));
  return made;
}
template <class T>
T* sent(const std::vector<T>& values) {
  T* made = numbers<T>(values.size());
  cudaMemcpy(made, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
  return made;
}
k::u8* weights(long bytes) {
  k::u8* made = numbers<k::u8>(bytes);
  scatter<<<64, 256>>>(reinterpret_cast<k::u16*>(made), bytes / 2);
  return made;
}
void ones(const k::u8* buffer, long at, long count) { fill<<<1, 256>>>((float*)(buffer + at), count, 1.0f); }

int main() {
  const int most = 8 * C::NT, pages = 2;
  Layers layers;
  for (int i = 0; i < C::LAYERS; i++) {
    const bool recurrent = C::recurrent(i);
    const auto& at = C::places(recurrent);
    const k::u8* layer = layers.at[i] = weights(k::LAYER_BYTES);
    ones(layer, at.in_norm, C::HIDDEN), ones(layer, at.post_norm, C::HIDDEN);
    if (recurrent) {
      ones(layer, at.conv, 4L * Step::CHANNELS), ones(layer, at.out_norm, C::VALUE_DIM);
      ones(layer, at.a_log, C::VALUE_HEADS), ones(layer, at.dt_bias, C::VALUE_HEADS);
    } else {
      ones(layer, at.q_norm, C::HEAD_DIM), ones(layer, at.k_norm, C::HEAD_DIM);
    }
  }
  std::vector<k::u32> tokens;
  std::vector<int> positions, slots, table;
  for (int row = 0; row < most; row++) {
    tokens.push_back(row * 31 % C::VOCABULARY), slots.push_back(most - 1 - row);
    positions.push_back(row == 0 ? 0 : C::PAGE - 40 + row * 3);
    for (int page = 0; page < pages; page++) table.push_back(row * pages + page);
  }
  float* norm = numbers<float>(C::HIDDEN);
  fill<<<1, 256>>>(norm, C::HIDDEN, 1.0f);
  float* logits = numbers<float>(long(most) * C::VOCABULARY);
  k::Arguments arguments{};
  arguments.embedding = arguments.head = weights(k::HEAD_BYTES);
  arguments.norm = norm, arguments.turns = sent(std::vector<float>(C::TURNED, 0.1f));
  arguments.tokens = sent(tokens), arguments.positions = sent(positions), arguments.slots = sent(slots);
  arguments.table = sent(table), arguments.table_width = pages;
  const long page_numbers = long(C::ATTENTION_LAYERS) * 2 * C::KV_HEADS * C::PAGE * C::HEAD_DIM;
  arguments.pages = reinterpret_cast<k::u16*>(weights(2 * most * pages * page_numbers));
  arguments.states = numbers<float>(most * Step::STATE), arguments.work = numbers<float>(C::WORK_NUMBERS);
  arguments.arrivals = numbers<k::u64>(16), arguments.logits = logits, arguments.next_positions = numbers<int>(most);
  const int bytes = C::SHARED_BYTES + C::TAIL_BYTES;
  cudaFuncSetAttribute(step, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  for (int rows : {1, 2, most - 1}) {
    arguments.rows = sent(std::vector<int>{rows, pages});
    cudaEventRecord(begin);
    step<<<k::BLOCKS, C::WARPS * 32, bytes>>>(layers, arguments);
    cudaEventRecord(end);
    const cudaError_t error = cudaDeviceSynchronize();
    std::vector<float> seen(long(rows) * C::VOCABULARY);
    cudaMemcpy(seen.data(), logits, seen.size() * 4, cudaMemcpyDeviceToHost);
    float ms = 0, sum = 0;
    cudaEventElapsedTime(&ms, begin, end);
    for (float one : seen) sum += std::fabs(one);
    std::printf("%d rows: %s, %.3f ms, logits of %.3f\n", rows, cudaGetErrorString(error), ms, sum / seen.size());
    if (error != cudaSuccess || !(sum > 0)) return 1;
  }
}
