"""What the C library keeps of what was freed."""

import contextlib
import ctypes


def give_back_memory() -> None:
    """Gives what is free back to the kernel. It would stay with the process, in pieces that what comes next doesn't fit
    into: a program that makes something large again and again grows for hours.
    """
    with contextlib.suppress(AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
