"""Python's garbage collector, held while JAX is imported for the first time."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def held() -> Iterator[None]:
    """For imports that may bring JAX in.

    Where a collection falls on the moment in which jaxlib 0.5.3 makes its registry of pytrees, the process ends with a
    segmentation fault. Whether it does depends on how many objects were made before: the same command then crashes
    every time, and another one never does.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
