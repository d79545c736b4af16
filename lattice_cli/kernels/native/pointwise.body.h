// RMSNorm, SwiGLU and RoPE on float32 rows. Needs: vector.body.h.

// out = x / sqrt(mean(x^2) + eps) * weight; `weight` may be null (ones).
static void rms_norm(const float* x, const float* weight, float eps, int64_t size, float* out) {
  vf squares = {};
  int64_t i = 0;
  for (; i + W <= size; i += W) squares += load(x + i) * load(x + i);
  float total = sum(squares);
  for (; i < size; ++i) total += x[i] * x[i];
  const float factor = 1.0f / __builtin_sqrtf(total / float(size) + eps);
  for (i = 0; i + W <= size; i += W) {
    const vf scaled = load(x + i) * factor;
    store(out + i, weight ? scaled * load(weight + i) : scaled);
  }
  for (; i < size; ++i) out[i] = x[i] * factor * (weight ? weight[i] : 1.0f);
}

// out = gate * sigmoid(gate) * x.
static void swiglu(const float* gate, const float* x, int64_t size, float* out) {
  int64_t i = 0;
  for (; i + W <= size; i += W) {
    const vf g = load(gate + i);
    store(out + i, g / (1.0f + exponential(-g)) * load(x + i));
  }
  for (; i < size; ++i) {
    const vf g = splat(gate[i]);
    out[i] = (g / (1.0f + exponential(-g)))[0] * x[i];
  }
}

// Turns the first 2 * half numbers of a head by angles whose cosines and sines are given; the rest is copied.
// Pairs are (i, i + half), or (2i, 2i + 1) when `traditional`.
static void rope(
    const float* x, const float* cosines, const float* sines, int64_t half, int64_t size, bool traditional,
    float* out) {
  int64_t i = 0;
  if (!traditional) {
    for (; i + W <= half; i += W) {
      const vf a = load(x + i), b = load(x + half + i), c = load(cosines + i), s = load(sines + i);
      store(out + i, a * c - b * s);
      store(out + half + i, a * s + b * c);
    }
  }
  for (; i < half; ++i) {
    const int64_t first = traditional ? 2 * i : i, second = traditional ? 2 * i + 1 : half + i;
    const float a = x[first], b = x[second];
    out[first] = a * cosines[i] - b * sines[i];
    out[second] = a * sines[i] + b * cosines[i];
  }
  for (i = 2 * half; i < size; ++i) out[i] = x[i];
}

// out += x.
static void add(const float* x, int64_t size, float* out) {
  int64_t i = 0;
  for (; i + W <= size; i += W) store(out + i, load(out + i) + load(x + i));
  for (; i < size; ++i) out[i] += x[i];
}

// out *= sigmoid(gate).
static void sigmoid_gate(const float* gate, int64_t size, float* out) {
  int64_t i = 0;
  for (; i + W <= size; i += W) store(out + i, load(out + i) / (1.0f + exponential(-load(gate + i))));
  for (; i < size; ++i) out[i] /= (1.0f + exponential(splat(-gate[i])))[0];
}
