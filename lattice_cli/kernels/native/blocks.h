// The parts of a decoder layer, computed for all tokens of a call at once. No mlx.
//
// x is (tokens, hidden), float32, dense: the residual stream of all sequences of the call, one after the other.
// A block reads it and adds its result to it. Everything is computed per token with no regard to the others,
// except attention (and the recurrent layers), which read their own sequence: so a token's result has the same
// bits in any company and in chunks of any size.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "angles.h"
#include "multiply.h"
#include "pages.h"

namespace lattice {
namespace {

// A sequence's tokens in a call: [first, first + extent->count) of them.
struct Part {
  int64_t first;
  const Extent* extent;
};

// One call. `number` tells calls apart.
struct Step {
  uint64_t number = 0;
  int64_t tokens = 0;
  std::vector<Part> parts;
};

struct Norm {
  std::vector<float> weight;  // empty: none
  float eps = 0;

  // Rows of `size` floats, `stride` apart; in place when out is x.
  void apply(const Loops& l, const float* x, int64_t rows, int64_t size, int64_t stride, float* out) const {
    each(rows, 16, [&](int64_t r) {
      l.rms_norm(x + r * stride, weight.empty() ? nullptr : weight.data(), eps, size, out + r * stride);
    });
  }
};

class Block {
 public:
  virtual ~Block() = default;
  virtual void run(const Step& step, float* x) = 0;
};

// The blocks of a network and its last norm.
struct Network {
  std::vector<std::shared_ptr<Block>> blocks;
  Norm norm;
  int64_t hidden = 0;

  void run(const Step& step, float* x) const {
    const FlushDenormals flush;
    for (const auto& block : blocks) block->run(step, x);
    norm.apply(best(), x, step.tokens, hidden, hidden, x);
  }
};

// x += down(silu(gate(norm(x))) * up(norm(x)))
class MlpBlock : public Block {
 public:
  Norm norm;
  Matrix gate, up, down;

  void run(const Step& step, float* x) override {
    const Loops& l = best();
    const int64_t tokens = step.tokens, hidden = gate.p.columns, inner = gate.p.rows;
    float* normed = scratch<float, 20>(tokens * hidden);
    float* wide = scratch<float, 21>(tokens * 2 * inner);
    float* mixed = scratch<float, 22>(tokens * inner);
    norm.apply(l, x, tokens, hidden, hidden, normed);
    const Factor both[] = {{&gate, 0}, {&up, inner}};
    multiply(both, 2, normed, tokens, wide, 2 * inner);
    each(tokens, 4, [&](int64_t t) {
      l.swiglu(wide + 2 * t * inner, wide + (2 * t + 1) * inner, inner, mixed + t * inner);
    });
    float* result = scratch<float, 20>(tokens * hidden);  // the normed rows are used up
    multiply(down, mixed, tokens, result);
    each(tokens, 16, [&](int64_t t) { l.add(result + t * hidden, hidden, x + t * hidden); });
  }
};

// RoPE's angles for the tokens of a call, shared by the layers that turn alike.
class Turns {
 public:
  Turns(Angles angles, bool traditional) : traditional(traditional), angles_(std::move(angles)) {}

  const bool traditional;
  int64_t half() const { return angles_.half(); }

  // Cosines and sines of all tokens, (tokens, 2 * half); computed once for a call.
  const float* of(const Step& step) {
    if (known_ == step.number) return table_.data();
    const int64_t width = 2 * half();
    table_.resize(size_t(step.tokens * width));
    for (const Part& part : step.parts) {
      for (int64_t i = 0; i < part.extent->count; ++i) {
        angles_.fill(part.extent->position + i, table_.data() + (part.first + i) * width);
      }
    }
    known_ = step.number;
    return table_.data();
  }

 private:
  Angles angles_;
  std::vector<float> table_;
  uint64_t known_ = 0;
};

// x += o(attention(q(norm(x)), k(norm(x)), v(norm(x)))), with what the model family adds: norms of query and key
// heads, RoPE over some dimensions, a window, a gate on the result (the query projection then gives, per head, D
// numbers of the query and D of the gate).
class AttentionBlock : public Block {
 public:
  Norm norm, q_norm, k_norm;
  Matrix q, k, v, o;
  std::shared_ptr<Turns> turns;
  StateShape shape;
  int64_t layer = 0, heads = 0, window = 0;
  float scale = 1;
  bool gated = false;

  void run(const Step& step, float* x) override {
    const Loops& l = best();
    const int64_t tokens = step.tokens, hidden = q.p.columns, D = shape.D;
    float* normed = scratch<float, 20>(tokens * hidden);
    float* qkv = scratch<float, 21>(tokens * width());
    float* out = scratch<float, 22>(tokens * heads * D);
    norm.apply(l, x, tokens, hidden, hidden, normed);
    const Factor three[] = {{&q, 0}, {&k, k_column()}, {&v, v_column()}};
    multiply(three, 3, normed, tokens, qkv, width());
    turn(l, step, qkv);
    store(l, step, qkv);
    attend(l, step, qkv, out);
    if (gated) {
      each(tokens, 8, [&](int64_t t) {
        for (int64_t h = 0; h < heads; ++h) {
          l.sigmoid_gate(qkv + t * width() + (2 * h + 1) * D, D, out + (t * heads + h) * D);
        }
      });
    }
    float* result = scratch<float, 20>(tokens * hidden);  // the normed rows are used up
    multiply(o, out, tokens, result);
    each(tokens, 16, [&](int64_t t) { l.add(result + t * hidden, hidden, x + t * hidden); });
  }

