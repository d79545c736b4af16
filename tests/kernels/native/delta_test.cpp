// The loops of Gated DeltaNet layers and of row reductions against plain double-precision computations, on random
// shapes, in every instruction set this processor (or the emulator) has. No mlx, no Python.
//
//   delta_test [shapes per loop]      exit status 0: all within tolerance; each failure is one line on stdout

#include <cstdlib>
#include <cstring>

#include "check.h"
#include "loops.h"

using namespace lattice;

static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

static int one_of(const std::vector<int>& choices) { return choices[size_t(any(0, int(choices.size()) - 1))]; }

// The scan.

struct Sequence {
  int64_t T, Dk, Dv, pad;  // `pad`: floats between tokens that belong to nobody
  std::vector<float> q, k, v, g, beta, state;
  std::vector<uint8_t> mask;  // empty: none
};

struct Result {
  std::vector<float> out, state;

  bool operator==(const Result& other) const { return same_bits(out, other.out) && same_bits(state, other.state); }
};

static Sequence make_sequence(bool masked) {
  Sequence s;
  s.T = one_of({1, 2, 3, 15, 16, 17, 33, 40});
  s.Dk = one_of({1, 3, 16, 17, 32, 60, 64, 128, 128, 131, 192});
  s.Dv = any(1, 40);
  s.pad = one_of({0, 1, 5, 16});
  s.q = normals(s.T * (s.Dk + s.pad)), s.k = normals(s.T * (s.Dk + s.pad)), s.v = normals(s.T * (s.Dv + s.pad));
  for (int64_t t = 0; t < s.T; ++t) {
    double squares = 0;
    float* k = s.k.data() + t * (s.Dk + s.pad);
    for (int64_t i = 0; i < s.Dk; ++i) squares += double(k[i]) * k[i];
    for (int64_t i = 0; i < s.Dk; ++i) k[i] = float(k[i] / std::sqrt(squares + 1e-6));
    s.g.push_back(1 / (1 + std::exp(-3 - normal())));
    s.beta.push_back(1 / (1 + std::exp(-normal())));
    if (masked) s.mask.push_back(uint8_t(any(0, 2) != 0));
  }
  s.state = normals(s.Dk * s.Dv);
  return s;
}

enum class Place { apart, in_place, zeros };  // where the state comes from

// Tokens [first, last) and rows [row, end) of a sequence, added to what `result` holds.
static void scan(
    const DeltaLoops& l, const Sequence& s, Place place, int64_t first, int64_t last, int64_t row, int64_t end,
    Result& result) {
  DeltaScan t{};
  t.tokens = last - first, t.key_size = s.Dk, t.value_size = s.Dv;
  t.q_stride = t.k_stride = s.Dk + s.pad, t.v_stride = s.Dv + s.pad, t.gate_stride = 1, t.out_stride = s.Dv;
  t.q = s.q.data() + first * t.q_stride, t.k = s.k.data() + first * t.k_stride;
  t.v = s.v.data() + first * t.v_stride;
  t.g = s.g.data() + first, t.beta = s.beta.data() + first;
  t.mask = s.mask.empty() ? nullptr : s.mask.data() + first;
  const std::vector<float> before = result.state;
  t.before = place == Place::zeros ? nullptr : place == Place::apart ? before.data() : result.state.data();
  t.after = result.state.data();
  t.out = result.out.data() + first * s.Dv;
  std::vector<float> work(size_t(t.work_floats()), NAN);
  l.delta_scan(t, row, end, work.data());
}

static Result whole(const DeltaLoops& l, const Sequence& s, Place place) {
  Result result{std::vector<float>(size_t(s.T * s.Dv), NAN), s.state};
  scan(l, s, place, 0, s.T, 0, s.Dv, result);
  return result;
}

// As `error`, where numbers that cancel out are not held to more than those they came from, which are about 1.
static double error_of_sums(std::vector<float> got, std::vector<double> want) {
  got.push_back(1), want.push_back(1);
  return error(got, want);
}

