// Every loop of lattice_cli/kernels/native against a plain double-precision computation, on random shapes, in
// every instruction set this processor (or the emulator) has; and the thread team. No mlx, no Python.
//
//   loops_test [shapes per loop]      exit status 0: all within tolerance; each failure is one line on stdout

#include <atomic>
#include <memory>

#include "check.h"
#include "team.h"

// Quantized matrices.

struct Matrix {
  Packed p;
  std::unique_ptr<uint8_t, void (*)(void*)> store{nullptr, std::free};
  std::vector<double> weights;  // rows x columns
};

static Matrix make_matrix(int rows, int columns, int bits, int group, ScaleKind kind) {
  Matrix m;
  m.p.rows = rows, m.p.columns = columns, m.p.bits = stored_bits(bits), m.p.group = group, m.p.kind = kind;
  const int64_t groups = m.p.groups(), row_bytes = int64_t(columns) * bits / 8;
  std::vector<uint8_t> codes(size_t(rows * row_bytes));
  for (uint8_t& byte : codes) byte = uint8_t(any(0, 255));
  std::vector<uint8_t> scales(size_t(rows * groups * m.p.scale_bytes())), biases(scales.size());
  for (int64_t i = 0; i < rows * groups; ++i) {
    for (auto* target : {&scales, &biases}) {
      const float value = target == &scales ? 0.02f * (1 + std::fabs(normal())) : -0.1f * float(1 << bits) / 16 * normal();
      const uint16_t half = to_float16(value);
      uint32_t whole;
      std::memcpy(&whole, &value, 4);
      const uint16_t brain = uint16_t(whole >> 16);
      const void* source = kind == ScaleKind::float32 ? (const void*)&value : kind == ScaleKind::float16 ? &half : &brain;
      std::memcpy(target->data() + i * m.p.scale_bytes(), source, size_t(m.p.scale_bytes()));
    }
  }
  m.weights.resize(size_t(rows) * size_t(columns));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t g = row * groups + c / group;
      unsigned code = 0;
      for (int bit = 0; bit < bits; ++bit) {
        const int64_t at = c * bits + bit;
        code |= unsigned(codes[size_t(row * row_bytes + at / 8)] >> (at % 8) & 1) << bit;
      }
      m.weights[size_t(row * columns + c)] =
          double(code) * read_scale(scales.data(), g, kind) + double(read_scale(biases.data(), g, kind));
    }
  }
  m.store.reset(static_cast<uint8_t*>(std::aligned_alloc(64, size_t((m.p.bytes() + 63) / 64 * 64))));
  m.p.data = m.store.get();
  pack_blocks(m.p, m.store.get(), codes.data(), bits, scales.data(), biases.data(), 0, m.p.blocks());
  return m;
}

struct Rounded {
  std::vector<int8_t> codes;
  std::vector<float> scales, sums;
};

static std::vector<float> multiply(const Loops& l, const Matrix& m, const std::vector<float>& x, int rows, int digits) {
  const int64_t columns = m.p.columns;
  Rounded rounded{
      std::vector<int8_t>(size_t(2 * rows * columns)), std::vector<float>(size_t(rows * columns / 32)),
      std::vector<float>(size_t(rows * m.p.groups()))};
  Operand operand;
  operand.rows = rows;
  operand.sums = rounded.sums.data();
  for (int row = 0; row < rows; ++row) {
    const float* source = x.data() + row * columns;
    float* sums = rounded.sums.data() + row * m.p.groups();
    if (digits == 0) {
      l.sum_groups(source, columns, m.p.group, sums);
    } else {
      l.quantize_row(
          source, columns, m.p.group, rounded.codes.data() + row * columns,
          digits == 2 ? rounded.codes.data() + (rows + row) * columns : nullptr,
          rounded.scales.data() + row * columns / 32, sums);
    }
  }
  if (digits == 0) operand.values = x.data();
  if (digits > 0) operand.codes = rounded.codes.data(), operand.scales = rounded.scales.data();
  if (digits == 2) operand.low = rounded.codes.data() + rows * columns;
  std::vector<float> out(size_t(rows * m.p.rows), NAN);
  const int64_t half = any(0, int(m.p.blocks()));
  l.product(m.p, operand, 0, half, out.data(), m.p.rows);
  l.product(m.p, operand, half, m.p.blocks(), out.data(), m.p.rows);
  return out;
}