 private:
  // A row of qkv: query heads (with gates), key heads, value heads.
  int64_t head_stride() const { return gated ? 2 * shape.D : shape.D; }
  int64_t k_column() const { return heads * head_stride(); }
  int64_t v_column() const { return k_column() + shape.heads * shape.D; }
  int64_t width() const { return v_column() + shape.heads * shape.D; }

  // Norms and RoPE of query and key heads, in place.
  void turn(const Loops& l, const Step& step, float* qkv) {
    const int64_t D = shape.D, half = turns->half();
    const float* table = turns->of(step);
    each(step.tokens, 8, [&](int64_t t) {
      float* row = qkv + t * width();
      const float* angle = table + 2 * t * half;
      for (int64_t h = 0; h < heads + shape.heads; ++h) {
        float* head = h < heads ? row + h * head_stride() : row + k_column() + (h - heads) * D;
        const Norm& own = h < heads ? q_norm : k_norm;
        if (!own.weight.empty()) l.rms_norm(head, own.weight.data(), own.eps, D, head);
        l.rope(head, angle, angle + half, half, D, turns->traditional, head);
      }
    });
  }

  // Keys and values into the pages; one unit is one key head's share of one page.
  void store(const Loops& l, const Step& step, const float* qkv) {
    constexpr int64_t kTokens = PagedAttention::kTokens;
    struct Unit {
      const Part* part;
      int64_t page;
    };
    std::vector<Unit> units;
    for (const Part& part : step.parts) {
      const int64_t end = part.extent->position + part.extent->count;
      for (int64_t page = part.extent->position / kTokens; page * kTokens < end; ++page) units.push_back({&part, page});
    }
    const int64_t per_chunk = step.tokens <= 8 ? int64_t(units.size()) * shape.heads : 1;
    each(int64_t(units.size()) * shape.heads, per_chunk, [&](int64_t i) {
      const Unit& unit = units[size_t(i / shape.heads)];
      const Extent& extent = *unit.part->extent;
      const int64_t head = i % shape.heads, first = std::max(extent.position, unit.page * kTokens);
      const int64_t end = std::min(extent.position + extent.count, (unit.page + 1) * kTokens);
      uint8_t* place = extent.pages[size_t(unit.page)]->data() + shape.head_offset(layer, head);
      const float* row = qkv + (unit.part->first + first - extent.position) * width();
      const int64_t at = first - unit.page * kTokens;
      l.store_keys(row + k_column() + head * shape.D, width(), end - first, shape.D, shape.half, at, place);
      l.store_values(row + v_column() + head * shape.D, width(), end - first, shape.D, shape.half, at, place);
    });
  }

  // Few queries of a sequence: a unit is one page of one key head, and the pages are joined afterwards. Many: a
  // unit is some tokens of one key head, with all their pages; the last tokens, which see most, come first.
  void attend(const Loops& l, const Step& step, const float* qkv, float* out) {
    struct Unit {
      PagedAttention task;
      int64_t page;     // -1: all
      int64_t part_at;  // of `parts`, in floats
    };
    const int64_t D = shape.D, group = heads / shape.heads;
    std::vector<Unit> units, joins;
    int64_t part_floats = 0, work_floats = 0;
    for (const Part& part : step.parts) {
      const Extent& extent = *part.extent;
      if (extent.count == 0) continue;
      const bool few = group * extent.count <= 16;
      const int64_t at_once = few ? extent.count : std::max<int64_t>(1, 96 / group);
      for (int64_t head = 0; head < shape.heads; ++head) {
        PagedAttention t;
        t.pages = extent.places.data();
        t.offset = shape.head_offset(layer, head);
        t.D = D, t.half = shape.half, t.window = window, t.scale = scale;
        t.heads = group, t.head_stride = head_stride(), t.row_stride = width();
        t.out_head_stride = D, t.out_row_stride = heads * D;
        for (int64_t end = extent.count; end > 0; end -= at_once) {
          const int64_t begin = std::max<int64_t>(0, end - at_once);
          t.rows = end - begin, t.position = extent.position + begin;
          t.q = qkv + (part.first + begin) * width() + head * group * head_stride();
          t.out = out + ((part.first + begin) * heads + head * group) * D;
          work_floats = std::max(work_floats, t.work_floats());
          if (!few || t.first_page() == t.last_page()) {
            units.push_back({t, -1, 0});
            continue;
          }
          joins.push_back({t, -1, part_floats});
          for (int64_t page = t.first_page(); page <= t.last_page(); ++page) {
            units.push_back({t, page, part_floats});
            part_floats += t.part_floats();
          }
        }
      }
    }
    float* parts = scratch<float, 24>(part_floats);
    each(int64_t(units.size()), 1, [&](int64_t i) {
      const Unit& unit = units[size_t(i)];
      float* work = scratch<float, 5>(work_floats);
      if (unit.page < 0) return l.paged_rows(unit.task, work);
      l.paged_part(unit.task, unit.page, parts + unit.part_at, work);
    });
    for (const Unit& unit : joins) l.paged_join(unit.task, parts + unit.part_at, scratch<float, 5>(work_floats));
  }
};

}  // namespace
}  // namespace lattice