static void check_values(const Sequence& s, bool zeros, const Result& got, const std::string& what) {
  std::vector<double> state(s.state.begin(), s.state.end()), out(size_t(s.T * s.Dv));
  if (zeros) state.assign(state.size(), 0.0);
  for (int64_t t = 0; t < s.T; ++t) {
    const float *k = s.k.data() + t * (s.Dk + s.pad), *q = s.q.data() + t * (s.Dk + s.pad);
    for (int64_t row = 0; row < s.Dv; ++row) {
      std::vector<double> next(state.begin() + row * s.Dk, state.begin() + (row + 1) * s.Dk);
      double kv = 0, read = 0;
      for (int64_t i = 0; i < s.Dk; ++i) next[size_t(i)] *= s.g[size_t(t)], kv += next[size_t(i)] * k[i];
      const double delta = (s.v[size_t(t * (s.Dv + s.pad) + row)] - kv) * s.beta[size_t(t)];
      for (int64_t i = 0; i < s.Dk; ++i) next[size_t(i)] += k[i] * delta, read += next[size_t(i)] * q[i];
      out[size_t(t * s.Dv + row)] = read;
      if (s.mask.empty() || s.mask[size_t(t)]) std::copy(next.begin(), next.end(), state.begin() + row * s.Dk);
    }
  }
  const double out_error = error_of_sums(got.out, out), state_error = error_of_sums(got.state, state);
  expect(out_error < 3e-6, what + ": output, error " + std::to_string(out_error));
  expect(state_error < 3e-6, what + ": state, error " + std::to_string(state_error));
}

// However a sequence is cut, over time or over rows, its bits are the same.
static void check_cuts(const DeltaLoops& l, const Sequence& s, const Result& want, const std::string& what) {
  for (int64_t cut = 1; cut < s.T; ++cut) {
    Result got{std::vector<float>(want.out.size(), NAN), s.state};
    scan(l, s, Place::apart, 0, cut, 0, s.Dv, got);
    scan(l, s, Place::in_place, cut, s.T, 0, s.Dv, got);
    expect(got == want, what + ": cut before token " + std::to_string(cut));
  }
  Result stepped{std::vector<float>(want.out.size(), NAN), s.state};
  for (int64_t t = 0; t < s.T; ++t) scan(l, s, Place::in_place, t, t + 1, 0, s.Dv, stepped);
  expect(stepped == want, what + ": token by token");
  Result sliced{std::vector<float>(want.out.size(), NAN), s.state};
  for (int64_t row = 0, end; row < s.Dv; row = end) {
    end = std::min<int64_t>(s.Dv, row + any(1, 11));
    scan(l, s, Place::in_place, 0, s.T, row, end, sliced);
  }
  expect(sliced == want, what + ": rows apart");
}

static void test_scan(const DeltaLoops& l, const std::string& isa, int shapes) {
  for (int i = 0; i < shapes; ++i) {
    const bool masked = any(0, 1);
    Sequence s = make_sequence(masked);
    const std::string what = isa + " scan T " + std::to_string(s.T) + " Dk " + std::to_string(s.Dk) + " Dv " +
        std::to_string(s.Dv) + (masked ? " masked" : "");
    const Result apart = whole(l, s, Place::apart);
    check_values(s, false, apart, what);
    check_values(s, true, whole(l, s, Place::zeros), what + " from zeros");
    expect(whole(l, s, Place::in_place) == apart, what + ": in place");
    check_cuts(l, s, apart, what);
    s.mask.clear();
    const Result unmasked = whole(l, s, Place::apart);
    s.mask.assign(size_t(s.T), 1);
    expect(whole(l, s, Place::apart) == unmasked, what + ": a mask of ones");
  }
}

// Gates, convolution, norms.

