// Products of rows with one or several packed matrices, shared among the team's threads.
#pragma once

#include <memory>

#include "runtime.h"

namespace lattice {
namespace {

// A matrix and how to multiply with it. `owner` keeps its memory.
struct Matrix {
  Packed p;
  int digits = 0;  // of the activations, 8 bits each; 0: they stay float32, as those of dense matrices always do
  std::vector<float> bias;  // one per row of the matrix, or none
  std::shared_ptr<const void> owner;
};

// A matrix and the column of the result where its products go.
struct Factor {
  const Matrix* matrix;
  int64_t column;
};

// Rows of x -> what a product reads, in this thread's scratch memory.
Operand prepare(const Loops& l, const Packed& p, const float* x, int64_t rows, int digits) {
  Operand operand;
  operand.rows = rows;
  operand.values = x;
  if (p.dense()) return operand;
  float* sums = scratch<float, 1>(rows * p.groups());
  operand.sums = sums;
  const int64_t columns = p.columns;
  if (digits == 0) {
    each(rows, 8, [&](int64_t r) { l.sum_groups(x + r * columns, columns, p.group, sums + r * p.groups()); });
    return operand;
  }
  int8_t* codes = scratch<int8_t, 2>(digits * rows * columns);
  int8_t* low = digits == 2 ? codes + rows * columns : nullptr;
  float* scales = scratch<float, 3>(rows * columns / 32);
  operand.values = nullptr, operand.codes = codes, operand.low = low, operand.scales = scales;
  each(rows, 8, [&](int64_t r) {
    l.quantize_row(
        x + r * columns, columns, p.group, codes + r * columns, low == nullptr ? low : low + r * columns,
        scales + r * columns / 32, sums + r * p.groups());
  });
  return operand;
}

// Blocks of one chunk: four chunks a thread, in steps of the widest tile; everything at once where that is little.
int64_t blocks_per_chunk(const Packed& p, int64_t rows) {
  if (rows * p.rows * p.columns < 100'000) return p.blocks();
  const int64_t share = p.blocks() / (4 * team->threads());
  return share < 4 ? 4 : share / 4 * 4;
}

// Whether two matrices of equally many columns read the same operand.
bool same_operand(const Matrix& a, const Matrix& b) {
  if (a.p.dense() || b.p.dense()) return a.p.dense() == b.p.dense();
  return a.p.group == b.p.group && a.digits == b.digits;
}

// out[r][column + n] = x[r] . row n of the matrix (+ its bias), for up to eight matrices of the same columns;
// rows of `out` lie `stride` floats apart.
void multiply(const Factor* factors, int count, const float* x, int64_t rows, float* out, int64_t stride) {
  const Loops& l = best();
  const FlushDenormals flush;
  for (int first = 0, last; first < count; first = last) {
    const Matrix& matrix = *factors[first].matrix;
    for (last = first + 1; last < count && same_operand(matrix, *factors[last].matrix);) ++last;
    const Operand operand = prepare(l, matrix.p, x, rows, matrix.digits);
    int64_t steps[8], ends[8], chunks = 0;
    for (int i = first; i < last; ++i) {
      const Packed& p = factors[i].matrix->p;
      steps[i] = blocks_per_chunk(p, rows);
      ends[i] = chunks += (p.blocks() + steps[i] - 1) / steps[i];
    }
    team->run(chunks, [&](int64_t chunk) {
      int i = first;
      while (chunk >= ends[i]) ++i;
      const Packed& p = factors[i].matrix->p;
      const int64_t begin = (chunk - (i == first ? 0 : ends[i - 1])) * steps[i], blocks = p.blocks();
      l.product(p, operand, begin, begin + steps[i] < blocks ? begin + steps[i] : blocks, out + factors[i].column, stride);
    });
  }
  for (int i = 0; i < count; ++i) {
    const std::vector<float>& bias = factors[i].matrix->bias;
    if (bias.empty()) continue;
    each(rows, 8, [&](int64_t r) { l.add(bias.data(), int64_t(bias.size()), out + r * stride + factors[i].column); });
  }
}

void multiply(const Matrix& matrix, const float* x, int64_t rows, float* out) {
  const Factor factor{&matrix, 0};
  multiply(&factor, 1, x, rows, out, matrix.p.rows);
}

}  // namespace
}  // namespace lattice
