"""What the role loops know of environments."""

from typing import NamedTuple, Protocol

from agents.agent import TimeStep
from replay.spec import EnvironmentSpec
from replay.steps import Array


class Episode(NamedTuple):
    """One finished episode, as people compare them: raw rewards, whole games."""

    return_: float  # sum of the unclipped rewards, undiscounted
    length: int  # environment steps, counted after frame skip
    environment: int  # which of the B environments it was played in


class Environments(Protocol):
    """`num` environments of one kind in lockstep, each an endless stream of steps.

    An episode's end is followed by one step that ignores its action and shows the first observation of the next
    episode, with reward 0 and `first` set. `terminated` and `truncated` are never both set: where the task ended on
    the very step of a time limit, it terminated.

    Every array given out is the caller's: no later call writes into it. Observations are a [B, ...] array, or a flat
    dict of them ("outer/inner" where the library nests dicts), with the shapes and dtypes of `spec`. A stacked
    observation repeats an episode's first frame where the stack reaches back to before the episode.

    Make one in the process that uses it: its threads don't survive a fork.
    """

    @property
    def spec(self) -> EnvironmentSpec:
        """What one environment shows and takes."""
        ...

    @property
    def num(self) -> int:
        """B, the number of environments."""
        ...

    def reset(self) -> TimeStep:
        """Begins a new episode everywhere. Episodes under way are forgotten, not reported."""
        ...

    def step(self, action: Array) -> TimeStep:
        """Steps all environments with actions [B] int32 or [B, A] float32; continuous ones are clipped to the spec's
        bounds first.
        """
        ...

    def episodes(self) -> list[Episode]:
        """The episodes that finished since the last call, in the order of their ends."""
        ...

    def close(self) -> None:
        """Ends threads and frees what the environments hold. Closing twice does nothing."""
        ...


class AsynchronousEnvironments(Protocol):
    """`num` environments that each go at their own pace: a call takes those that are ready, and the rest step on.

    Each one is an endless stream of steps as in Environments; how the streams interleave is by chance. Everything
    received is to be answered by send(): while fewer environments step than a batch has, receive() would wait for ever.
    """

    @property
    def num(self) -> int:
        """How many environments."""
        ...

    def start(self) -> None:
        """Begins a new episode everywhere; their first observations are received like all others. Call it once."""
        ...

    def receive(self) -> tuple[TimeStep, Array]:
        """The next batch [M, ...] of environments that are ready, each once, and their numbers [M]; waits for it."""
        ...

    def send(self, action: Array, ids: Array) -> None:
        """Has the environments `ids` [M] take actions [M, ...]; doesn't wait."""
        ...

    def episodes(self) -> list[Episode]:
        """The episodes that finished since the last call, in the order of their ends."""
        ...

    def close(self) -> None:
        """Ends threads and frees what the environments hold."""
        ...