static void test_gates(const DeltaLoops& l, const std::string& isa, int shapes) {
  for (int i = 0; i < shapes; ++i) {
    const int heads = any(1, 40);
    const float spread = float(one_of({1, 10, 60}));
    auto a = normals(heads), b = normals(heads), a_log = normals(heads), bias = normals(heads);
    for (float& value : a) value *= spread;
    for (float& value : b) value *= spread;
    const float most = any(0, 1) ? 2.0f : 1.0f;
    std::vector<float> g(static_cast<size_t>(heads), NAN), beta = g;
    std::vector<double> want_g, want_beta;
    for (size_t h = 0; h < size_t(heads); ++h) {
      const double x = double(a[h] + bias[h]);
      const double softplus = std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
      want_g.push_back(std::exp(-std::exp(double(a_log[h])) * softplus));
      want_beta.push_back(most / (1 + std::exp(-double(b[h]))));
    }
    l.delta_gates(a.data(), b.data(), a_log.data(), bias.data(), most, heads, g.data(), beta.data());
    for (size_t h = 0; h < size_t(heads); ++h) {
      // exp(y) is as exact as y is: 2^-24 of it.
      const double room_g = 3e-7 * (2 + std::fabs(std::log(want_g[h] + 1e-30))), room_beta = 1e-6;
      expect(std::fabs(g[h] - want_g[h]) <= room_g * want_g[h] + 1e-37, isa + " gate at " + std::to_string(a[h]));
      const double away = std::fabs(beta[h] - want_beta[h]);
      expect(away <= room_beta * want_beta[h] + 1e-37, isa + " beta at " + std::to_string(b[h]));
    }
    a[0] = b[0] = NAN;
    l.delta_gates(a.data(), b.data(), a_log.data(), bias.data(), most, heads, g.data(), beta.data());
    expect(std::isnan(g[0]) && std::isnan(beta[0]), isa + " gates of a NaN");
  }
}

static void test_silu(const DeltaLoops& l, const std::string& isa, int shapes) {
  for (int i = 0; i < shapes; ++i) {
    auto x = normals(any(1, 200));
    std::vector<float> out(x.size()), alone(x.size());
    std::vector<double> want;
    for (float& value : x) value *= 30, want.push_back(value / (1 + std::exp(-double(value))));
    l.silu(x.data(), int64_t(x.size()), out.data());
    expect(error(out, want) < 1e-6, isa + " silu of " + std::to_string(x.size()));
    for (size_t j = 0; j < x.size(); ++j) l.silu(&x[j], 1, &alone[j]);
    expect(same_bits(out, alone), isa + " silu: a number depends on its place");
    x[0] = NAN;
    l.silu(x.data(), int64_t(x.size()), out.data());
    expect(std::isnan(out[0]), isa + " silu of a NaN");
  }
}

static void test_conv(const DeltaLoops& l, const std::string& isa, int shapes) {
  for (int i = 0; i < shapes; ++i) {
    CausalConv t{};
    t.tokens = any(1, 12), t.channels = any(1, 2) * any(1, 256), t.taps = any(2, 8), t.silu = any(0, 1);
    t.x_stride = t.channels + any(0, 3), t.out_stride = t.channels + any(0, 3);
    const auto x = normals((t.tokens + t.taps - 1) * t.x_stride), weight = normals(t.channels * t.taps);
    std::vector<float> out(size_t(t.tokens * t.out_stride), 7.0f), alone = out;
    std::vector<double> want(out.size(), 7.0);
    for (int64_t token = 0; token < t.tokens; ++token) {
      for (int64_t c = 0; c < t.channels; ++c) {
        double y = 0;
        for (int64_t j = 0; j < t.taps; ++j) {
          y += double(x[size_t((token + j) * t.x_stride + c)]) * weight[size_t(c * t.taps + j)];
        }
        want[size_t(token * t.out_stride + c)] = t.silu ? y / (1 + std::exp(-y)) : y;
      }
    }
    const auto blocks = [&](const CausalConv& conv) {
      for (int64_t c = 0; c < t.channels; c += CausalConv::kBlock) {
        l.conv_silu(conv, c, std::min(t.channels, c + CausalConv::kBlock));
      }
    };
    t.x = x.data(), t.weight = weight.data(), t.out = out.data();
    blocks(t);
    const std::string what = isa + " convolution of " + std::to_string(t.channels) + " channels, " +
        std::to_string(t.taps) + " taps";
    expect(error(out, want) < 1e-6, what + ": error " + std::to_string(error(out, want)));
    for (int64_t token = 0; token < t.tokens; ++token) {
      CausalConv one = t;
      one.tokens = 1, one.x += token * t.x_stride, one.out = alone.data() + token * t.out_stride;
      blocks(one);
    }
    expect(same_bits(out, alone), what + ": a token depends on the others");
  }
}

