// Products with quantized weights: out[row][n] = sum over k of x[row][k] * (code[n][k] * scale + bias).
//
// Within a group the sum is   scale * sum(x * code) + bias * sum(x),   so codes are used as they are.
// Dense weights: the plain sum. Fast: x is rounded to 8 bits (15 in two digits) with one scale per 32 columns, and
// sum(x * code) is a sum of whole numbers. Exact: x stays float32. A tile is R rows of x times a block of 16 weights' rows; all tiles do
// the same operations in the same order for each row, so a row's result does not depend on its company.
// Needs: vector.body.h, packed.h.

#if LATTICE_LEVEL == 3
constexpr int kTileRows = 4;
#else
constexpr int kTileRows = 2;
#endif

// x (one row of `columns` floats) -> whole numbers, a scale per 32 columns, and per group the sum of what the
// numbers stand for. Numbers are one digit, -127..127, or with `low` two: 128 * code + low, -16256..16256.
static void quantize_row(
    const float* x, int64_t columns, int group, int8_t* codes, int8_t* low, float* scales, float* sums) {
  const float most = low != nullptr ? 127 * 128 : 127;
  for (int64_t g = 0; g < columns / group; ++g) {
    float group_sum = 0;
    for (int64_t c = g * group; c < (g + 1) * group; c += 32) {
      vf top = {};
      for (int i = 0; i < 32; i += W) top = larger(top, (vf)((vi)load(x + c + i) & 0x7fffffff));
      const float peak = maximum(top);
      const vf inverse = splat(peak > 0 ? most / peak : 0.0f), magic = splat(12582912.0f);
      vi total = {};
      for (int i = 0; i < 32; i += W) {
        const vi number = to_int((load(x + c + i) * inverse + magic) - magic);
        const vi high = low != nullptr ? (number + 64) >> 7 : number;
        for (int lane = 0; lane < W; ++lane) codes[c + i + lane] = int8_t(high[lane]);
        if (low != nullptr) {
          const vi rest = number - (high << 7);
          for (int lane = 0; lane < W; ++lane) low[c + i + lane] = int8_t(rest[lane]);
        }
        total += number;
      }
      scales[c / 32] = peak / most;
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

// The 16 results of R rows to `out`; columns beyond the matrix are left out.
template <int R>
static inline void store_tile(const vf (&acc)[R][V], float* out, int64_t stride, int64_t room) {
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      const int64_t at = W * v;
      if (at + W <= room) {
        store(out + r * stride + at, acc[r][v]);
      } else {
        for (int lane = 0; lane < W && at + lane < room; ++lane) out[r * stride + at + lane] = acc[r][v][lane];
      }
    }
  }
}

// Adds scale * part + bias * sum of one group to the accumulators.
template <int R, ScaleKind K>
static inline void add_group(
    vf (&acc)[R][V], const vf (&part)[R][V], const uint8_t* scales, const float* const* sums, int64_t g) {
  for (int v = 0; v < V; ++v) {
    const vf scale = load_scales<K>(scales, W * v), bias = load_scales<K>(scales, 16 + W * v);
    for (int r = 0; r < R; ++r) {
      acc[r][v] = part[r][v] * scale + acc[r][v];
      acc[r][v] = bias * sums[r][g] + acc[r][v];
    }
  }
}

// R rows of numbers of DIGITS digits times B blocks.
template <int R, int B, int DIGITS, int BITS, ScaleKind K>
static void fast_tile(const Packed& p, const Operand& x, int64_t row, int64_t block, float* out, int64_t stride) {
  constexpr int kLines = BITS;  // lines of 64 bytes per 32 columns
  // One row has few sums, and each waits for its last addition: it gets kSums of them. Whole numbers, any order.
  constexpr int kSums = R == 1 ? 4 / DIGITS : 1;
  const uint8_t* group = p.data + block * p.block_bytes();
  const int8_t* codes[DIGITS][R];
  const float *scales[R], *sums[R];
  for (int r = 0; r < R; ++r) {
    for (int d = 0; d < DIGITS; ++d) codes[d][r] = (d == 0 ? x.codes : x.low) + (row + r) * p.columns;
    scales[r] = x.scales + (row + r) * (p.columns / 32);
    sums[r] = x.sums + (row + r) * p.groups();
  }
  const int64_t block_bytes = p.block_bytes(), group_bytes = p.group_bytes(), code_bytes = p.code_bytes();
  const int64_t groups = p.groups(), chunks = p.group / 32;
  vf acc[B][R][V] = {};
  for (int64_t g = 0; g < groups; ++g, group += group_bytes) {
    vf part[B][R][V] = {};
    for (int64_t c = 0; c < chunks; ++c) {
      const uint8_t* lines = group + c * kLines * 64;
      const int64_t column = g * p.group + 32 * c;
      vi dot[kSums][DIGITS][B][R][V] = {};
      for (int l = 0; l < kLines; ++l) {
        const int even = (BITS == 4 ? 2 * l : l) % kSums, odd = (2 * l + 1) % kSums;
        vi weights[B][V];
        for (int b = 0; b < B; ++b) {
          for (int v = 0; v < V; ++v) weights[b][v] = load_bytes(lines + b * block_bytes + 64 * l + 4 * W * v);
        }
        for (int r = 0; r < R; ++r) {
          for (int d = 0; d < DIGITS; ++d) {
            int32_t first, second = 0;
            std::memcpy(&first, codes[d][r] + column + (BITS == 4 ? 8 : 4) * l, 4);
            if (BITS == 4) std::memcpy(&second, codes[d][r] + column + 8 * l + 4, 4);
            for (int b = 0; b < B; ++b) {
              for (int v = 0; v < V; ++v) {
                vi &low = dot[even][d][b][r][v], &high = dot[odd][d][b][r][v];
                if constexpr (BITS == 4) {
                  low = dot4<false>(low, weights[b][v] & 0x0f0f0f0f, first);
                  high = dot4<false>(high, (weights[b][v] >> 4) & 0x0f0f0f0f, second);
                } else {
                  low = dot4<true>(low, weights[b][v], first);
                }
              }
            }
          }
        }
      }
      for (int b = 0; b < B; ++b) {
        for (int r = 0; r < R; ++r) {
          for (int v = 0; v < V; ++v) {
            vi total = {};
            for (int d = 0; d < DIGITS; ++d) {
              vi digit = dot[0][d][b][r][v];
              for (int s = 1; s < kSums; ++s) digit += dot[s][d][b][r][v];
              total = (total << 7) + digit;
            }
            part[b][r][v] = to_float(total) * scales[r][column / 32] + part[b][r][v];
          }
        }
      }
    }
    for (int b = 0; b < B; ++b) add_group<R, K>(acc[b], part[b], group + b * block_bytes + code_bytes, sums, g);
  }
  for (int b = 0; b < B; ++b) {
    store_tile<R>(acc[b], out + row * stride + 16 * (block + b), stride, p.rows - 16 * (block + b));
  }
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

// A weight of a line: column c of the 8 (4 bits) or 4 (8 bits) it holds.
template <int BITS>
static inline vf line_weight(vi line, int c) {
  return BITS == 4 ? nibble(line, 8 * (c % 4) + 4 * (c / 4)) : to_float((line >> (8 * c)) & 255);
}

// The sum of a group is that of its quarters, one added after the other: a single sum would wait for its last
// addition at every column. With one row the quarters are summed side by side, with more one by one.
template <int R, int BITS, ScaleKind K>
static void exact_tile(const Packed& p, const Operand& x, int64_t row, int64_t block, float* out, int64_t stride) {
  constexpr int kPerLine = BITS == 4 ? 8 : 4, kSums = R == 1 ? 4 : 1;
  const uint8_t* group = p.data + block * p.block_bytes();
  const float *values[R], *sums[R];
  for (int r = 0; r < R; ++r) {
    values[r] = x.values + (row + r) * p.columns;
    sums[r] = x.sums + (row + r) * p.groups();
  }
  const int64_t group_bytes = p.group_bytes(), code_bytes = p.code_bytes(), groups = p.groups();
  const int lines = p.group / 4 / kPerLine;  // of a quarter
  vf acc[R][V] = {};
  for (int64_t g = 0; g < groups; ++g, group += group_bytes) {
    vf total[R][V] = {};
    for (int first = 0; first < 4; first += kSums) {
      vf part[kSums][R][V] = {};
      for (int l = 0; l < lines; ++l) {
        for (int c = 0; c < kPerLine; ++c) {
          for (int s = 0; s < kSums; ++s) {
            const int at = (first + s) * lines + l;
            const int64_t column = g * p.group + kPerLine * at + c;
            for (int v = 0; v < V; ++v) {
              const vf weight = line_weight<BITS>(load_bytes(group + 64 * at + 4 * W * v), c);
              for (int r = 0; r < R; ++r) part[s][r][v] = weight * values[r][column] + part[s][r][v];
            }
          }
        }
      }
      for (int s = 0; s < kSums; ++s) {
        for (int r = 0; r < R; ++r) {
          for (int v = 0; v < V; ++v) total[r][v] += part[s][r][v];
        }
      }
    }
    add_group<R, K>(acc, total, group + code_bytes, sums, g);
  }
  store_tile<R>(acc, out + row * stride + 16 * block, stride, p.rows - 16 * block);
}

// BITS 0: the weights as they are, R rows times B blocks, columns [first, last) of them; further ones are added to what
// `out` has. 64 columns have four sums, of those with the same c % 4, added one after the other (one row reads its weights
// in order so); what is left of the last has one.
template <int R, int B, ScaleKind K>
static void dense_tile(const Packed& p, const Operand& x, int64_t row, int64_t block, int64_t first, int64_t last,
                       float* out, int64_t stride) {
  constexpr int kBytes = 16 * (K == ScaleKind::float32 ? 4 : 2), kSums = R == 1 ? 4 : 1;
  const float* values[R];
  for (int r = 0; r < R; ++r) values[r] = x.values + (row + r) * p.columns;
  const uint8_t* weights[B];
  for (int b = 0; b < B; ++b) weights[b] = p.data + (block + b) * p.block_bytes();
  vf acc[B][R][V] = {};
  if (first > 0) {
    for (int b = 0; b < B; ++b) {
      for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) acc[b][r][v] = load(out + (row + r) * stride + 16 * (block + b) + W * v);
      }
    }
  }
  int64_t c = first;
  for (; c + 64 <= last; c += 64) {
    for (int q = 0; q < 4; q += kSums) {
      vf part[kSums][B][R][V] = {};
      for (int i = 0; i < 16; ++i) {
        for (int s = 0; s < kSums; ++s) {
          const int64_t at = c + 4 * i + q + s;
          for (int b = 0; b < B; ++b) {
            for (int v = 0; v < V; ++v) {
              const vf weight = load_scales<K>(weights[b] + at * kBytes, W * v);
              for (int r = 0; r < R; ++r) part[s][b][r][v] = fused(weight, splat(values[r][at]), part[s][b][r][v]);
            }
          }
        }
      }
      for (int s = 0; s < kSums; ++s) {
        for (int b = 0; b < B; ++b) {
          for (int r = 0; r < R; ++r) {
            for (int v = 0; v < V; ++v) acc[b][r][v] += part[s][b][r][v];
          }
        }
      }
    }
  }
  for (; c < last; ++c) {
    for (int b = 0; b < B; ++b) {
      for (int v = 0; v < V; ++v) {
        const vf weight = load_scales<K>(weights[b] + c * kBytes, W * v);
        for (int r = 0; r < R; ++r) acc[b][r][v] = fused(weight, splat(values[r][c]), acc[b][r][v]);
      }
    }
  }
  for (int b = 0; b < B; ++b) {
    store_tile<R>(acc[b], out + row * stride + 16 * (block + b), stride, p.rows - 16 * (block + b));
  }
}

