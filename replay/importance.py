"""How likely each sample was, over all shards together, whatever share of a batch each shard answered.

A shard knows only its own probabilities. But every sample tells its shard's mass, the sum of priority^alpha over all of
its items: mass = priority^alpha / probability (the probability is within the shard). So over all shards the item has

    P(i) = priority^alpha / sum of masses                 (Schaul et al., 2016, eq. 1, as if there were one table)

and it was drawn with the density share(shard) x probability, where share is what the shard really answered of late.
P(i) over that density is (mass of the shard / sum of masses) / share: the same for all samples of one shard.
"""

import dataclasses
from typing import Any

import numpy as np

from replay.steps import SampleInfo

ndarray = np.ndarray[Any, Any]

HORIZON = 200  # batches that a share is the decayed average of
FORGET = 1_000  # batches without an answer after which a shard counts as gone, and its items with it
SMALLEST = 1e-30  # priority^alpha of items of priority 0, which Reverb draws only where all are 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HostSamples:
    """What the shards said of the samples of a batch. All [B], on the host."""

    shard: ndarray  # int32, index of the shard that owns the item
    key: ndarray  # uint64, the item's key in that shard
    probability: ndarray  # float64, within the shard
    table_size: ndarray  # int64, items in the shard when it was drawn
    priority: ndarray  # float64
    times_sampled: ndarray  # int32


class ShardMasses:
    """Keeps each shard's newest mass and size, and its share of the samples."""

    def __init__(
        self,
        shards: int,
        *,
        exponent: float,
        prioritized: bool,
        each_once: bool = False,
        horizon: int = HORIZON,
        forget: int = FORGET,
    ) -> None:
        """Starts with no shard known.

        Args:
            shards: how many there are.
            exponent: alpha.
            prioritized: False where items are drawn uniformly: every item then has mass 1.
            each_once: for queues, where every item is drawn exactly once: the correction is then 1.
            horizon: batches that a share is averaged over, exponentially decayed; 0 takes each batch by itself.
            forget: batches without an answer after which a shard drops out of the total.
        """
        self._exponent = exponent
        self._prioritized = prioritized
        self._each_once = each_once
        self._decay = 1.0 - 1.0 / horizon if horizon else 0.0
        self._forget = forget
        self._mass = np.zeros(shards)
        self._size = np.zeros(shards, np.int64)
        self._answered = np.zeros(shards)  # samples, decayed
        self._unseen = np.zeros(shards, np.int64)  # batches since the last answer

    @property
    def shares(self) -> ndarray:
        """[shards] what each answered of late; sums to 1."""
        return np.asarray(self._answered / max(self._answered.sum(), SMALLEST))

    @property
    def masses(self) -> ndarray:
        """[shards] newest known sum of priority^alpha, 0 for a shard that is unknown or gone."""
        return self._mass.copy()

    def weigh(self, samples: HostSamples) -> SampleInfo:
        """Takes a batch into account, then says how likely its samples were. All results [B]."""
        scaled = self._scaled(samples)
        self._observe(samples, scaled)
        total = self._mass.sum()
        probability = scaled / total
        if self._each_once:
            correction = np.ones_like(probability)
        else:
            correction = (self._mass / total / np.maximum(self.shares, SMALLEST))[samples.shard]
        return SampleInfo(
            probability=probability.astype(np.float32),
            correction=correction.astype(np.float32),
            items=np.full(probability.shape, self._size.sum(), np.int32),
        )

    def _scaled(self, samples: HostSamples) -> ndarray:
        """priority^alpha of each sample."""
        if not self._prioritized:
            return np.ones(samples.shard.shape)
        return np.maximum(np.power(samples.priority, self._exponent), SMALLEST)

    def _observe(self, samples: HostSamples, scaled: ndarray) -> None:
        counts = np.bincount(samples.shard, minlength=len(self._mass))
        seen = counts > 0
        self._answered = self._answered * self._decay + counts
        self._unseen = np.where(seen, 0, self._unseen + 1)
        within = samples.probability if self._prioritized else 1.0 / np.maximum(samples.table_size, 1)
        # Assignment by index keeps the last sample of each shard, which is the newest.
        self._mass[samples.shard] = scaled / within
        self._size[samples.shard] = np.maximum(samples.table_size, 1)
        gone = self._unseen >= self._forget
        self._mass[gone] = 0.0
        self._size[gone] = 0
        self._answered[gone] = 0.0
