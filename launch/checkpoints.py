"""The learner's checkpoints, kept by Orbax: asynchronous, atomic, the newest few."""

from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

from agents.agent import LearnerState


class LearnerCheckpoints:
    """Saves and restores learner states by learner step."""

    def __init__(self, directory: Path, *, kept: int) -> None:
        """Makes the directory if it isn't there. `kept`: checkpoints, the newest ones."""
        self._manager = ocp.CheckpointManager(
            directory.absolute(), options=ocp.CheckpointManagerOptions(max_to_keep=kept, create=True)
        )

    def save(self, step: int, state: LearnerState) -> None:
        """Copies the state to the host, then writes it in the background. A step that is saved already is left."""
        if step in self._manager.all_steps():
            return
        # A copy, for the next update donates the device's buffers while Orbax still writes.
        self._manager.save(step, args=ocp.args.StandardSave(jax.tree.map(np.array, state)))

    def restore(self, like: LearnerState) -> tuple[LearnerState, int] | None:
        """The newest checkpoint as (state of numpy arrays, its learner step), None if there is none.

        Raises:
            ValueError: the checkpoint's structure or shapes aren't those of `like`.
        """
        step = self._manager.latest_step()
        if step is None:
            return None
        template = jax.tree.map(np.asarray, like)
        return self._manager.restore(step, args=ocp.args.StandardRestore(template)), step

    def close(self) -> None:
        """Waits for what is being written."""
        self._manager.wait_until_finished()
        self._manager.close()
