"""Weights from a learner to an actor: what publishing costs the learner, and how long they take.

32 MB are published at every step of a jitted learner; the replay shard and the actor are processes of their own. The
bare side inserts and samples the same 32 MB with Reverb's client alone, in the same processes and beside the same
learner, in turns with ours.
"""

import multiprocessing
import statistics
import threading
import time
from typing import Any, NamedTuple

import numpy as np
from absl import app, flags

MEGABYTES = flags.DEFINE_integer("weights_mb", 32, "Megabytes of weights.")
TURNS = flags.DEFINE_integer("weights_turns", 8, "Turns of each side.")

BARE = "bare"  # the table of the bare side
STEP_S = 0.005  # what one step of the learner should take
SECONDS = 2.0  # of publishing at every step, in one turn
FIRST = 1_000_000  # versions above are timed ones


class Figures(NamedTuple):
    """Medians over the turns; seconds, unless said."""

    step: float  # of the learner, publishing left out
    publish: float  # one publish()
    fraction: float  # of the learner thread's time that it spent in publish()
    slowdown: float  # time of a learner's step while weights are published, over that while they aren't
    loaded: float  # from publish() to newest() in the actor, of those that arrive while every step publishes
    ours: float  # from publish() to newest() in the actor, of one publication
    bare: float  # client.insert and client.sample of the same array
    ratio: float  # ours / bare, of turns that follow each other
    bytes_when_nothing_is_new: int  # downloaded in a second in which nothing was published


def _serve(port: int, ready: Any, stop: Any) -> None:
    import reverb

    from replay.variables import make_variables_tables

    bare = reverb.Table(
        BARE, reverb.selectors.Lifo(), reverb.selectors.Fifo(), 1, rate_limiter=reverb.rate_limiters.MinSize(1)
    )
    server = reverb.Server([*make_variables_tables(), bare], port=port)
    ready.set()
    stop.wait()
    server.stop()


def _act(address: str, size: int, pipe: Any) -> None:
    """The actor: answers "fetch" with the time at which a timed version came, "sample" with that of a bare sample."""
    import reverb

    from replay.variables import VariableFetcher

    fetcher = VariableFetcher(address, {"w": np.zeros(size, np.float32)})
    fetcher.start()
    client = reverb.Client(address)
    pipe.send("ready")
    for request, version in iter(pipe.recv, None):
        if request == "fetch":
            while (newest := fetcher.newest()) is None or newest[1] != version:
                time.sleep(0.001)  # an actor steps its environments meanwhile
            assert newest[0]["w"][-1] == version % 1000
            pipe.send(time.monotonic())
        elif request == "sample":
            next(iter(client.sample(BARE, emit_timesteps=False)))
            pipe.send(time.monotonic())
        elif request == "watch":
            pipe.send(_watch(fetcher, seconds=version))
        else:
            before = fetcher.bytes_downloaded
            time.sleep(1.0)
            pipe.send(fetcher.bytes_downloaded - before)
    fetcher.close()


def _watch(fetcher: Any, seconds: float) -> list[tuple[int, float]]:
    """The versions that arrive, and when."""
    arrived, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        newest = fetcher.newest()
        if newest is not None:
            arrived.append((newest[1], time.monotonic()))
        time.sleep(0.001)
    return arrived


class _Learner:
    """A thread that steps without pause, and publishes at every step when told to."""

    def __init__(self, publisher: Any, size: int) -> None:
        import jax

        self._jax = jax
        self._publisher = publisher
        self._weights = jax.random.normal(jax.random.key(0), (size,), np.float32)
        self._state = jax.numpy.ones((192, 192))
        repeats = 1
        while True:
            self._step = jax.jit(lambda x, n=repeats: jax.lax.fori_loop(0, n, lambda _, y: jax.numpy.tanh(y @ y), x))
            self._step(self._state).block_until_ready()
            start = time.perf_counter()
            self._step(self._state).block_until_ready()
            if time.perf_counter() - start > STEP_S:
                break
            repeats *= 2
        self.publishing = False
        self.steps: list[float] = []  # seconds each
        self.publishes: list[float] = []
        self.published: dict[int, float] = {}  # version: when publish() was called
        self._version = 0
        self._stop = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop:
            start = time.perf_counter()
            self._state = self._step(self._state).block_until_ready()
            middle = time.perf_counter()
            if self.publishing:
                self._version += 1
                self.published[self._version] = time.monotonic()
                self._publisher.publish({"w": self._weights}, self._version)
            self.steps.append(middle - start)
            self.publishes.append(time.perf_counter() - middle)

    def observe(self, seconds: float, publishing: bool) -> tuple[float, float, float]:
        """Medians of a step and of publish(), and the fraction of the time spent in publish()."""
        self.publishing = publishing
        time.sleep(0.1)
        first = len(self.steps)
        time.sleep(seconds)
        steps, publishes = self.steps[first:], self.publishes[first:]
        self.publishing = False
        return statistics.median(steps), statistics.median(publishes), sum(publishes) / (sum(steps) + sum(publishes))

    def close(self) -> None:
        self._stop = True
        self._thread.join()