static void test_norms(const DeltaLoops& l, const std::string& isa, int shapes) {
  for (int i = 0; i < shapes; ++i) {
    const int size = any(1, 200);
    const auto x = normals(size), weight = normals(size), gate = normals(size);
    std::vector<float> out(static_cast<size_t>(size));
    double squares = 0;
    for (const float value : x) squares += double(value) * value;
    const double factor = 1 / std::sqrt(squares / size + 1e-6);
    std::vector<double> scaled, gated;
    for (size_t j = 0; j < size_t(size); ++j) {
      scaled.push_back(x[j] * factor * 0.25);
      gated.push_back(gate[j] / (1 + std::exp(-double(gate[j]))) * x[j] * factor * weight[j]);
    }
    l.scaled_norm(x.data(), 1e-6f, 0.25f, size, out.data());
    expect(error(out, scaled) < 1e-6, isa + " scaled norm of " + std::to_string(size));
    l.gated_norm(x.data(), weight.data(), gate.data(), 1e-6f, size, out.data());
    expect(error(out, gated) < 1e-6, isa + " gated norm of " + std::to_string(size));
  }
}

// Reductions.

static float log_sum(const DeltaLoops& l, const std::vector<float>& x, int64_t piece) {
  std::vector<float> tops, totals;
  for (int64_t at = 0; at < int64_t(x.size()); at += piece) {
    tops.push_back(0), totals.push_back(0);
    l.soft_sum(x.data() + at, std::min<int64_t>(piece, int64_t(x.size()) - at), &tops.back(), &totals.back());
  }
  return l.soft_join(tops.data(), totals.data(), int64_t(tops.size()));
}

// The first NaN, else the first of the largest.
static size_t place_of_largest(const std::vector<float>& x) {
  size_t best = 0;
  for (size_t i = 1; i < x.size(); ++i) {
    if (x[i] > x[best] || (std::isnan(x[i]) && !std::isnan(x[best]))) best = i;
  }
  return best;
}

static void test_reductions(const DeltaLoops& l, const std::string& isa, int shapes) {
  for (int i = 0; i < 4 * shapes; ++i) {
    const int size = any(0, 3) ? any(1, 150) : any(1, 5000);
    auto x = normals(size);
    const float spread = float(one_of({0, 1, 30}));
    for (float& value : x) value *= spread;
    for (int special = any(0, 3); special > 0; --special) {
      x[size_t(any(0, size - 1))] = std::vector<float>{NAN, INFINITY, -INFINITY, -INFINITY, 2, 2}[size_t(any(0, 5))];
    }
    if (any(0, 9) == 0) x.assign(x.size(), -INFINITY);
    double top = -INFINITY, total = 0;
    for (const float value : x) top = std::max(top, double(value));
    for (const float value : x) total += std::exp(double(value) - top);
    const double want = std::isinf(top) ? top : top + std::log(total);
    const bool nan = std::any_of(x.begin(), x.end(), [](float value) { return std::isnan(value); });
    const float got = log_sum(l, x, any(0, 1) ? size : any(1, size));
    const bool near = std::isinf(want) ? got == want : std::fabs(got - want) < 1e-6 * (1 + std::fabs(want));
    expect(nan ? std::isnan(got) : near, isa + " logsumexp of " + std::to_string(size) + ": " + std::to_string(got));
    expect(
        l.largest(x.data(), size) == int64_t(place_of_largest(x)), isa + " largest of " + std::to_string(size));
  }
}

int main(int count, char** words) {
  const auto each = [](Isa isa, const std::string& name, int shapes) {
    const DeltaLoops& l = delta_loops(isa);
    test_scan(l, name, shapes);
    test_gates(l, name, shapes);
    test_silu(l, name, shapes);
    test_conv(l, name, shapes);
    test_norms(l, name, shapes);
    test_reductions(l, name, shapes);
  };
  return run_tests(count, words, each, [](int) {});
}
