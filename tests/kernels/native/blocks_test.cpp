// The paged cache, its attention, dense matrices and whole decoder blocks of lattice_cli/kernels/native, in every
// instruction set this processor (or the emulator) has. No mlx, no Python.
//
//   blocks_test [shapes per test]      exit status 0: all good; each failure is one line on stdout

#include "check.h"

#include "blocks.h"

static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

// float16.

static void test_halves(const Loops& l, const std::string& isa, int count) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = float16_value(uint16_t(bits));
    if (!std::isnan(value)) expect(float16_bits(value) == bits, isa + " float16 there and back " + std::to_string(bits));
  }
  std::vector<float> values;
  for (int i = 0; i < 64 * count; ++i) values.push_back(normal() * std::exp2(float(any(-26, 17))));
  for (const float tie : {1.00048828125f, 1.00146484375f, 65519.996f, 65520.0f, 5.9604645e-8f, 2.9802322e-8f, 0.0f}) {
    values.push_back(tie), values.push_back(-tie);
  }
  const int64_t D = int64_t(values.size());
  std::vector<uint16_t> page(size_t(2 * PagedAttention::kTokens * D));
  l.store_values(values.data(), D, 1, D, true, 0, reinterpret_cast<uint8_t*>(page.data()));
  for (int64_t i = 0; i < D; ++i) {
    const float value = values[size_t(i)];
    const uint16_t got = page[size_t(PagedAttention::kTokens * D + i)];
    expect(got == float16_bits(value), isa + " float16 of " + std::to_string(value));
    if (std::fabs(value) > 65504) continue;
    const float down = float16_value(got);
    for (const int step : {-1, 1}) {  // no neighbour is nearer
      const uint16_t beside = uint16_t(got + step);
      const float other = float16_value(beside);
      if (std::isfinite(other) && (beside & 0x7fff) <= 0x7c00 && (got & 0x7fff) != 0) {
        expect(std::fabs(double(down) - value) <= std::fabs(double(other) - value), isa + " nearest float16");
      }
    }
  }
}

// Dense matrices.

static Matrix dense_matrix(int64_t rows, int64_t columns, ScaleKind kind, float size = 1) {
  Matrix m;
  m.p.rows = rows, m.p.columns = columns, m.p.bits = 0, m.p.kind = kind;
  const auto weights = normals(rows * columns);
  std::vector<uint8_t> bytes(size_t(rows * columns * m.p.scale_bytes()));
  for (size_t i = 0; i < weights.size(); ++i) {
    const float value = weights[i] * size;
    uint32_t whole;
    std::memcpy(&whole, &value, 4);
    const uint16_t half = kind == ScaleKind::float16 ? float16_bits(value) : uint16_t(whole >> 16);
    std::memcpy(bytes.data() + i * size_t(m.p.scale_bytes()), kind == ScaleKind::float32 ? (const void*)&value : &half, size_t(m.p.scale_bytes()));
  }
  auto store = std::make_shared<Piece>(m.p.bytes());
  pack_dense_blocks(m.p, store->data(), bytes.data(), 0, m.p.blocks());
  m.p.data = store->data();
  m.owner = store;
  return m;
}

static void test_dense(const std::string& isa, int shapes) {
  for (int i = 0; i < shapes; ++i) {
    const int rows = any(1, 70), columns = any(1, 130), count = any(1, 9);
    const auto kind = ScaleKind(any(0, 2));
    const Matrix m = dense_matrix(rows, columns, kind);
    const std::string what = isa + " dense " + std::to_string(count) + " x " + std::to_string(columns) + " x " + std::to_string(rows);
    std::vector<double> weights;
    for (int n = 0; n < rows; ++n) {
      std::vector<float> row(static_cast<size_t>(columns));
      unpack_row(m.p, n, row.data());
      weights.insert(weights.end(), row.begin(), row.end());
    }
    const auto x = normals(int64_t(count) * columns);
    std::vector<double> want;
    for (int r = 0; r < count; ++r) {
      for (int n = 0; n < rows; ++n) {
        double total = 0;
        for (int c = 0; c < columns; ++c) total += double(x[size_t(r * columns + c)]) * weights[size_t(n * columns + c)];
        want.push_back(total);
      }
    }
    std::vector<float> got(size_t(count) * size_t(rows), NAN);
    multiply(m, x.data(), count, got.data());
    // Of a few results all may be near zero: the terms of their sums are not.
    const auto most = std::max_element(want.begin(), want.end(), [](double a, double b) { return std::fabs(a) < std::fabs(b); });
    const double size = std::max(std::fabs(*most), std::sqrt(double(columns)));
    expect(error(got, want) * std::fabs(*most) < 3e-6 * size, what + ": error " + std::to_string(error(got, want)));
    for (int r = 0; r < count; ++r) {
      std::vector<float> single(size_t(rows), NAN);
      multiply(m, x.data() + r * columns, 1, single.data());
      expect(std::memcmp(single.data(), got.data() + r * rows, size_t(rows) * 4) == 0, what + ": row depends on its company");
    }
  }
}