static std::vector<double> reference(const Matrix& m, const std::vector<float>& x, int count) {
  std::vector<double> want;
  for (int r = 0; r < count; ++r) {
    for (int64_t n = 0; n < m.p.rows; ++n) {
      double total = 0;
      for (int64_t c = 0; c < m.p.columns; ++c) {
        total += double(x[size_t(r * m.p.columns + c)]) * m.weights[size_t(n * m.p.columns + c)];
      }
      want.push_back(total);
    }
  }
  return want;
}

// What x becomes in digits of 8 bits: nowhere further away than half a step of its 32 columns.
static std::vector<float> rounded(
    const Loops& l, const std::vector<float>& x, int columns, int group, int digits, const std::string& isa) {
  std::vector<float> values(x.size()), scales(size_t(columns / 32)), sums(size_t(columns / group));
  std::vector<int8_t> codes(static_cast<size_t>(columns)), low(codes.size());
  for (size_t at = 0; at < x.size(); at += size_t(columns)) {
    l.quantize_row(
        x.data() + at, columns, group, codes.data(), digits == 2 ? low.data() : nullptr, scales.data(), sums.data());
    for (size_t c = 0; c < size_t(columns); ++c) {
      values[at + c] = float(digits == 2 ? 128 * codes[c] + low[c] : codes[c]) * scales[c / 32];
      const float step = scales[c / 32] + 1e-6f * std::fabs(x[at + c]);
      expect(std::fabs(values[at + c] - x[at + c]) <= 0.5001f * step, isa + " rounding to whole numbers");
    }
  }
  return values;
}

static void test_products(const Loops& l, const std::string& isa, int shapes) {
  for (int i = 0; i < shapes; ++i) {
    const int group = 32 << any(0, 2), bits = std::vector<int>{2, 3, 4, 4, 4, 6, 8, 8}[size_t(any(0, 7))];
    const int rows = any(1, 70), columns = group * any(1, 5), count = std::vector<int>{1, 1, 2, 3, 4, 5, 8, 9, 13}[size_t(any(0, 8))];
    const auto kind = ScaleKind(any(0, 2));
    const Matrix m = make_matrix(rows, columns, bits, group, kind);
    const auto x = normals(int64_t(count) * columns);
    const std::string what = isa + " product " + std::to_string(bits) + " bits, group " + std::to_string(group) + ", " +
        std::to_string(count) + " x " + std::to_string(columns) + " x " + std::to_string(rows);
    for (const int digits : {0, 1, 2}) {
      const auto got = multiply(l, m, x, count, digits);
      const double found = error(got, reference(m, digits == 0 ? x : rounded(l, x, columns, group, digits, isa), count));
      expect(found < 3e-6, what + ", " + std::to_string(digits) + " digits: error " + std::to_string(found));
      for (int r = 0; r < count; ++r) {
        const std::vector<float> alone(x.begin() + r * columns, x.begin() + (r + 1) * columns);
        const auto single = multiply(l, m, alone, 1, digits);
        expect(
            std::memcmp(single.data(), got.data() + r * rows, size_t(rows) * 4) == 0,
            what + ": row " + std::to_string(r) + " depends on its company");
      }
    }
    std::vector<float> row(static_cast<size_t>(columns));
    const int n = any(0, rows - 1);
    unpack_row(m.p, n, row.data());
    const std::vector<double> weights(m.weights.begin() + n * columns, m.weights.begin() + (n + 1) * columns);
    expect(error(row, weights) < 1e-6, what + ": unpacked row");
  }
}

// The fast product must agree exactly (in whole numbers) between instruction sets, saturation included.
static void test_extremes(const Loops& l, const std::string& isa) {
  for (const int bits : {4, 8}) {
    Matrix m = make_matrix(16, 128, bits, 128, ScaleKind::float32);
    uint8_t* data = m.store.get();
    std::memset(data, 255, size_t(m.p.code_bytes()));
    for (int lane = 0; lane < 32; ++lane) {
      const float value = lane < 16 ? 1.0f : 0.0f;
      std::memcpy(data + m.p.code_bytes() + 4 * lane, &value, 4);
    }
    for (const float sign : {1.0f, -1.0f}) {
      const std::vector<float> x(128, sign * 127);
      const float want = sign * 127 * 128 * (bits == 4 ? 15 : 255);
      for (const int digits : {1, 2}) {
        for (const float value : multiply(l, m, x, 1, digits)) {
          expect(std::fabs(value - want) <= 1e-6f * std::fabs(want), isa + " extreme codes of " + std::to_string(bits) + " bits");
        }
      }
    }
  }
  const Matrix m = make_matrix(16, 64, 4, 32, ScaleKind::float16);
  for (const float value : multiply(l, m, std::vector<float>(64, 0.0f), 1, 2)) {
    expect(value == 0.0f, isa + " product of zeros");
  }
}

