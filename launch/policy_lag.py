"""How old the experience may be that a learner trains on; see docs/adr/0008."""

from replay.dataset import ReplayBatch, ReplayReader


class FreshBatches:
    """A reader's batches, without those whose policy is too old.

    Attributes:
        dropped: batches so far.
    """

    def __init__(self, reader: ReplayReader, most: float) -> None:
        """`most` learner steps behind, on average over a batch's rows; 0: any."""
        self._reader, self._most = reader, most
        self.dropped = 0

    def next(self, steps: int, timeout_s: float) -> ReplayBatch | None:
        """The next batch for a learner at `steps`. None if there is none in time or it is too old: then publish what
        isn't published yet, so that newer experience can come, and ask again.
        """
        batch = self._reader.next(timeout_s)
        if batch is None or not self._most or not steps - batch.version_mean > self._most:
            return batch
        self.dropped += 1
        return None