// Paged attention.

static void test_paged(const Loops& l, const std::string& isa, int shapes) {
  constexpr int64_t kTokens = PagedAttention::kTokens;
  for (int i = 0; i < shapes; ++i) {
    const int64_t D = std::vector<int>{8, 20, 64, 80, 96, 128, 256}[size_t(any(0, 6))], heads = any(1, 5);
    const int64_t tokens = any(1, 3) == 1 ? any(1, 20) : any(100, 420);
    const bool half = any(0, 1);
    const int64_t window = any(0, 2) ? 0 : any(1, int(tokens));
    const std::string what = isa + " paged D " + std::to_string(D) + " heads " + std::to_string(heads) + " tokens " +
        std::to_string(tokens) + (half ? " half" : "") + " window " + std::to_string(window);
    auto k = normals(tokens * D), v = normals(tokens * D);
    const auto q = normals(tokens * heads * D);
    StateShape shape{1, 1, D, half, 0, 0};
    std::vector<std::unique_ptr<Piece>> pages;
    std::vector<const uint8_t*> places;
    for (int64_t at = 0; at < tokens; at += kTokens) {
      pages.push_back(std::make_unique<Piece>(shape.page_bytes()));
      std::memset(pages.back()->data(), 255, size_t(shape.page_bytes()));  // not-a-numbers: must never be read
      places.push_back(pages.back()->data());
    }
    for (int64_t at = 0; at < tokens;) {
      const int64_t count = std::min<int64_t>({any(1, 90), tokens - at, kTokens - at % kTokens});
      l.store_keys(k.data() + at * D, D, count, D, half, at % kTokens, pages[size_t(at / kTokens)]->data());
      l.store_values(v.data() + at * D, D, count, D, half, at % kTokens, pages[size_t(at / kTokens)]->data());
      at += count;
    }
    if (half) {
      for (float& value : k) value = float16_value(float16_bits(value));
      for (float& value : v) value = float16_value(float16_bits(value));
    }
    PagedAttention t;
    t.pages = places.data(), t.offset = 0, t.D = D, t.half = half, t.window = window, t.scale = 1 / std::sqrt(float(D));
    t.heads = heads, t.head_stride = D, t.row_stride = heads * D, t.out_head_stride = D, t.out_row_stride = heads * D;
    const auto run = [&](int64_t most, bool parts) {
      std::vector<float> out(size_t(tokens * heads * D), NAN);
      for (int64_t at = 0; at < tokens; at += t.rows) {
        t.position = at, t.rows = std::min(most, tokens - at);
        t.q = q.data() + at * heads * D, t.out = out.data() + at * heads * D;
        std::vector<float> work(size_t(t.work_floats()), NAN);
        if (!parts) {
          l.paged_rows(t, work.data());
          continue;
        }
        std::vector<float> all(size_t((t.last_page() - t.first_page() + 1) * t.part_floats()), NAN);
        for (int64_t page = t.first_page(); page <= t.last_page(); ++page) {
          l.paged_part(t, page, all.data() + (page - t.first_page()) * t.part_floats(), work.data());
        }
        l.paged_join(t, all.data(), work.data());
      }
      return out;
    };
    const auto whole = run(tokens, false);
    expect(same_bits(whole, run(1, true)), what + ": token by token differs");
    expect(same_bits(whole, run(any(1, 40), any(0, 1))), what + ": in chunks differs");
    std::vector<double> want;
    for (int64_t row = 0; row < tokens; ++row) {
      for (int64_t h = 0; h < heads; ++h) {
        std::vector<double> weights;
        double total = 0;
        const int64_t low = window ? std::max<int64_t>(0, row - window + 1) : 0;
        for (int64_t j = low; j <= row; ++j) {
          double score = 0;
          for (int64_t d = 0; d < D; ++d) score += double(q[size_t((row * heads + h) * D + d)]) * k[size_t(j * D + d)];
          weights.push_back(std::exp(score * t.scale));
          total += weights.back();
        }
        for (int64_t d = 0; d < D; ++d) {
          double sum = 0;
          for (int64_t j = low; j <= row; ++j) sum += weights[size_t(j - low)] / total * v[size_t(j * D + d)];
          want.push_back(sum);
        }
      }
    }
    expect(error(whole, want) < 3e-6, what + ": error " + std::to_string(error(whole, want)));
  }
}