// Norm, SwiGLU, RoPE.

static void test_pointwise(const Loops& l, const std::string& isa, int shapes) {
  for (int i = 0; i < shapes; ++i) {
    const int size = any(1, 200);
    const auto x = normals(size), y = normals(size);
    std::vector<float> out(static_cast<size_t>(size));
    std::vector<double> want(static_cast<size_t>(size));
    double squares = 0;
    for (const float value : x) squares += double(value) * value;
    const bool weighted = any(0, 1);
    for (int j = 0; j < size; ++j) {
      want[size_t(j)] = x[size_t(j)] / std::sqrt(squares / size + 1e-5) * (weighted ? y[size_t(j)] : 1.0f);
    }
    l.rms_norm(x.data(), weighted ? y.data() : nullptr, 1e-5f, size, out.data());
    expect(error(out, want) < 1e-6, isa + " norm of " + std::to_string(size));

    std::vector<float> wide = normals(size);
    for (float& value : wide) value *= 30;
    for (int j = 0; j < size; ++j) {
      const double gate = wide[size_t(j)];
      want[size_t(j)] = gate / (1 + std::exp(-gate)) * y[size_t(j)];
    }
    l.swiglu(wide.data(), y.data(), size, out.data());
    expect(error(out, want) < 1e-6, isa + " swiglu of " + std::to_string(size));

    const int half = any(0, size / 2);
    const bool traditional = any(0, 1);
    std::vector<float> cosines, sines;
    for (int j = 0; j < half; ++j) {
      const float angle = 10 * normal();
      cosines.push_back(std::cos(angle)), sines.push_back(std::sin(angle));
    }
    for (int j = 0; j < size; ++j) want[size_t(j)] = x[size_t(j)];
    for (int j = 0; j < half; ++j) {
      const size_t first = size_t(traditional ? 2 * j : j), second = size_t(traditional ? 2 * j + 1 : half + j);
      const double c = cosines[size_t(j)], s = sines[size_t(j)];
      want[first] = x[first] * c - x[second] * s;
      want[second] = x[first] * s + x[second] * c;
    }
    l.rope(x.data(), cosines.data(), sines.data(), half, size, traditional, out.data());
    expect(error(out, want) < 1e-6, isa + " rope of " + std::to_string(half) + " in " + std::to_string(size));
  }
}

// Attention.

