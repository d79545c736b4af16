"""What a user hears of an exception that came out of a backend; the rest of it is in the log.

Thread: any
"""

from __future__ import annotations

import re

from lattice_cli.errors import EngineFault

# Metal: "[metal::malloc] Unable to allocate N bytes", "[metal::malloc] Attempting to allocate N bytes which is greater
# than the maximum allowed buffer size"; CUDA: "out of memory"; our own pages: "std::bad_alloc".
_NO_MEMORY = re.compile(r"malloc\]|unable to allocate|out of memory|bad_alloc", re.IGNORECASE)


def out_of_memory(fault: BaseException) -> bool:
    """Whether an allocation failed."""
    return isinstance(fault, MemoryError) or (isinstance(fault, RuntimeError) and bool(_NO_MEMORY.search(str(fault))))


def fault_of(fault: BaseException, sentence: str = "generation failed") -> EngineFault:
    """The error of the request it belongs to."""
    if out_of_memory(fault):
        return EngineFault(
            "the server ran out of memory", hint="send a shorter prompt or a lower `max_tokens`, or try again later"
        )
    return EngineFault(sentence)
