// The layout of quantized weights, and how they get into it from MLX's own.
//
// A matrix of `rows` (outputs) x `columns` (inputs) is cut into blocks of 16 rows, so that one vector holds one
// column of 16 outputs and no sum across a vector is ever needed. A block is one linear stream:
//
//   block 0 | block 1 | ...                       rows are filled up to 16 with zeros
//   block:   group 0 | group 1 | ...              a group is 32, 64 or 128 columns
//   group:   line 0 | line 1 | ... | 16 scales | 16 biases
//   line:    64 bytes = 16 lanes of 4 bytes, lane i belongs to row i of the block
//     8 bits: line l holds columns 4l .. 4l+3, one byte each
//     4 bits: line l holds columns 8l .. 8l+3 in the low nibbles, 8l+4 .. 8l+7 in the high ones
//
// The weight of a code is `code * scale + bias` (MLX's "affine"). Scales keep the format they came in, so
// packing loses nothing. Codes of 2 and 3 bits are stored in 4, of 5 and 6 in 8.
//
// Weights that are not quantized lie in the same blocks of 16 rows ("dense"), for any number of columns:
//
//   block:   column 0 | column 1 | ...            16 weights each, in the format they came in
#pragma once

#include <cstdint>
#include <cstring>

namespace lattice {

enum class ScaleKind { float16 = 0, bfloat16 = 1, float32 = 2 };

// float16 and bfloat16 -> float, in plain C++.
inline float bfloat16_value(uint16_t half) {
  const uint32_t bits = uint32_t(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline float float16_value(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16, exponent = (half >> 10) & 31, fraction = half & 1023;
  uint32_t bits;
  if (exponent == 31) {
    bits = sign | 0x7f800000u | (fraction << 13);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (fraction << 13);
  } else {
    const float magnitude = float(fraction) * 5.9604644775390625e-8f;  // 2^-24
    std::memcpy(&bits, &magnitude, 4);
    bits |= sign;
  }
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// float -> float16, to the nearest, ties to even.
inline uint16_t float16_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00);   // not a number
  if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);  // from 65520 on: infinity
  if (magnitude < 0x38800000) {  // below 2^-14 the result is a whole number of 2^-24: adding 0.5 rounds to it
    float shifted;
    std::memcpy(&shifted, &magnitude, 4);
    shifted += 0.5f;
    uint32_t whole;
    std::memcpy(&whole, &shifted, 4);
    return uint16_t(sign | (whole - 0x3f000000));
  }
  const uint32_t odd = magnitude >> 13 & 1;
  return uint16_t(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}

inline int stored_bits(int bits) { return bits <= 4 ? 4 : 8; }

struct Packed {
  int64_t rows = 0, columns = 0;
  int bits = 4;  // stored: 4 or 8; 0: dense
  int group = 32;
  ScaleKind kind = ScaleKind::float16;  // of scales and biases; of the weights themselves when dense
  const uint8_t* data = nullptr;  // 64-byte aligned

  bool dense() const { return bits == 0; }
  int64_t blocks() const { return (rows + 15) / 16; }
  int64_t scale_bytes() const { return kind == ScaleKind::float32 ? 4 : 2; }
  int64_t code_bytes() const { return 2 * int64_t(group) * bits; }  // of 16 rows x one group
  int64_t group_bytes() const { return code_bytes() + 32 * scale_bytes(); }
  int64_t groups() const { return dense() ? 0 : columns / group; }
  int64_t block_bytes() const { return dense() ? 16 * columns * scale_bytes() : groups() * group_bytes(); }
  int64_t bytes() const { return blocks() * block_bytes(); }
};

inline float read_scale(const uint8_t* scales, int64_t i, ScaleKind kind) {
  if (kind == ScaleKind::float32) {
    float value;
    std::memcpy(&value, scales + 4 * i, 4);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, scales + 2 * i, 2);
  return kind == ScaleKind::float16 ? float16_value(half) : bfloat16_value(half);
}

// One code of a row as MLX stores it: a little-endian stream of `bits` per code.
inline unsigned mlx_code(const uint8_t* row, int64_t column, int bits) {
  const int64_t at = column * bits;
  unsigned two = row[at >> 3];
  if ((at & 7) + bits > 8) two |= unsigned(row[(at >> 3) + 1]) << 8;
  return (two >> (at & 7)) & ((1u << bits) - 1);
}

// The codes of one group of a row to its lane of the group's lines: what pack_blocks does for any number of bits,
// by whole words for 4 and 8.
inline void pack_codes(const Packed& p, uint8_t* lane_data, const uint8_t* row_codes, int64_t first, int mlx_bits) {
  if (mlx_bits == 8) {
    for (int64_t c = 0; c < p.group; c += 4) std::memcpy(lane_data + 16 * c, row_codes + first + c, 4);
  } else if (mlx_bits == 4) {
    for (int64_t c = 0; c < p.group; c += 8) {  // MLX's word holds columns 0, 1, .. 7 from its low end
      uint32_t word;
      std::memcpy(&word, row_codes + (first + c) / 2, 4);
      const uint32_t low = word & 0xffff, high = word >> 16;
      const auto spread = [](uint32_t x) { return (x & 15) | (x & 0xf0) << 4 | (x & 0xf00) << 8 | (x & 0xf000) << 12; };
      word = spread(low) | spread(high) << 4;
      std::memcpy(lane_data + 8 * c, &word, 4);
    }
  } else {
    const int64_t per_line = p.bits == 4 ? 8 : 4;
    for (int64_t c = 0; c < p.group; ++c) {
      const unsigned code = mlx_code(row_codes, first + c, mlx_bits);
      uint8_t& byte = lane_data[64 * (c / per_line) + c % 4];
      byte = uint8_t(byte | (p.bits == 4 && c % 8 >= 4 ? code << 4 : code));
    }
  }
}

// Fills blocks [first, last) of `target` from MLX's arrays: codes (rows, columns * bits / 8 bytes), scales and
// biases (rows, groups) in `p.kind`. Every byte of the blocks is written.
inline void pack_blocks(
    const Packed& p, uint8_t* target, const uint8_t* codes, int mlx_bits, const uint8_t* scales,
    const uint8_t* biases, int64_t first, int64_t last) {
  const int64_t row_bytes = p.columns * mlx_bits / 8, size = p.scale_bytes();
  for (int64_t block = first; block < last; ++block) {
    uint8_t* block_data = target + block * p.block_bytes();
    std::memset(block_data, 0, size_t(p.block_bytes()));
    for (int64_t lane = 0; lane < 16 && 16 * block + lane < p.rows; ++lane) {
      const int64_t row = 16 * block + lane;
      const uint8_t* row_codes = codes + row * row_bytes;
      for (int64_t g = 0; g < p.groups(); ++g) {
        uint8_t* group_data = block_data + g * p.group_bytes();
        pack_codes(p, group_data + 4 * lane, row_codes, g * p.group, mlx_bits);
        uint8_t* tail = group_data + p.code_bytes();
        std::memcpy(tail + size * lane, scales + size * (row * p.groups() + g), size_t(size));
        std::memcpy(tail + size * (16 + lane), biases + size * (row * p.groups() + g), size_t(size));
      }
    }
  }
}

// Fills blocks [first, last) of `target` from a dense matrix (rows, columns) in `p.kind`.
inline void pack_dense_blocks(const Packed& p, uint8_t* target, const uint8_t* weights, int64_t first, int64_t last) {
  const int64_t size = p.scale_bytes();
  for (int64_t block = first; block < last; ++block) {
    uint8_t* block_data = target + block * p.block_bytes();
    for (int64_t lane = 0; lane < 16; ++lane) {
      const uint8_t* row = weights + (16 * block + lane) * p.columns * size;
      for (int64_t c = 0; c < p.columns; ++c) {
        uint8_t* place = block_data + (16 * c + lane) * size;
        if (16 * block + lane < p.rows) {
          std::memcpy(place, row + c * size, size_t(size));
        } else {
          std::memset(place, 0, size_t(size));
        }
      }
    }
  }
}

// The weights of one row in float32, as an embedding wants them.
inline void unpack_row(const Packed& p, int64_t row, float* out) {
  const uint8_t* block_data = p.data + row / 16 * p.block_bytes();
  const int64_t lane = row % 16, per_line = p.bits == 4 ? 8 : 4;
  if (p.dense()) {
    for (int64_t c = 0; c < p.columns; ++c) out[c] = read_scale(block_data, 16 * c + lane, p.kind);
    return;
  }
  for (int64_t g = 0; g < p.groups(); ++g) {
    const uint8_t* group_data = block_data + g * p.group_bytes();
    const float scale = read_scale(group_data + p.code_bytes(), lane, p.kind);
    const float bias = read_scale(group_data + p.code_bytes(), 16 + lane, p.kind);
    for (int64_t c = 0; c < p.group; ++c) {
      const unsigned byte = group_data[64 * (c / per_line) + 4 * lane + c % 4];
      const unsigned code = p.bits == 8 ? byte : (c % 8 >= 4 ? byte >> 4 : byte & 15);
      out[g * p.group + c] = float(code) * scale + bias;
    }
  }
}

}  // namespace lattice
