// Products with quantized weights: out[row][n] = sum over k of x[row][k] * (code[n][k] * scale + bias).
//
// Within a group the sum is   scale * sum(x * code) + bias * sum(x),   so codes are used as they are.
// Dense weights: the plain sum. Fast: x is rounded to 8 bits with one scale per 32 columns, and sum(x * code) is a sum of whole numbers.
// Exact: x stays float32. A tile is R rows of x times B blocks of 16 weights' rows; all tiles do the same
// operations in the same order for each row, so a row's result does not depend on its company.
// Needs: vector.body.h, packed.h.

#if LATTICE_LEVEL == 3
constexpr int kTileRows = 4, kTileBlocks = 2, kOneRowBlocks = 4;  // 24 of 32 registers
#else
constexpr int kTileRows = 2, kTileBlocks = 1, kOneRowBlocks = 2;
#endif

// x (one row of `columns` floats) -> codes in -127..127, a scale per 32 columns, and per group the sum of what
// the codes stand for.
static void quantize_row(const float* x, int64_t columns, int group, int8_t* codes, float* scales, float* sums) {
  for (int64_t g = 0; g < columns / group; ++g) {
    float group_sum = 0;
    for (int64_t c = g * group; c < (g + 1) * group; c += 32) {
      vf top = {};
      for (int i = 0; i < 32; i += W) top = larger(top, (vf)((vi)load(x + c + i) & 0x7fffffff));
      const float peak = maximum(top);
      const vf inverse = splat(peak > 0 ? 127.0f / peak : 0.0f), magic = splat(12582912.0f);
      vi total = {};
      for (int i = 0; i < 32; i += W) {
        const vi code = to_int((load(x + c + i) * inverse + magic) - magic);
        for (int lane = 0; lane < W; ++lane) codes[c + i + lane] = int8_t(code[lane]);
        total += code;
      }
      scales[c / 32] = peak / 127.0f;
      int32_t whole = 0;
      for (int lane = 0; lane < W; ++lane) whole += total[lane];
      group_sum += float(whole) * scales[c / 32];
    }
    sums[g] = group_sum;
  }
}

static void sum_groups(const float* x, int64_t columns, int group, float* sums) {
  for (int64_t g = 0; g < columns / group; ++g) {
    vf total = {};
    for (int i = 0; i < group; i += W) total += load(x + g * group + i);
    sums[g] = sum(total);
  }
}

// The 16 * B results of R rows to `out`; columns beyond the matrix are left out.
template <int R, int B>
static inline void store_tile(const vf (&acc)[R][B][V], float* out, int64_t stride, int64_t room) {
  for (int r = 0; r < R; ++r) {
    for (int b = 0; b < B; ++b) {
      for (int v = 0; v < V; ++v) {
        const int64_t at = 16 * b + W * v;
        if (at + W <= room) {
          store(out + r * stride + at, acc[r][b][v]);
        } else {
          for (int lane = 0; lane < W && at + lane < room; ++lane) out[r * stride + at + lane] = acc[r][b][v][lane];
        }
      }
    }
  }
}

// Adds scale * part + bias * sum of one group to the accumulators.
template <int R, int B, ScaleKind K>
static inline void add_group(
    vf (&acc)[R][B][V], const vf (&part)[R][B][V], const Packed& p, const uint8_t* group, const float* const* sums,
    int64_t g) {
  for (int b = 0; b < B; ++b) {
    const uint8_t* tail = group + b * p.block_bytes() + p.code_bytes();
    for (int v = 0; v < V; ++v) {
      const vf scale = load_scales<K>(tail, W * v), bias = load_scales<K>(tail, 16 + W * v);
      for (int r = 0; r < R; ++r) {
        acc[r][b][v] = part[r][b][v] * scale + acc[r][b][v];
        acc[r][b][v] = bias * sums[r][g] + acc[r][b][v];
      }
    }
  }
}

