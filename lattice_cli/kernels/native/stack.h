// Decoder layers as one primitive: blocks.h over the sequences of pages.h.
//
// stack(h, blocks, sequences, counts) appends counts[b] tokens to sequence b, whose hidden states are
// h[b, :counts[b]], and gives what the blocks and the final norm make of them, (B, L, hidden); rows beyond a
// count are zero. An h of (1, all tokens, hidden) has those of all sequences one after the other, and so has the result. Pages are written in place, so calls on one sequence must run in the order in which they were
// made: each takes the `mark` of the call before as an input and gives one of its own.
#pragma once

#include "delta_block.h"
#include "primitive.h"
#include "product.h"

namespace lattice {
namespace {

class Stack : public CpuPrimitive {
 public:
  Stack(mx::Stream stream, std::shared_ptr<const Network> network, std::vector<Extent> extents)
      : CpuPrimitive(stream), network_(std::move(network)),
        extents_(std::make_shared<const std::vector<Extent>>(std::move(extents))) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    for (array& out : outputs) make_room(out);
    const bool padded = inputs[0].shape(0) == int(extents_->size());
    const int64_t length = padded ? inputs[0].shape(1) : 0;
    encoder().dispatch([network = network_, extents = extents_, h = View(inputs[0]), length,
                        out = outputs[0].data<float>(), mark = outputs[1].data<float>()] {
      *mark = 0;
      run(*network, *extents, h.rows<0>(), length, out);
    });
  }

  const char* name() const override { return "LatticeStack"; }

 private:
  // A `length` of 0: h has the tokens of all sequences one after the other.
  static void run(const Network& network, const std::vector<Extent>& extents, const float* h, int64_t length, float* out) {
    static std::atomic<uint64_t> calls{0};
    const size_t row = size_t(network.hidden) * sizeof(float);
    Step step;
    step.number = ++calls;
    for (const Extent& extent : extents) {
      extent.begin();
      if (extent.count > 0) step.parts.push_back({step.tokens, &extent});
      step.tokens += extent.count;
    }
    if (length == 0) {
      std::memcpy(out, h, row * size_t(step.tokens));
      network.run(step, out);
      return;
    }
    const bool dense = step.tokens == length * int64_t(extents.size());
    float* x = dense ? out : scratch<float, 25>(step.tokens * network.hidden);
    for (int64_t b = 0, at = 0; b < int64_t(extents.size()); at += extents[size_t(b++)].count) {
      std::memcpy(x + at * network.hidden, h + b * length * network.hidden, row * size_t(extents[size_t(b)].count));
    }
    network.run(step, x);
    if (dense) return;
    for (int64_t b = 0, at = 0; b < int64_t(extents.size()); at += extents[size_t(b++)].count) {
      const int64_t count = extents[size_t(b)].count;
      float* target = out + b * length * network.hidden;
      std::memcpy(target, x + at * network.hidden, row * size_t(count));
      std::memset(target + count * network.hidden, 0, row * size_t(length - count));
    }
  }

