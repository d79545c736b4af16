"""A plan of the fused step for a small network, as the text that harness_step.cu includes.

    python -m tests.kernels.cuda.plan 16 4 > plan.h    # bits, tiles of 8 rows

Thread: any
"""

from __future__ import annotations

import sys

from lattice_cli.kernels.cuda_decoder import WARPS
from lattice_cli.kernels.cuda_plan import Plan
from lattice_cli.kernels.cuda_sizes import Layout, Sizes, aligned, matrix_places


def sizes(bits: int) -> Sizes:
    """Qwen3.5 in small: every kind of layer, three value heads a key head."""
    layout = Layout(bits, 32 if bits == 8 else 64)
    return Sizes(
        half=False, linear=layout, embedding=layout, head=layout, hidden=256, intermediate=512, vocabulary=500,
        eps=1e-6, pattern=(True, False, True, True), heads=8, kv_heads=2, head_dim=128, turned=16, scale=128**-0.5,
        gated=True, head_norm=True, key_heads=2, value_heads=6, key_dim=128, value_dim=128,
    )  # fmt: skip


def offsets(sizes: Sizes) -> tuple[dict[str, dict[str, int]], int]:
    """Places of a layer's tensors, in the order of cuda_layout.py, and the bytes of the larger buffer."""
    found: dict[str, dict[str, int]] = {}
    most = 0
    for kind, rows, width in (
        ("Delta", sizes.delta_rows, sizes.values),
        ("Attention", sizes.attention_rows, sizes.heads * sizes.head_dim),
    ):
        tensors = {"IN_NORM": 4 * sizes.hidden, "POST_NORM": 4 * sizes.hidden}
        for name, outputs, columns in (
            ("GATE", sizes.intermediate, sizes.hidden),
            ("UP", sizes.intermediate, sizes.hidden),
            ("DOWN", sizes.hidden, sizes.intermediate),
            ("IN", rows, sizes.hidden),
            ("OUT", sizes.hidden, width),
        ):
            tensors[name] = sizes.linear.nbytes(outputs, columns)
            scales = 2 * outputs * columns // sizes.linear.group if sizes.linear.bits < 16 else 0
            tensors |= {f"{name}_SCALES": scales, f"{name}_BIASES": scales}
        if kind == "Delta":
            tensors |= {"CONV": 16 * sizes.channels, "A_LOG": 4 * sizes.value_heads, "DT_BIAS": 4 * sizes.value_heads}
            tensors["OUT_NORM"] = 4 * sizes.value_dim
        else:
            tensors |= {"Q_NORM": 4 * sizes.head_dim, "K_NORM": 4 * sizes.head_dim}
        end = 0
        found[kind] = {}
        for name, nbytes in tensors.items():
            found[kind][name] = end
            end += aligned(nbytes)
        most = max(most, end)
    return found, most


def main(bits: int, tiles: int) -> None:
    shape = sizes(bits)
    places, layer_bytes = offsets(shape)
    plan = Plan(shape, places, tiles, WARPS, 8, 48_000 if tiles == 1 else 100_000)
    _, end = matrix_places(shape.head, shape.vocabulary, shape.hidden)
    head_bytes = 2 * end + aligned(shape.head.nbytes(shape.vocabulary, shape.hidden))
    sys.stdout.write(plan.source().replace("DEV static", "__host__ DEV static"))  # the program looks into it, too
    sys.stdout.write(f"constexpr long LAYER_BYTES = {layer_bytes}, HEAD_BYTES = {head_bytes};\n")
    sys.stdout.write(f"constexpr int BLOCKS = {plan.blocks};\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