// Two blocks, all rows, as many columns at a time as stay in the first cache.
template <ScaleKind K>
static void dense_pair(const Packed& p, const Operand& x, int64_t block, float* out, int64_t stride) {
  const bool whole = 16 * (block + 2) <= p.rows;  // else `out` has no room for sums of columns to come
  const int64_t step = whole ? 256 : p.columns;
  for (int64_t first = 0; first < p.columns; first += step) {
    const int64_t last = first + step < p.columns ? first + step : p.columns;
    int64_t row = 0;
    for (; row + 6 <= x.rows; row += 6) dense_tile<6, 2, K>(p, x, row, block, first, last, out, stride);
    for (; row + 4 <= x.rows; row += 4) dense_tile<4, 2, K>(p, x, row, block, first, last, out, stride);
    for (; row < x.rows; ++row) dense_tile<1, 2, K>(p, x, row, block, first, last, out, stride);
  }
}

// DIGITS 0: exact.
template <int DIGITS, int R, int BITS, ScaleKind K>
static inline void tile(const Packed& p, const Operand& x, int64_t row, int64_t block, float* out, int64_t stride) {
  if constexpr (BITS == 0) {
    dense_tile<R, 1, K>(p, x, row, block, 0, p.columns, out, stride);
  } else if constexpr (DIGITS == 0) {
    exact_tile<R, BITS, K>(p, x, row, block, out, stride);
  } else {
    fast_tile<R, 1, DIGITS, BITS, K>(p, x, row, block, out, stride);
  }
}

