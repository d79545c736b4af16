// All loops, compiled once per instruction set, and the table to call them by.
//
// `loops(isa)` gives plain function pointers; nothing here knows threads, mlx or Python. Needs GCC 11 or
// clang 14 (their vector types), and -ffp-contract=fast for the speed of fused multiply-add.
#pragma once

#include <cstdint>
#include <cstring>

#include "delta_loops.h"
#include "isa.h"
#include "packed.h"

namespace lattice {

// The activations of a product: `rows` x p.columns, either exact (`values`) or rounded to whole multiples of a scale
// per 32 columns (`scales`), in one or two digits: code, or 128 * code + low. `sums`: rows x p.groups(). All dense.
struct Operand {
  int64_t rows = 0;
  const int8_t *codes = nullptr, *low = nullptr;
  const float* scales = nullptr;
  const float* values = nullptr;
  const float* sums = nullptr;
};

// Queries (B, H, L, D), keys and values (B, KV, S, D) with KV dividing H. Strides count elements, of batch,
// head and row (and key, for masks); the last dimension is dense.
struct Attention {
  static constexpr int64_t kSplit = 128;  // keys of one unit of decode
  int64_t B, H, KV, L, S, D;
  const float* q;
  const void *k, *v;
  bool half = false;  // keys and values are float16
  int64_t q_strides[3], k_strides[3], v_strides[3], out_strides[3];
  float scale;
  bool causal = false;  // row i sees keys 0 .. S - L + i
  const void* mask = nullptr;
  bool additive = false;  // mask: float32 to add, or bytes, zero for never
  int64_t mask_strides[4] = {0, 0, 0, 0};
  float* out;
  int64_t unit_rows = 1;  // rows of one unit of prefill

  bool few() const { return L == 1; }
  int64_t splits() const { return (S + kSplit - 1) / kSplit; }
  int64_t units() const { return few() ? B * KV * splits() : B * KV * ((L + unit_rows - 1) / unit_rows); }
  void choose_unit_rows() {
    const int64_t rows = 96 / (H / KV);
    unit_rows = rows < 1 ? 1 : rows < L ? rows : L;
  }
  int64_t queries() const { return H / KV * (few() ? L : unit_rows); }
  int64_t work_floats() const { return queries() * (2 * D + 3 + 64) + 3 * 64 * D; }
  int64_t partial_floats() const { return few() ? units() * queries() * (D + 2) : 0; }
};

// Attention over keys and values in pages of kTokens tokens: of one head of one sequence, page i begins at
// pages[i] + offset. Keys first, turned: tiles of 64 tokens, D x 64 each; then values, kTokens x D. See pages.h.
//
// The queries are `rows` tokens of the `heads` query heads that share the key head; the first token is number
// `position` of its sequence and sees keys 0 .. position, the next one more. Heads lie `head_stride` floats
// apart, tokens `row_stride`; results likewise.
struct PagedAttention {
  static constexpr int64_t kTokens = 128, kTile = 64;
  const uint8_t* const* pages;
  int64_t offset, D;
  bool half = false;  // keys and values are float16
  const float* q;
  int64_t heads, head_stride, rows, row_stride, position;
  int64_t window = 0;  // only the last so many keys are seen; 0: all
  float scale;
  float* out;
  int64_t out_head_stride, out_row_stride;

  int64_t queries() const { return heads * rows; }
  int64_t first_page() const { return window > 0 && position >= window ? (position - window + 1) / kTokens : 0; }
  int64_t last_page() const { return (position + rows - 1) / kTokens; }
  int64_t part_floats() const { return queries() * (D + 2); }  // sums, maxima, totals
  int64_t work_floats() const { return queries() * (D + 1 + kTile) + 2 * part_floats(); }
};

struct Loops {
  void (*quantize_row)(
      const float* x, int64_t columns, int group, int8_t* codes, int8_t* low, float* scales, float* sums);
  void (*sum_groups)(const float* x, int64_t columns, int group, float* sums);
  void (*product)(const Packed& p, const Operand& x, int64_t first, int64_t last, float* out, int64_t stride);
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t size, float* out);
  void (*swiglu)(const float* gate, const float* x, int64_t size, float* out);
  void (*rope)(
      const float* x, const float* cosines, const float* sines, int64_t half, int64_t size, bool traditional,
      float* out);
  void (*attention_rows)(const Attention& t, int64_t unit, float* work);
  void (*attention_split)(const Attention& t, int64_t unit, float* partial, float* work);
  void (*attention_join)(const Attention& t, const float* partial);
  void (*paged_rows)(const PagedAttention& t, float* work);
  void (*paged_part)(const PagedAttention& t, int64_t page, float* part, float* work);
  void (*paged_join)(const PagedAttention& t, const float* parts, float* work);
  void (*store_keys)(
      const float* keys, int64_t row_stride, int64_t count, int64_t D, bool half, int64_t at, uint8_t* head);
  void (*store_values)(
      const float* values, int64_t row_stride, int64_t count, int64_t D, bool half, int64_t at, uint8_t* head);
  void (*add)(const float* x, int64_t size, float* out);
  void (*sigmoid_gate)(const float* gate, int64_t size, float* out);
};

#define LATTICE_TABLE \
  inline const Loops table = { \
      quantize_row, sum_groups, product, rms_norm, swiglu, rope, attention_rows, attention_split, attention_join, \
      paged_rows, paged_part, paged_join, store_keys, store_values, add, sigmoid_gate};

#define LATTICE_LEVEL 0
namespace plain {
#include "all.body.h"
}
#undef LATTICE_LEVEL

#if LATTICE_X86
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#define LATTICE_LEVEL 2
namespace avx2 {
#include "all.body.h"
}
#undef LATTICE_LEVEL
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avxvnni"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avxvnni")
#endif
#define LATTICE_LEVEL 2
#define LATTICE_VNNI 1
namespace avx_vnni {
#include "all.body.h"
}
#undef LATTICE_VNNI
#undef LATTICE_LEVEL
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push( \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,prefer-vector-width=512")
#endif
#define LATTICE_LEVEL 3
namespace avx512 {
#include "all.body.h"
}
#undef LATTICE_LEVEL
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#elif LATTICE_ARM
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif
#define LATTICE_LEVEL 1
namespace neon {
#include "all.body.h"
}
#undef LATTICE_LEVEL
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

// All loops of one instruction set.
struct Tables {
  const Loops& loops;
  const DeltaLoops& delta;
};

inline Tables tables(Isa isa) {
#if LATTICE_X86
  if (isa == Isa::avx512) return {avx512::table, avx512::delta_table};
  if (isa == Isa::avx_vnni) return {avx_vnni::table, avx_vnni::delta_table};
  if (isa == Isa::avx2) return {avx2::table, avx2::delta_table};
#elif LATTICE_ARM
  if (isa == Isa::neon) return {neon::table, neon::delta_table};
#endif
  return {plain::table, plain::delta_table};
}

inline const Loops& loops(Isa isa) { return tables(isa).loops; }
inline const DeltaLoops& delta_loops(Isa isa) { return tables(isa).delta; }

}  // namespace lattice
