// Everything that is compiled once per instruction set, and its table. Included by loops.h only.
#include "vector.body.h"
#include "product.body.h"
#include "pointwise.body.h"
#include "attention.body.h"
#include "paged.body.h"
#include "delta.body.h"
#include "reduce.body.h"

LATTICE_TABLE
LATTICE_DELTA_TABLE
