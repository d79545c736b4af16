// Quantized weights in our layout, and products and look-ups with them.
#pragma once

#include "multiply.h"
#include "pages.h"
#include "primitive.h"

namespace lattice {
namespace {

// A packed matrix. `store` may begin anywhere: the blocks start `shift` bytes in, on a cache line.
struct PackedWeight {
  Packed layout;
  array store;
  int64_t shift;

  Packed at(const uint8_t* base) const {
    Packed p = layout;
    p.data = base + shift;
    return p;
  }
};

ScaleKind kind_of(const array& a) {
  if (a.dtype() == mx::float16) return ScaleKind::float16;
  if (a.dtype() == mx::bfloat16) return ScaleKind::bfloat16;
  if (a.dtype() == mx::float32) return ScaleKind::float32;
  throw std::invalid_argument("pack: weights and scales are float16, bfloat16 or float32");
}

const uint8_t* bytes_of(const array& a) { return reinterpret_cast<const uint8_t*>(a.data<char>()); }

// Memory for a layout, filled by fill(target, first block, last block) on the team.
template <class Fill>
PackedWeight pack_with(const Packed& p, const Fill& fill) {
  const int64_t lines = p.bytes() / 64 + 2;
  if (lines > INT32_MAX) throw std::invalid_argument("pack: the matrix is too large");
  mx::allocator::Data memory = mx::allocator::malloc(size_t(64 * lines));
  auto* target = static_cast<uint8_t*>(memory.buffer().raw_ptr());
  prefer_huge_pages(target, 64 * lines);
  const int64_t shift = (64 - int64_t(reinterpret_cast<uintptr_t>(target) % 64)) % 64;
  team->run((p.blocks() + 15) / 16, [&](int64_t chunk) {
    fill(target + shift, 16 * chunk, 16 * chunk + 16 < p.blocks() ? 16 * chunk + 16 : p.blocks());
  });
  return {p, array(std::move(memory), {int(lines), 64}, mx::uint8), shift};
}

PackedWeight pack(array codes, array scales, array biases, int group, int bits) {
  if (codes.ndim() != 2 || scales.ndim() != 2 || biases.shape() != scales.shape() || codes.dtype() != mx::uint32 ||
      biases.dtype() != scales.dtype()) {
    throw std::invalid_argument("pack: codes (rows, words) in uint32, scales and biases (rows, groups) expected");
  }
  const bool known = bits == 2 || bits == 3 || bits == 4 || bits == 5 || bits == 6 || bits == 8;
  if (!known || (group != 32 && group != 64 && group != 128) ||
      int64_t(codes.shape(1)) * 32 != int64_t(scales.shape(1)) * group * bits) {
    throw std::invalid_argument("pack: no such layout");
  }
  Packed p;
  p.rows = codes.shape(0), p.columns = int64_t(scales.shape(1)) * group, p.group = group, p.bits = stored_bits(bits);
  p.kind = kind_of(scales);
  codes = mx::contiguous(codes, false, mx::Device::cpu);
  scales = mx::contiguous(scales, false, mx::Device::cpu);
  biases = mx::contiguous(biases, false, mx::Device::cpu);
  mx::eval(codes, scales, biases);
  return pack_with(p, [&](uint8_t* target, int64_t first, int64_t last) {
    pack_blocks(p, target, bytes_of(codes), bits, bytes_of(scales), bytes_of(biases), first, last);
  });
}

// A matrix that is not quantized, in the format it has.
PackedWeight pack_dense(array weight) {
  if (weight.ndim() != 2) throw std::invalid_argument("pack: a matrix (rows, columns) expected");
  Packed p;
  p.rows = weight.shape(0), p.columns = weight.shape(1), p.bits = 0, p.kind = kind_of(weight);
  weight = mx::contiguous(weight, false, mx::Device::cpu);
  mx::eval(weight);
  return pack_with(p, [&](uint8_t* target, int64_t first, int64_t last) {
    pack_dense_blocks(p, target, bytes_of(weight), first, last);
  });
}

class Product : public CpuPrimitive {
 public:
  Product(mx::Stream stream, Packed layout, int64_t shift, int digits)
      : CpuPrimitive(stream), layout_(layout), shift_(shift), digits_(digits) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    make_room(outputs[0]);
    if (outputs[0].size() == 0) return;
    Packed p = layout_;
    p.data = inputs[1].data<uint8_t>() + shift_;
    const int64_t rows = int64_t(inputs[0].size()) / p.columns;
    encoder().dispatch([p, x = View(inputs[0]), rows, digits = digits_, out = outputs[0].data<float>()] {
      multiply(Matrix{p, digits}, x.rows<0>(), rows, out);
    });
  }

  std::vector<mx::Shape> output_shapes(const std::vector<array>& inputs) override {
    mx::Shape shape = inputs[0].shape();
    shape.back() = int(layout_.rows);
    return {shape};
  }

  const char* name() const override { return "LatticeProduct"; }

 private:
  Packed layout_;
  int64_t shift_;
  int digits_;
};

// x times the transposed matrix, float32; activations of `digits` digits (multiply.h).
array product(const array& x, const PackedWeight& w, int digits, mx::StreamOrDevice s) {
  if (digits < 0 || digits > 2) throw std::invalid_argument("product: digits are 0 (exact), 1 or 2");
  if (x.ndim() < 1 || x.shape(-1) != w.layout.columns) {
    throw std::invalid_argument("product: x has " + std::to_string(x.ndim() ? x.shape(-1) : 0) +
        " columns, the weights have " + std::to_string(w.layout.columns));
  }
  mx::Shape shape = x.shape();
  shape.back() = int(w.layout.rows);
  return array(
      shape, mx::float32, std::make_shared<Product>(mx::to_stream(s), w.layout, w.shift, digits),
      {mx::astype(x, mx::float32, s), w.store});
}

class Rows : public CpuPrimitive {
 public:
  Rows(mx::Stream stream, Packed layout, int64_t shift) : CpuPrimitive(stream), layout_(layout), shift_(shift) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    make_room(outputs[0]);
    Packed p = layout_;
    p.data = inputs[1].data<uint8_t>() + shift_;
    const int64_t count = int64_t(inputs[0].size());
    encoder().dispatch([p, ids = inputs[0].data<int32_t>(), count, out = outputs[0].data<float>()] {
      team->run((count + 15) / 16, [&](int64_t chunk) {
        for (int64_t i = 16 * chunk; i < count && i < 16 * chunk + 16; ++i) {
          const int64_t row = ids[i] < 0 ? ids[i] + p.rows : ids[i];
          if (row >= 0 && row < p.rows) {
            unpack_row(p, row, out + i * p.columns);
          } else {
            std::memset(out + i * p.columns, 0, size_t(p.columns) * sizeof(float));
          }
        }
      });
    });
  }

  const char* name() const override { return "LatticeRows"; }

 private:
  Packed layout_;
  int64_t shift_;
};

// The weights of rows `ids` in float32, (..., columns).
array embed(const array& ids, const PackedWeight& w, mx::StreamOrDevice s) {
  mx::Shape shape = ids.shape();
  shape.push_back(int(w.layout.columns));
  return array(
      shape, mx::float32, std::make_shared<Rows>(mx::to_stream(s), w.layout, w.shift),
      {mx::contiguous(mx::astype(ids, mx::int32, s), false, s), w.store});
}

}  // namespace
}  // namespace lattice