static void test_attention(const Loops& l, const std::string& isa, int shapes) {
  for (int i = 0; i < shapes; ++i) {
    Attention t{};
    t.B = any(1, 2), t.KV = any(1, 2), t.H = t.KV * any(1, 5);
    t.D = std::vector<int>{8, 20, 64, 80, 96, 128, 256}[size_t(any(0, 6))];
    t.L = any(0, 1) ? 1 : any(2, 70);
    t.S = t.L + std::vector<int>{0, 1, 40, 90, 130, 300}[size_t(any(0, 5))];
    t.causal = any(0, 1);
    t.half = any(0, 1);
    t.scale = 1 / std::sqrt(float(t.D));
    const int64_t pad = any(0, 9), room = t.S + pad;  // a cache is longer than what it holds
    const auto q = normals(t.B * t.H * t.L * t.D);
    auto k = normals(t.B * t.KV * room * t.D), v = normals(t.B * t.KV * room * t.D);
    std::vector<uint16_t> k_half, v_half;
    if (t.half) {
      for (float& value : k) k_half.push_back(to_float16(value)), value = float16_value(k_half.back());
      for (float& value : v) v_half.push_back(to_float16(value)), value = float16_value(v_half.back());
    }
    t.q = q.data();
    t.k = t.half ? (const void*)k_half.data() : k.data();
    t.v = t.half ? (const void*)v_half.data() : v.data();
    // Queries and outputs as a model has them: (B, L, H, D) seen as (B, H, L, D).
    const int64_t rows[3] = {t.H * t.L * t.D, t.D, t.H * t.D}, keys[3] = {t.KV * room * t.D, room * t.D, t.D};
    std::copy(rows, rows + 3, t.q_strides), std::copy(rows, rows + 3, t.out_strides);
    std::copy(keys, keys + 3, t.k_strides), std::copy(keys, keys + 3, t.v_strides);
    const int masked = any(0, 2);
    std::vector<uint8_t> bytes;
    std::vector<float> added;
    for (int64_t j = 0; masked && j < t.B * t.L * t.S; ++j) {
      bytes.push_back(uint8_t(any(0, 3) != 0)), added.push_back(bytes.back() ? normal() : -INFINITY);
    }
    if (masked) {
      t.mask = masked == 1 ? (const void*)bytes.data() : added.data();
      t.additive = masked == 2;
      const int64_t strides[4] = {t.L * t.S, 0, t.S, 1};
      std::copy(strides, strides + 4, t.mask_strides);
    }
    std::vector<double> want(q.size(), 0.0);
    for (int64_t b = 0; b < t.B; ++b) {
      for (int64_t h = 0; h < t.H; ++h) {
        for (int64_t row = 0; row < t.L; ++row) {
          std::vector<double> weights;
          double total = 0;
          for (int64_t j = 0; j < t.S; ++j) {
            double score = 0;
            const int64_t key = b * keys[0] + h / (t.H / t.KV) * keys[1] + j * keys[2], mask = (b * t.L + row) * t.S + j;
            for (int64_t d = 0; d < t.D; ++d) {
              score += double(q[size_t(b * rows[0] + h * rows[1] + row * rows[2] + d)]) * k[size_t(key + d)];
            }
            bool seen = !t.causal || j <= t.S - t.L + row;
            if (masked) seen = seen && bytes[size_t(mask)];
            score = score * t.scale + (masked == 2 && seen ? added[size_t(mask)] : 0.0);
            weights.push_back(seen ? std::exp(score) : 0.0);
            total += weights.back();
          }
          for (int64_t j = 0; j < t.S; ++j) {
            const int64_t key = b * keys[0] + h / (t.H / t.KV) * keys[1] + j * keys[2];
            for (int64_t d = 0; d < t.D && total > 0; ++d) {
              want[size_t(b * rows[0] + h * rows[1] + row * rows[2] + d)] += weights[size_t(j)] / total * v[size_t(key + d)];
            }
          }
        }
      }
    }
    std::vector<float> out(q.size(), NAN);
    t.out = out.data();
    t.choose_unit_rows();
    std::vector<float> work(size_t(t.work_floats()), NAN), partial(size_t(t.partial_floats()), NAN);
    for (int64_t unit = 0; unit < t.units(); ++unit) {
      t.few() ? l.attention_split(t, unit, partial.data(), work.data()) : l.attention_rows(t, unit, work.data());
    }
    if (t.few()) l.attention_join(t, partial.data());
    expect(
        error(out, want) < 2e-6,
        isa + " attention B " + std::to_string(t.B) + " H " + std::to_string(t.H) + " KV " + std::to_string(t.KV) +
            " L " + std::to_string(t.L) + " S " + std::to_string(t.S) + " D " + std::to_string(t.D) +
            (t.causal ? " causal" : "") + (t.half ? " half" : "") + " mask " + std::to_string(masked) + ": error " +
            std::to_string(error(out, want)));
  }
}

// The team.

static void test_team(int rounds) {
  static auto* teams = new std::vector<Team*>;  // never deleted, by design
  for (const int helpers : {0, 1, 3}) {
    Team* team = teams->emplace_back(new Team(helpers));
    for (int i = 0; i < rounds; ++i) {
      const int chunks = any(0, 40);
      std::vector<int> done(static_cast<size_t>(chunks), 0);
      if (i % 16 == 0) team->resize(any(0, 5));
      team->run(chunks, [&](int64_t chunk) { ++done[size_t(chunk)]; });
      expect(std::all_of(done.begin(), done.end(), [](int times) { return times == 1; }), "team: each chunk once");
    }
    std::atomic<int64_t> total{0};
    std::thread other([&] {
      for (int i = 0; i < rounds; ++i) team->run(5, [&](int64_t chunk) { total += chunk; });
    });
    for (int i = 0; i < rounds; ++i) team->run(5, [&](int64_t chunk) { total += chunk; });
    other.join();
    expect(total == int64_t(rounds) * 20, "team: two callers at once");
  }
}

int main(int count, char** words) {
  const auto each = [](Isa isa, const std::string& name, int shapes) {
    const Loops& l = loops(isa);
    test_products(l, name, shapes);
    test_extremes(l, name);
    test_pointwise(l, name, shapes);
    test_attention(l, name, shapes);
  };
  return run_tests(count, words, each, [](int shapes) { test_team(10 * shapes); });
}
