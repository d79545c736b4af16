// One step of decoding: every row gives one token and gets the logits of the next, in one kernel.
//
// One block a multiprocessor walks through the layers; between stages all blocks wait for each other, because a kernel of
// its own for each stage costs the host more than the stage takes. A block says that it has arrived, asks for what it
// will need and no other block makes (weights, states, keys and values), and only then waits. Residuals are added by who
// reads them: a product that is shared by blocks leaves its shares (`Partial`) side by side, so the same numbers are added
// in the same order whatever the grid.
//
// frame.cuh has what all stages need, hidden.cuh the hidden states, recurrent.cuh and attention.cuh the layers' own work.
//
// C, made by cuda_plan.py, has the sizes. Rows keep their lengths, pages of keys and values, and recurrent states in pools
// (cuda_state.py), where the prefill put them; a step appends in place.
#pragma once

#include "attention.cuh"

template <class C>
struct Step : Attention<C> {
  using B = Attention<C>;
  using B::B;
  using typename B::Head, typename B::Linear, typename B::Places;
  template <int SPLITS>
  using Residual = typename B::template Residual<SPLITS>;
  using B::H, B::H0, B::H1, B::JOINED, B::PD, B::PO, B::RP, B::VALUES, B::a, B::rows, B::arrive, B::attend, B::delta_rule, B::embed,
      B::floats, B::head, B::head_shares, B::join_parts, B::joined, B::matrix, B::mixed, B::projections, B::stage_gated,
      B::stage_plain, B::upper, B::wait;

  // Stores a product's share.
  struct Partial {
    float* to;
    int width, rows;
    DEV void operator()(int split, int output, int row, float low, float) const {
      if (row < rows) to[(long(split) * RP + row) * width + output] = low;
    }
  };

  // Every stage waits for the one before it by itself, when its first weights are on their way. Each product stands here
  // once for all kinds of layers: the code of a step should fit into the instruction caches.
  DEV void run() const {
    float *h = a.work + H0, *other = a.work + H1;
    int deltas = 0, attentions = 0;
    embed();
#pragma unroll 1
    for (int i = 0; i < C::LAYERS; i++) {
      const u8* layer = a.layers[i];
      const bool recurrent = C::recurrent(i);
      const Places& at = C::places(recurrent);
      // Addresses are worked out where they are needed: registers are short here.
      const auto out = [&] { return matrix(layer, at.out, H, recurrent ? VALUES : C::HEADS * C::HEAD_DIM); };
      const auto gate = [&] { return matrix(layer, at.gate, C::INTERMEDIATE, H); };
      const auto up = [&] { return matrix(layer, at.up, C::INTERMEDIATE, H); };
      const auto down = [&] { return matrix(layer, at.down, H, C::INTERMEDIATE); };
      const auto ready = [&](int phase) {
        if (phase == 0) wait();
      };
      this->template normed_product<Linear, C::IN_SHARES, false>(
          projections(i), projections(i), Residual<C::DOWN_SPLITS>{h, a.work + PD}, other, floats(layer, at.in_norm),
          Partial{joined(), JOINED, rows});
      arrive();
      if (recurrent) {
        delta_rule(layer, at, deltas++);
      } else {
        attend(layer, at, attentions++);
        arrive();
        wait();
        join_parts();
      }
      arrive();
      product<C, Linear, C::OUT_SHARES, false>(
          rows, out(), out(), C::OUT_SPLITS, ready,
          [&](int begin, int length) {
            if (recurrent && head_shares() > 1)
              stage_gated(floats(layer, at.out_norm), begin, length);
            else
              stage_plain(mixed(), recurrent ? VALUES : C::HEADS * C::HEAD_DIM, begin, length);
          },
          Partial{a.work + PO, H, rows});
      arrive();
      this->template normed_product<Linear, C::UP_SHARES, true>(
          gate(), up(), Residual<C::OUT_SPLITS>{other, a.work + PO}, h, floats(layer, at.post_norm),
          [&](int, int output, int row, float low, float high) {
            if (row < rows) upper()[long(row) * C::INTERMEDIATE + place<Linear>(output)] = narrow<C::HALF>(silu(low) * high);
          });
      arrive();
      product<C, Linear, C::DOWN_SHARES, false>(
          rows, down(), down(), C::DOWN_SPLITS, ready,
          [&](int begin, int length) { stage_plain(upper(), C::INTERMEDIATE, begin, length); },
          Partial{a.work + PD, H, rows});
      arrive();
    }
    finish(Residual<C::DOWN_SPLITS>{h, a.work + PD});
  }

  DEV void finish(const Residual<C::DOWN_SPLITS>& h) const {
    this->template normed_product<Head, C::HEAD_SHARES, false>(
        head(), head(), h, nullptr, a.norm, [&](int, int output, int row, float low, float) {
          if (row < rows) a.logits[long(row) * C::VOCABULARY + output] = low;
        });
    if (block_index() == 0 && thread_index() < rows) a.next_positions[thread_index()] = a.positions[thread_index()] + 1;
  }
};
