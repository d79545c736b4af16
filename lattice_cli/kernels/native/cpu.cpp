// The Python module `lattice_cpu`: the loops of this folder as primitives of an mlx graph.
//
// Each primitive takes float32, runs on a CPU stream and has the signature of the mlx function it stands in for
// (mlx 0.32); what it does not know goes to that function, so a caller need not ask. Shapes: see loops.h.
// One translation unit: the headers hold the rest.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;

#include "delta.h"
#include "draw.h"
#include "pointwise.h"
#include "product.h"
#include "reduce.h"
#include "sdpa.h"
#include "stack.h"

NB_MODULE(lattice_cpu, m) {
  using namespace lattice;
  using namespace nb::literals;

  nb::module_::import_("mlx.core");
  nb::class_<PackedWeight>(m, "PackedWeight")
      .def_prop_ro("store", [](const PackedWeight& w) { return w.store; })
      .def_prop_ro("rows", [](const PackedWeight& w) { return w.layout.rows; })
      .def_prop_ro("columns", [](const PackedWeight& w) { return w.layout.columns; });
  m.def("start", [](int threads) {
    if (team == nullptr) team = new Team(threads - 1);
  }, "threads"_a, "Make the team of threads, once; before anything else.");
  m.def("resize", [](int threads) { team->resize(threads); }, "threads"_a);
  m.def("isa", [] { return std::string(isa_name(chosen_isa)); });
  m.def("choose", [](const std::string& name) {
    for (Isa isa : kAllIsas) {
      if (name == isa_name(isa) && has_isa(isa)) return chosen_isa = isa, true;
    }
    return false;
  }, "isa"_a, "Use an instruction set by name; False where this processor lacks it. For tests.");
  m.def("pack", &pack, "weight"_a, "scales"_a, "biases"_a, "group_size"_a, "bits"_a);
  m.def("pack_dense", &pack_dense, "weight"_a);
  m.def("product", &product, "x"_a, "weight"_a, "digits"_a = 1, "stream"_a = nb::none());
  m.def("embed", &embed, "ids"_a, "weight"_a, "stream"_a = nb::none());
  m.def("rms_norm", &rms_norm, "x"_a, "weight"_a.none(), "eps"_a, nb::kw_only(), "stream"_a = nb::none());
  m.def("swiglu", &swiglu, "gate"_a, "x"_a);
  m.def("rope", &rope, "a"_a, "dims"_a, nb::kw_only(), "traditional"_a, "base"_a.none(), "scale"_a, "offset"_a,
        "freqs"_a = nb::none(), "stream"_a = nb::none());
  m.def("sdpa", &sdpa, "q"_a, "k"_a, "v"_a, nb::kw_only(), "scale"_a, "mask"_a = nb::none(), "sinks"_a = nb::none(),
        "force_fused"_a = false, "stream"_a = nb::none());
  bind_delta(m);
  bind_draw(m);
  bind_reduce(m);
  bind_stack(m);
}