// Sequences.

static void fill(const Extent& extent, uint8_t mark) {
  extent.begin();
  for (int64_t t = extent.position; t < extent.position + extent.count; ++t) {
    extent.pages[size_t(t / PagedAttention::kTokens)]->data()[t % PagedAttention::kTokens] = mark;
  }
}

static std::string marks(Sequence& sequence) {
  const Extent all = sequence.append(0);
  std::string text;
  for (int64_t t = 0; t < sequence.tokens(); ++t) {
    text += char(all.pages[size_t(t / PagedAttention::kTokens)]->data()[t % PagedAttention::kTokens]);
  }
  return text;
}

static void test_sequences() {
  const int64_t before = Piece::in_use();
  {
    const StateShape shape{1, 1, 8, false, 1, 4};
    Sequence a(shape);
    fill(a.append(100), 'a');
    Sequence b(a);
    const int64_t shared = Piece::in_use();
    fill(b.append(60), 'b');
    fill(a.append(50), 'A');
    expect(marks(a) == std::string(100, 'a') + std::string(50, 'A'), "the first goes on after a branch");
    expect(marks(b) == std::string(100, 'a') + std::string(60, 'b'), "the branch goes on by itself");
    expect(shared - before == shape.page_bytes() + shape.state_bytes(), "a copy shares its memory");
    Sequence c(b);
    fill(c.append(10), 'c');
    expect(marks(c) == marks(b) + std::string(10, 'c'), "a branch in the second page");
    const Extent extent = a.append(1);
    expect(!extent.page_before && extent.state == extent.state_before, "a sequence alone writes in place");
    Sequence d({1, 1, 8, false, 0, 0});
    fill(d.append(300), 'd');
    Sequence e(d);
    e.trim(130);
    fill(e.append(5), 'e');
    expect(marks(d) == std::string(300, 'd') && marks(e) == std::string(130, 'd') + "eeeee", "trimmed and branched");
    std::vector<std::pair<const void*, size_t>> memory;
    for (const auto& piece : c.pieces()) memory.emplace_back(piece->data(), size_t(piece->bytes()));
    Sequence f = Sequence::restored(shape, c.tokens(), memory);
    expect(marks(f) == marks(c) && f.bytes() == c.bytes(), "restored from its memory");
    fill(f.append(10), 'f');
    expect(marks(c) == marks(b) + std::string(10, 'c'), "restored memory is its own");
    memory.pop_back();
    bool refused = false;
    try {
      Sequence::restored(shape, c.tokens(), memory);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    expect(refused, "memory that lacks a piece is refused");
  }
  expect(Piece::in_use() == before, "all memory is given back");
}

// Blocks: the same tokens whole, in chunks, and beside other sequences.

static std::vector<float> ones_about(int64_t size) {
  auto values = normals(size);
  for (float& value : values) value = 1 + 0.1f * value;
  return values;
}

static void test_blocks(const std::string& isa, int shapes) {
  static uint64_t number = 0;
  for (int i = 0; i < shapes; ++i) {
    const int64_t hidden = 16 * any(1, 5), D = std::vector<int>{8, 16, 20, 64}[size_t(any(0, 3))], shared = any(1, 2);
    const int64_t heads = shared * any(1, 3), inner = 8 * any(1, 12), layers = 2;
    const bool gated = any(0, 1), normed = any(0, 1), half = any(0, 1);
    const auto kind = ScaleKind(any(0, 2));
    const StateShape shape{layers, shared, D, half, 0, 0};
    auto turns = std::make_shared<Turns>(Angles(D / 2, 10000, 1), any(0, 1) == 1);
    std::vector<std::unique_ptr<Block>> blocks;
    for (int64_t layer = 0; layer < layers; ++layer) {
      auto attention = std::make_unique<AttentionBlock>();
      attention->norm = {ones_about(hidden), 1e-5f};
      if (normed) attention->q_norm = {ones_about(D), 1e-5f}, attention->k_norm = {ones_about(D), 1e-5f};
      attention->q = dense_matrix(heads * D * (gated ? 2 : 1), hidden, kind, 0.2f);
      attention->k = dense_matrix(shared * D, hidden, kind, 0.2f), attention->v = dense_matrix(shared * D, hidden, kind, 0.2f);
      if (any(0, 1)) attention->k.bias = normals(shared * D);
      attention->o = dense_matrix(hidden, heads * D, kind, 0.2f);
      attention->turns = turns, attention->shape = shape, attention->layer = layer, attention->heads = heads;
      attention->scale = 1 / std::sqrt(float(D)), attention->gated = gated, attention->window = any(0, 1) ? 0 : any(1, 200);
      blocks.push_back(std::move(attention));
      auto mlp = std::make_unique<MlpBlock>();
      mlp->norm = {ones_about(hidden), 1e-5f};
      mlp->gate = dense_matrix(inner, hidden, kind, 0.2f), mlp->up = dense_matrix(inner, hidden, kind, 0.2f);
      mlp->down = dense_matrix(hidden, inner, kind, 0.2f);
      blocks.push_back(std::move(mlp));
    }
    const auto run = [&](std::vector<std::pair<Sequence*, int64_t>> shares, std::vector<float> x) {
      std::vector<Extent> extents;
      Step step;
      step.number = ++number;
      for (auto& [sequence, count] : shares) extents.push_back(sequence->append(count));
      for (const Extent& extent : extents) {
        extent.begin();
        step.parts.push_back({step.tokens, &extent});
        step.tokens += extent.count;
      }
      for (const auto& block : blocks) block->run(step, x.data());
      return x;
    };
    const int64_t tokens = any(2, 180);
    const auto x = normals(tokens * hidden);
    Sequence whole(shape), cut(shape), other(shape);
    const auto want = run({{&whole, tokens}}, x);
    expect(std::all_of(want.begin(), want.end(), [](float value) { return std::isfinite(value); }), isa + " blocks: finite");
    std::vector<float> got;
    for (int64_t at = 0; at < tokens;) {
      const int64_t count = any(0, 1) ? 1 : std::min<int64_t>(any(1, 70), tokens - at), beside = any(0, 30);
      auto mine = std::vector<float>(x.begin() + at * hidden, x.begin() + (at + count) * hidden);
      const auto rest = normals(beside * hidden);
      const bool first = any(0, 1);
      std::vector<float> both = first ? mine : rest;
      both.insert(both.end(), first ? rest.begin() : mine.begin(), first ? rest.end() : mine.end());
      const auto out = first ? run({{&cut, count}, {&other, beside}}, both) : run({{&other, beside}, {&cut, count}}, both);
      const int64_t from = first ? 0 : beside * hidden;
      got.insert(got.end(), out.begin() + from, out.begin() + from + count * hidden);
      at += count;
    }
    expect(same_bits(got, want), isa + " blocks: tokens depend on their company or chunk");
  }
}

int main(int count, char** words) {
  team = new Team(2);
  const auto each = [](Isa isa, const std::string& name, int shapes) {
    chosen_isa = isa;
    test_halves(loops(isa), name, shapes);
    test_dense(name, shapes);
    test_paged(loops(isa), name, (shapes + 3) / 4);
    test_blocks(name, (shapes + 3) / 4);
  };
  return run_tests(count, words, each, [](int) { test_sequences(); });
}
