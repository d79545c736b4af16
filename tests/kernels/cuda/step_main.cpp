// Runs steps of cuda/step.cuh on the emulator: arrays from a file, logits of every step to another.
//   step_main IN OUT BLOCKS STEPS
#include "emulator.h"

#include "plan.h"  // struct C, written by the test (DEV is the emulator's)

#include "step.cuh"

static std::vector<u8> read_array(FILE* file) {
  u64 bytes = 0;
  if (std::fread(&bytes, 8, 1, file) != 1) std::exit(2);
  std::vector<u8> out(bytes + 128);  // room for whole lines at the end
  if (bytes && std::fread(out.data(), bytes, 1, file) != 1) std::exit(2);
  return out;
}
template <class T>
static T* as(std::vector<u8>& bytes) { return reinterpret_cast<T*>(bytes.data()); }

int main(int, char** argv) {
  FILE* file = std::fopen(argv[1], "rb");
  const int blocks = std::atoi(argv[3]), steps = std::atoi(argv[4]);
  std::vector<std::vector<u8>> layers;
  std::vector<const u8*> pointers;
  for (int i = 0; i < C::LAYERS; i++) layers.push_back(read_array(file));
  for (auto& layer : layers) pointers.push_back(layer.data());
  auto embedding = read_array(file), head = read_array(file), norm = read_array(file), turns = read_array(file);
  auto rows = read_array(file), tokens = read_array(file), positions = read_array(file), slots = read_array(file);
  auto table = read_array(file), pages = read_array(file), states = read_array(file);
  std::fclose(file);
  std::vector<u8> work(4 * Step<C>::WORK, 0xff);
  const int count = *as<int>(rows), width = as<int>(rows)[1];
  std::vector<float> logits(size_t(count) * C::VOCABULARY);
  std::vector<int> next(64);
  FILE* out = std::fopen(argv[2], "wb");
  for (int step = 0; step < steps; step++) {
    Arguments a{pointers.data(), embedding.data(), head.data(), as<float>(norm), as<float>(turns), as<int>(rows),
                as<u32>(tokens) + step * count, as<int>(positions), as<int>(slots), as<int>(table), width,
                as<u16>(pages), as<float>(states), as<float>(work), nullptr, logits.data(), next.data()};
    const size_t attention = 4 * (C::WARPS * Step<C>::TOGETHER * Step<C>::PART + (Step<C>::TOGETHER + 1) * C::HEAD_DIM);
    launch(blocks, C::WARPS * 32, Shared<C>::BYTES + attention, true, [&] { Step<C>(a).run(); });
    for (int i = 0; i < count; i++) as<int>(positions)[i] = next[i];
    std::fwrite(logits.data(), 4, logits.size(), out);
  }
  std::fclose(out);
}