// Block `block` times as many of the next `rows` rows as a tile takes, a power of two; returns how many.
template <int DIGITS, int BITS, ScaleKind K>
static inline int64_t some_rows(
    const Packed& p, const Operand& x, int64_t row, int64_t block, float* out, int64_t stride, int64_t rows) {
  if constexpr (kTileRows >= 4) {
    if (rows >= 4) return tile<DIGITS, 4, BITS, K>(p, x, row, block, out, stride), 4;
  }
  if (rows >= 2) return tile<DIGITS, 2, BITS, K>(p, x, row, block, out, stride), 2;
  return tile<DIGITS, 1, BITS, K>(p, x, row, block, out, stride), 1;
}

// Blocks [first, last) of all rows. A block stays in the first cache while rows pass by; and few rows wait for
// memory, where one stream of blocks is what processors fetch ahead best.
template <int DIGITS, int BITS, ScaleKind K>
static void blocks_of(const Packed& p, const Operand& x, int64_t first, int64_t last, float* out, int64_t stride) {
  int64_t block = first;
  if constexpr (DIGITS == 1 && kTileRows >= 4) {
    for (; x.rows >= 16 && block + 2 <= last; block += 2) {  // in registers two blocks share what a row brings
      int64_t row = 0;
      for (; row + 4 <= x.rows; row += 4) fast_tile<4, 2, 1, BITS, K>(p, x, row, block, out, stride);
      for (; row < x.rows; ++row) fast_tile<1, 2, 1, BITS, K>(p, x, row, block, out, stride);
    }
  }
  if constexpr (BITS == 0 && kTileRows >= 4) {
    for (; x.rows >= 4 && block + 2 <= last; block += 2) dense_pair<K>(p, x, block, out, stride);
  }
  if constexpr (DIGITS == 2 && kTileRows >= 4) {
    for (; x.rows >= 8 && block + 2 <= last; block += 2) {
      int64_t row = 0;
      for (; row + 2 <= x.rows; row += 2) fast_tile<2, 2, 2, BITS, K>(p, x, row, block, out, stride);
      for (; row < x.rows; ++row) fast_tile<1, 2, 2, BITS, K>(p, x, row, block, out, stride);
    }
  }
  for (; block < last; ++block) {
    for (int64_t row = 0; row < x.rows;) row += some_rows<DIGITS, BITS, K>(p, x, row, block, out, stride, x.rows - row);
  }
}