template <int R, int B, int BITS, ScaleKind K>
static void fast_tile(const Packed& p, const Operand& x, int64_t row, int64_t block, float* out, int64_t stride) {
  constexpr int kLines = BITS;  // lines of 64 bytes per 32 columns
  const uint8_t* group = p.data + block * p.block_bytes();
  const int8_t* codes[R];
  const float *scales[R], *sums[R];
  for (int r = 0; r < R; ++r) {
    codes[r] = x.codes + (row + r) * p.columns;
    scales[r] = x.scales + (row + r) * (p.columns / 32);
    sums[r] = x.sums + (row + r) * p.groups();
  }
  const int64_t block_bytes = p.block_bytes(), group_bytes = p.group_bytes(), groups = p.groups();
  const int chunks = p.group / 32;
  vf acc[R][B][V] = {};
  for (int64_t g = 0; g < groups; ++g, group += group_bytes) {
    vf part[R][B][V] = {};
    for (int c = 0; c < chunks; ++c) {
      const uint8_t* lines = group + c * kLines * 64;
      const int64_t column = g * p.group + 32 * c;
      vi dot[R][B][V] = {};
      for (int l = 0; l < kLines; ++l) {
        vi weights[B][V];
        for (int b = 0; b < B; ++b) {
          for (int v = 0; v < V; ++v) weights[b][v] = load_bytes(lines + b * block_bytes + 64 * l + 4 * W * v);
        }
        for (int r = 0; r < R; ++r) {
          int32_t first, second = 0;
          std::memcpy(&first, codes[r] + column + (BITS == 4 ? 8 : 4) * l, 4);
          if (BITS == 4) std::memcpy(&second, codes[r] + column + 8 * l + 4, 4);
          for (int b = 0; b < B; ++b) {
            for (int v = 0; v < V; ++v) {
              if constexpr (BITS == 4) {
                dot[r][b][v] = dot4<false>(dot[r][b][v], weights[b][v] & 0x0f0f0f0f, first);
                dot[r][b][v] = dot4<false>(dot[r][b][v], (weights[b][v] >> 4) & 0x0f0f0f0f, second);
              } else {
                dot[r][b][v] = dot4<true>(dot[r][b][v], weights[b][v], first);
              }
            }
          }
        }
      }
      for (int r = 0; r < R; ++r) {
        const float scale = scales[r][column / 32];
        for (int b = 0; b < B; ++b) {
          for (int v = 0; v < V; ++v) part[r][b][v] = to_float(dot[r][b][v]) * scale + part[r][b][v];
        }
      }
    }
    add_group<R, B, K>(acc, part, p, group, sums, g);
  }
  store_tile<R, B>(acc, out + row * stride + 16 * block, stride, p.rows - 16 * block);
}

// Code number `shift / 4` of each lane's 32 bits, as a float.
static inline vf nibble(vi line, int shift) {
#if LATTICE_LEVEL == 3  // a look-up reads the low four bits of its index and does without masking and converting
  const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return (vf)_mm512_permutexvar_ps((__m512i)(line >> shift), values);
#else
  return to_float((line >> shift) & 15);
#endif
}

template <int R, int B, int BITS, ScaleKind K>
static void exact_tile(const Packed& p, const Operand& x, int64_t row, int64_t block, float* out, int64_t stride) {
  constexpr int kPerLine = BITS == 4 ? 8 : 4;
  const uint8_t* group = p.data + block * p.block_bytes();
  const float *values[R], *sums[R];
  for (int r = 0; r < R; ++r) {
    values[r] = x.values + (row + r) * p.columns;
    sums[r] = x.sums + (row + r) * p.groups();
  }
  const int64_t block_bytes = p.block_bytes(), group_bytes = p.group_bytes(), groups = p.groups();
  vf acc[R][B][V] = {};
  for (int64_t g = 0; g < groups; ++g, group += group_bytes) {
    vf part[R][B][V] = {};
    for (int l = 0; l < p.group / kPerLine; ++l) {
      const int64_t column = g * p.group + kPerLine * l;
      vi line[B][V];
      for (int b = 0; b < B; ++b) {
        for (int v = 0; v < V; ++v) line[b][v] = load_bytes(group + b * block_bytes + 64 * l + 4 * W * v);
      }
      for (int c = 0; c < kPerLine; ++c) {
        const int shift = BITS == 8 ? 8 * c : 8 * (c % 4) + 4 * (c / 4);
        vf weight[B][V];
        for (int b = 0; b < B; ++b) {
          for (int v = 0; v < V; ++v) {
            weight[b][v] = BITS == 4 ? nibble(line[b][v], shift) : to_float((line[b][v] >> shift) & 255);
          }
        }
        for (int r = 0; r < R; ++r) {
          const float value = values[r][column + c];
          for (int b = 0; b < B; ++b) {
            for (int v = 0; v < V; ++v) part[r][b][v] = weight[b][v] * value + part[r][b][v];
          }
        }
      }
    }
    add_group<R, B, K>(acc, part, p, group, sums, g);
  }
  store_tile<R, B>(acc, out + row * stride + 16 * block, stride, p.rows - 16 * block);
}

