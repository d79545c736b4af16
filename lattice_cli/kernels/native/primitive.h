// What every primitive of this module shares: views of arrays and the base class.
//
// The work of a primitive is a lambda that mlx's stream thread runs later. It captures raw pointers and numbers
// only: mlx keeps the arrays alive, and no Python object may be touched there (the main thread waits for this
// one while it holds the interpreter).
#pragma once

#include <cmath>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/fast.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

#include "runtime.h"

namespace mx = mlx::core;
using mx::array;

namespace lattice {
namespace {

// An array as an operand: where it lies, or how to make it dense.
template <class T>
struct ViewOf {
  const T* data;
  mx::Shape shape;
  mx::Strides strides;
  bool dense;

  explicit ViewOf(const array& a)
      : data(reinterpret_cast<const T*>(a.data<char>())), shape(a.shape()), strides(a.strides()),
        dense(a.flags().row_contiguous) {}

  // All elements in row order: in place, or in this thread's scratch memory number USE.
  template <int USE>
  const T* rows() const { return dense ? data : copy<USE>(); }

  template <int USE>
  const T* copy() const {
    int64_t size = 1;
    for (auto length : shape) size *= length;
    T* target = scratch<T, USE>(size);
    std::vector<int64_t> index(shape.size(), 0);
    for (int64_t i = 0; i < size; ++i) {
      int64_t at = 0;
      for (size_t d = 0; d < shape.size(); ++d) at += index[d] * strides[d];
      target[i] = data[at];
      for (size_t d = shape.size(); d-- > 0;) {
        if (++index[d] < shape[d]) break;
        index[d] = 0;
      }
    }
    return target;
  }
};
using View = ViewOf<float>;

bool is_float(const array& a) { return a.dtype() == mx::float32; }
bool on_cpu(mx::StreamOrDevice s) { return mx::to_stream(s).device == mx::Device::cpu; }
void make_room(array& out) { out.set_data(mx::allocator::malloc(out.nbytes())); }

class CpuPrimitive : public mx::Primitive {
 public:
  using mx::Primitive::Primitive;
  void eval_gpu(const std::vector<array>&, std::vector<array>&) override {
    throw std::runtime_error("lattice's primitives run on a CPU");
  }

 protected:
  mx::cpu::CommandEncoder& encoder() { return mx::cpu::get_command_encoder(stream()); }
};

}  // namespace
}  // namespace lattice
