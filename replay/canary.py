"""Whether a shard really works: an item goes in and comes out again, in a table that nothing else uses."""

import concurrent.futures
import contextlib
import secrets
import time
from typing import Any

import numpy as np
import reverb

from replay.stream import Stream

CANARY = "canary"  # the table's name
SIZE = 16  # bytes of an item


def make_canary_table() -> reverb.Table:
    """Holds one item, and hands it out as often as it is asked for."""
    return reverb.Table(
        name=CANARY,
        sampler=reverb.selectors.Lifo(),
        remover=reverb.selectors.Fifo(),
        max_size=1,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )


class Canary:
    """Probes one shard again and again. One thread uses it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stream = Stream(address)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, f"canary-{address}")

    def probe(self, timeout_s: float) -> tuple[float, float]:
        """Puts an item in and takes it out again; the seconds that each took.

        Raises:
            TimeoutError: that took longer than `timeout_s` together; says which part.
            RuntimeError: another item came out, or the shard refused.
        """
        began = time.monotonic()
        sent = np.frombuffer(secrets.token_bytes(SIZE), np.uint8)
        try:
            if not self._stream.is_confirmed():
                raise TimeoutError
            writer = self._stream.open({"item": SIZE}, steps=1)
            writer.append({"item": sent})
            writer.create_item(CANARY, 1.0, {"item": writer.history["item"][-1:]})
            while not self._stream.is_confirmed():
                if time.monotonic() - began > timeout_s:
                    raise TimeoutError
        except TimeoutError:
            raise TimeoutError(f"{self._address} has confirmed no insertion within {timeout_s:g} s") from None
        except reverb.errors.ReverbError as error:
            raise RuntimeError(f"{self._address} takes no item: {error}") from error
        inserted = time.monotonic()
        try:
            got = self._thread.submit(self._sample).result(max(0.0, timeout_s - (inserted - began)))
        except concurrent.futures.TimeoutError:  # the thread stays in the call, which can't be cancelled
            self._thread = concurrent.futures.ThreadPoolExecutor(1, f"canary-{self._address}")
            raise TimeoutError(f"{self._address} has given no sample within {timeout_s:g} s") from None
        if not np.array_equal(got, sent):
            raise RuntimeError(f"{self._address} gave {got.tolist()}, and {sent.tolist()} was put in: who else writes?")
        return inserted - began, time.monotonic() - inserted

    def close(self) -> None:
        """Lets go of the shard."""
        with contextlib.suppress(Exception):
            self._stream.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _sample(self) -> np.ndarray[Any, Any]:
        sample = next(iter(reverb.Client(self._address).sample(CANARY, emit_timesteps=False)))
        item: np.ndarray[Any, Any] = np.asarray(sample.data[0])[0]
        return item