  std::shared_ptr<const Network> network_;
  std::shared_ptr<const std::vector<Extent>> extents_;
};

// The Python faces: values that hold pure C++ pointers (nanobind's own shared_ptr takes the interpreter's lock
// when it is let go, on a thread that must not wait for it).

struct BlockHandle {
  std::shared_ptr<Block> block;
};

struct TurnsHandle {
  std::shared_ptr<Turns> turns;
};

struct NetworkHandle {
  std::shared_ptr<Network> network;
};

Norm norm_of(const std::optional<array>& weight, float eps) {
  Norm norm;
  norm.eps = eps;
  if (weight) {
    array dense = mx::contiguous(mx::astype(*weight, mx::float32, mx::Device::cpu), false, mx::Device::cpu);
    mx::eval(dense);
    norm.weight.assign(dense.data<float>(), dense.data<float>() + dense.size());
  }
  return norm;
}

Matrix matrix_of(const PackedWeight& weight, int digits, const std::optional<array>& bias) {
  auto store = std::make_shared<array>(weight.store);
  Matrix matrix;
  matrix.p = weight.at(store->data<uint8_t>());
  matrix.digits = digits;
  matrix.owner = store;
  if (bias) matrix.bias = norm_of(bias, 0).weight;
  return matrix;
}

std::pair<array, array> stack(
    const array& h, const NetworkHandle& network, const std::vector<Sequence*>& sequences,
    const std::vector<int64_t>& counts, const std::vector<array>& marks) {
  const int64_t hidden = network.network->hidden;
  const bool padded = h.ndim() == 3 && h.shape(0) == int(sequences.size());
  if (h.ndim() != 3 || h.shape(2) != hidden || (!padded && h.shape(0) != 1) || counts.size() != sequences.size()) {
    throw std::invalid_argument("stack: h is (sequences, tokens, " + std::to_string(hidden) + ")");
  }
  int64_t tokens = 0;
  for (int64_t count : counts) {
    if (count < 0 || count > h.shape(1)) throw std::invalid_argument("stack: more tokens than rows");
    tokens += count;
  }
  if (!padded && tokens != h.shape(1)) throw std::invalid_argument("stack: counts do not add up to the tokens of h");
  std::vector<Extent> extents;
  for (size_t b = 0; b < sequences.size(); ++b) extents.push_back(sequences[b]->append(counts[b]));
  std::vector<array> inputs{mx::astype(h, mx::float32)};
  inputs.insert(inputs.end(), marks.begin(), marks.end());
  auto made = array::make_arrays(
      {h.shape(), {1}}, {mx::float32, mx::float32},
      std::make_shared<Stack>(mx::to_stream({}), network.network, std::move(extents)), inputs);
  return {made[0], made[1]};
}

void bind_stack(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<BlockHandle>(m, "Block");
  nb::class_<TurnsHandle>(m, "Turns");
  nb::class_<NetworkHandle>(m, "Network");
  nb::class_<Matrix>(m, "Matrix");
  nb::class_<StateShape>(m, "StateShape")
      .def("__init__", [](StateShape* self, int64_t attention_layers, int64_t heads, int64_t head_dim, bool half,
                          int64_t recurrent_layers, int64_t recurrent_floats) {
        *new (self) StateShape{} = {attention_layers, heads, head_dim, half, recurrent_layers, recurrent_floats};
      }, "attention_layers"_a, "heads"_a, "head_dim"_a, "half"_a, "recurrent_layers"_a = 0, "recurrent_floats"_a = 0);
  nb::class_<DeltaShape>(m, "DeltaShape")
      .def("__init__", [](DeltaShape* self, int64_t key_heads, int64_t value_heads, int64_t key_size,
                          int64_t value_size, int64_t taps) {
        *new (self) DeltaShape{} = {key_heads, value_heads, key_size, value_size, taps};
      }, "key_heads"_a, "value_heads"_a, "key_size"_a, "value_size"_a, "taps"_a)
      .def_prop_ro("state_floats", &DeltaShape::state_floats);
  nb::class_<Sequence>(m, "Sequence")
      .def(nb::init<StateShape>(), "shape"_a)
      .def("copy", [](const Sequence& s) { return Sequence(s); }, "Shares the memory; who writes first copies a page.")
      .def("trim", &Sequence::trim, "tokens"_a)
      .def("pieces", [](const Sequence& s) {
        std::vector<std::pair<uintptr_t, int64_t>> found;
        for (const auto& piece : s.pieces()) found.emplace_back(reinterpret_cast<uintptr_t>(piece->data()), piece->bytes());
        return found;
      }, "(address, bytes) of all its memory; sequences that share a piece give the same address.")
      .def("dump", [](const Sequence& s) {
        std::vector<nb::bytes> found;
        for (const auto& piece : s.pieces()) found.emplace_back(piece->data(), size_t(piece->bytes()));
        return found;
      }, "What its pieces hold. Everything that writes them must have been evaluated.")
      .def_static("restored", [](StateShape shape, int64_t tokens, const std::vector<nb::bytes>& dump) {
        std::vector<std::pair<const void*, size_t>> memory;
        for (const nb::bytes& one : dump) memory.emplace_back(one.data(), one.size());
        return Sequence::restored(shape, tokens, memory);
      }, "shape"_a, "tokens"_a, "dump"_a)
      .def_prop_ro("can_trim", &Sequence::can_trim)
      .def_prop_ro("tokens", &Sequence::tokens)
      .def_prop_ro("nbytes", &Sequence::bytes);
  m.def("state_bytes", [] { return Piece::in_use().load(); }, "Bytes of all sequences of this process.");
  m.def("matrix", &matrix_of, "weight"_a, "digits"_a, "bias"_a = nb::none());
  m.def("turns", [](int half, std::optional<float> base, float scale, bool traditional, const std::optional<array>& periods) {
    if (!periods) return TurnsHandle{std::make_shared<Turns>(Angles(half, double(base.value()), scale), traditional)};
    const Norm table = norm_of(periods, 0);
    return TurnsHandle{std::make_shared<Turns>(Angles(table.weight.data(), half, scale), traditional)};
  }, "half"_a, "base"_a.none(), "scale"_a, "traditional"_a, "periods"_a = nb::none());
  m.def("mlp_block", [](const array& norm, float eps, const Matrix& gate, const Matrix& up, const Matrix& down) {
    auto block = std::make_shared<MlpBlock>();
    block->norm = norm_of(norm, eps);
    block->gate = gate, block->up = up, block->down = down;
    return BlockHandle{block};
  }, "norm"_a, "eps"_a, "gate"_a, "up"_a, "down"_a);
  m.def("attention_block", [](const array& norm, float eps, const Matrix& q, const Matrix& k, const Matrix& v,
                              const Matrix& o, const TurnsHandle& turns, StateShape shape, int64_t layer,
                              int64_t heads, float scale, int64_t window, bool gated,
                              const std::optional<array>& q_norm, const std::optional<array>& k_norm, float head_eps) {
    auto block = std::make_shared<AttentionBlock>();
    block->norm = norm_of(norm, eps), block->q_norm = norm_of(q_norm, head_eps), block->k_norm = norm_of(k_norm, head_eps);
    block->q = q, block->k = k, block->v = v, block->o = o;
    block->turns = turns.turns, block->shape = shape, block->layer = layer, block->heads = heads;
    block->scale = scale, block->window = window, block->gated = gated;
    return BlockHandle{block};
  }, "norm"_a, "eps"_a, "q"_a, "k"_a, "v"_a, "o"_a, "turns"_a, "shape"_a, "layer"_a, "heads"_a, "scale"_a,
     "window"_a = 0, "gated"_a = false, "q_norm"_a = nb::none(), "k_norm"_a = nb::none(), "head_eps"_a = 0.0f);
  m.def("delta_block", [](const array& norm, float eps, const Matrix& qkv, const Matrix& z, const Matrix& a,
                          const Matrix& b, const Matrix& out, const array& conv, const array& a_log,
                          const array& dt_bias, const array& out_norm, float out_eps, DeltaShape shape, int64_t layer) {
    auto block = std::make_shared<DeltaBlock>();
    block->norm = norm_of(norm, eps), block->out_norm = norm_of(out_norm, out_eps);
    block->qkv = qkv, block->z = z, block->a = a, block->b = b, block->out = out;
    block->conv = norm_of(conv, 0).weight, block->a_log = norm_of(a_log, 0).weight;
    block->dt_bias = norm_of(dt_bias, 0).weight;
    block->shape = shape, block->layer = layer;
    return BlockHandle{block};
  }, "norm"_a, "eps"_a, "qkv"_a, "z"_a, "a"_a, "b"_a, "out"_a, "conv"_a, "a_log"_a, "dt_bias"_a, "out_norm"_a,
     "out_eps"_a, "shape"_a, "layer"_a);
  m.def("network", [](const std::vector<BlockHandle>& blocks, const array& norm, float eps) {
    auto network = std::make_shared<Network>();
    for (const BlockHandle& handle : blocks) network->blocks.push_back(handle.block);
    network->norm = norm_of(norm, eps);
    network->hidden = norm.shape(0);
    return NetworkHandle{network};
  }, "blocks"_a, "norm"_a, "eps"_a);
  m.attr("joins") = true;  // stack takes the tokens of all sequences one after the other
  m.def("stack", &stack, "h"_a, "network"_a, "sequences"_a, "counts"_a, "marks"_a);
}

}  // namespace
}  // namespace lattice