def _delays(publisher: Any, client: Any, pipe: Any, weights: np.ndarray[Any, Any], turn: int) -> tuple[float, float]:
    """Seconds that ours and the bare side took, one after the other, each beginning with nothing under way."""
    while (counts := publisher.counts).published > counts.inserted[0] + counts.replaced[0]:
        time.sleep(0.01)
    time.sleep(0.2)  # and downloaded
    weights[-1] = (FIRST + turn) % 1000
    ours = weights.copy()
    pipe.send(("fetch", FIRST + turn))
    start = time.monotonic()
    publisher.publish({"w": ours}, FIRST + turn)
    fetched = pipe.recv() - start
    start = time.monotonic()
    client.insert([weights], {BARE: 1.0})
    pipe.send(("sample", 0))
    return fetched, pipe.recv() - start


def measure(megabytes: int = 32, turns: int = 8) -> Figures:
    """Starts a shard and an actor, and measures in turns."""
    import portpicker
    import reverb

    from replay.variables import VariablePublisher

    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    port = portpicker.pick_unused_port()
    address = f"localhost:{port}"
    size = megabytes * 1_000_000 // 4
    pipe, theirs = context.Pipe()
    server = context.Process(target=_serve, args=(port, ready, stop), daemon=True)
    actor = context.Process(target=_act, args=(address, size, theirs), daemon=True)
    server.start()
    actor.start()
    if not ready.wait(120) or not pipe.poll(120):
        raise RuntimeError(f"the shard at {address} or the actor did not start within 120 s")
    pipe.recv()
    publisher = VariablePublisher([address])
    client = reverb.Client(address)
    weights = np.random.default_rng(0).standard_normal(size, np.float32)
    learner = _Learner(publisher, size)
    try:
        observed, idle, delays, loaded = [], [], [], []
        for turn in range(turns + 1):
            quiet = learner.observe(SECONDS / 2, publishing=False)
            pipe.send(("watch", SECONDS))
            busy = learner.observe(SECONDS, publishing=True)
            arrived = pipe.recv()
            both = _delays(publisher, client, pipe, weights, turn)
            if turn:  # the first warms up
                idle.append(quiet[0])
                observed.append(busy)
                loaded += [when - learner.published[version] for version, when in arrived if version < FIRST]
                delays.append(both)
        time.sleep(1.0)
        pipe.send(("idle", 0))
        unchanged = pipe.recv()
    finally:
        learner.close()
        publisher.close(5.0)
        pipe.send(None)
        actor.join(10)
        stop.set()
        server.join(10)
    steps, publishes, fractions = zip(*observed, strict=True)
    ours, bare = zip(*delays, strict=True)
    return Figures(
        step=statistics.median(idle),
        publish=statistics.median(publishes),
        fraction=statistics.median(fractions),
        slowdown=statistics.median(a / b for a, b in zip(steps, idle, strict=True)),
        loaded=statistics.median(loaded),
        ours=statistics.median(ours),
        bare=statistics.median(bare),
        ratio=statistics.median(a / b for a, b in delays),
        bytes_when_nothing_is_new=unchanged,
    )


def main(arguments: list[str]) -> None:
    del arguments
    figures = measure(MEGABYTES.value, TURNS.value)
    print(f"{MEGABYTES.value} MB of weights, published at every learner step of {figures.step * 1e3:.1f} ms")
    print(f"publish()                            {figures.publish * 1e6:9.1f} us")
    print(f"learner thread's time in publish()   {figures.fraction:9.3%}  (at most 1 %)")
    print(f"step while publishing / while not    {figures.slowdown:9.2f}")
    print(f"... -> newest() in the actor meanwhile {figures.loaded * 1e3:7.1f} ms")
    print(f"one publish() -> newest()            {figures.ours * 1e3:9.1f} ms")
    print(f"bare insert + sample                 {figures.bare * 1e3:9.1f} ms")
    print(f"ours / bare                          {figures.ratio:9.2f}  (at most 1.2)")
    print(f"bytes in a second with nothing new   {figures.bytes_when_nothing_is_new:9d}  (0)")


if __name__ == "__main__":
    app.run(main)