template <int DIGITS, int BITS>
static void by_kind(const Packed& p, const Operand& x, int64_t first, int64_t last, float* out, int64_t stride) {
  if (p.kind == ScaleKind::float16) return blocks_of<DIGITS, BITS, ScaleKind::float16>(p, x, first, last, out, stride);
  if (p.kind == ScaleKind::bfloat16) return blocks_of<DIGITS, BITS, ScaleKind::bfloat16>(p, x, first, last, out, stride);
  blocks_of<DIGITS, BITS, ScaleKind::float32>(p, x, first, last, out, stride);
}

static void product(const Packed& p, const Operand& x, int64_t first, int64_t last, float* out, int64_t stride) {
  if (p.dense()) return by_kind<0, 0>(p, x, first, last, out, stride);
  if (x.values != nullptr) {
    return p.bits == 4 ? by_kind<0, 4>(p, x, first, last, out, stride) : by_kind<0, 8>(p, x, first, last, out, stride);
  }
  if (x.low != nullptr) {
    return p.bits == 4 ? by_kind<2, 4>(p, x, first, last, out, stride) : by_kind<2, 8>(p, x, first, last, out, stride);
  }
  return p.bits == 4 ? by_kind<1, 4>(p, x, first, last, out, stride) : by_kind<1, 8>(p, x, first, last, out, stride);
}