// BITS 0: the weights as they are.
template <int R, int B, ScaleKind K>
static void dense_tile(const Packed& p, const Operand& x, int64_t row, int64_t block, float* out, int64_t stride) {
  const uint8_t* weights = p.data + block * p.block_bytes();
  const float* values[R];
  for (int r = 0; r < R; ++r) values[r] = x.values + (row + r) * p.columns;
  const int64_t block_bytes = p.block_bytes(), columns = p.columns;
  constexpr int kBytes = 16 * (K == ScaleKind::float32 ? 4 : 2);
  vf acc[R][B][V] = {};
  for (int64_t c = 0; c < columns; ++c, weights += kBytes) {
    vf weight[B][V];
    for (int b = 0; b < B; ++b) {
      for (int v = 0; v < V; ++v) weight[b][v] = load_scales<K>(weights + b * block_bytes, W * v);
    }
    for (int r = 0; r < R; ++r) {
      const float value = values[r][c];
      for (int b = 0; b < B; ++b) {
        for (int v = 0; v < V; ++v) acc[r][b][v] = weight[b][v] * value + acc[r][b][v];
      }
    }
  }
  store_tile<R, B>(acc, out + row * stride + 16 * block, stride, p.rows - 16 * block);
}

template <bool EXACT, int R, int B, int BITS, ScaleKind K>
static inline void tile(const Packed& p, const Operand& x, int64_t row, int64_t block, float* out, int64_t stride) {
  if constexpr (BITS == 0) {
    dense_tile<R, B, K>(p, x, row, block, out, stride);
  } else if constexpr (EXACT) {
    exact_tile<R, B, BITS, K>(p, x, row, block, out, stride);
  } else {
    fast_tile<R, B, BITS, K>(p, x, row, block, out, stride);
  }
}

// The next `rows` rows, at most kTileRows of them, times B blocks.
template <bool EXACT, int B, int BITS, ScaleKind K>
static inline void rows_of_tile(
    const Packed& p, const Operand& x, int64_t row, int64_t block, float* out, int64_t stride, int64_t rows) {
  if (rows == 1) return tile<EXACT, 1, B, BITS, K>(p, x, row, block, out, stride);
  if constexpr (kTileRows > 2) {
    if (rows == 3) return tile<EXACT, 3, B, BITS, K>(p, x, row, block, out, stride);
    if (rows > 3) return tile<EXACT, 4, B, BITS, K>(p, x, row, block, out, stride);
  }
  tile<EXACT, 2, B, BITS, K>(p, x, row, block, out, stride);
}

// Blocks [first, last) of all rows. Weights of a tile's blocks stay in the first cache while rows pass by.
template <bool EXACT, int BITS, ScaleKind K>
static void blocks_of(const Packed& p, const Operand& x, int64_t first, int64_t last, float* out, int64_t stride) {
  int64_t block = first;
  if (x.rows == 1) {
    for (; block + kOneRowBlocks <= last; block += kOneRowBlocks) {
      tile<EXACT, 1, kOneRowBlocks, BITS, K>(p, x, 0, block, out, stride);
    }
  }
  for (; block + kTileBlocks <= last; block += kTileBlocks) {
    for (int64_t row = 0; row < x.rows; row += kTileRows) {
      rows_of_tile<EXACT, kTileBlocks, BITS, K>(p, x, row, block, out, stride, x.rows - row);
    }
  }
  for (; block < last; ++block) {
    for (int64_t row = 0; row < x.rows; row += kTileRows) {
      rows_of_tile<EXACT, 1, BITS, K>(p, x, row, block, out, stride, x.rows - row);
    }
  }
}

template <bool EXACT, int BITS>
static void by_kind(const Packed& p, const Operand& x, int64_t first, int64_t last, float* out, int64_t stride) {
  if (p.kind == ScaleKind::float16) return blocks_of<EXACT, BITS, ScaleKind::float16>(p, x, first, last, out, stride);
  if (p.kind == ScaleKind::bfloat16) return blocks_of<EXACT, BITS, ScaleKind::bfloat16>(p, x, first, last, out, stride);
  blocks_of<EXACT, BITS, ScaleKind::float32>(p, x, first, last, out, stride);
}

static void product(const Packed& p, const Operand& x, int64_t first, int64_t last, float* out, int64_t stride) {
  if (p.dense()) return by_kind<true, 0>(p, x, first, last, out, stride);
  if (x.values != nullptr) {
    return p.bits == 4 ? by_kind<true, 4>(p, x, first, last, out, stride)
                       : by_kind<true, 8>(p, x, first, last, out, stride);
  }
  return p.bits == 4 ? by_kind<false, 4>(p, x, first, last, out, stride)
                     : by_kind<false, 8>(p, x, first, last, out, stride);
}
