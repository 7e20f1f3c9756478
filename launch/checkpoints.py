"""The learner's checkpoints, written by Orbax in the background: each whole or not there, the newest few.

    root/600/...       what Orbax writes for learner step 600
    root/600.json      written after it: the digest of every file

Orbax reads a file with a flipped bit without a word where the bit was a weight's.
"""

import concurrent.futures
import dataclasses
import shutil
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from agents.agent import LearnerState
from launch.learner_manifests import (
    LearnerManifest,
    folder_of,
    manifest_of,
    read_manifest,
    steps_in,
    write_manifest,
)
from launch.memory import give_back_memory
from replay.fingerprints import damage, fingerprints


class LearnerCheckpoints:
    """Saves and restores learner states by learner step. One thread uses it, of the learner's first process."""

    def __init__(self, directory: Path, *, kept: int) -> None:
        """Makes the directory if it isn't there. `kept`: checkpoints, the newest ones."""
        self._root, self._kept = directory.absolute(), kept
        self._root.mkdir(parents=True, exist_ok=True)
        for partial in self._root.glob("*.orbax-checkpoint-tmp*"):
            shutil.rmtree(partial)
        self._damaged: set[int] = set()
        alone = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0})  # of the learner's processes
        handler = ocp.StandardCheckpointHandler(multiprocessing_options=alone)
        self._checkpointer = ocp.Checkpointer(handler, multiprocessing_options=alone)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "learner-checkpoints")
        self._writing: concurrent.futures.Future[None] | None = None

    def save(self, step: int, state: LearnerState) -> None:
        """Copies the state to the host, then writes it in the background, after what is being written already. Of a
        step that is saved already only the time becomes a newer one.
        """
        if self._writing is not None:
            self._writing.result()  # it raises nothing
        manifest = None if step in self._damaged else read_manifest(self._root, step)
        if manifest is not None:
            write_manifest(self._root, dataclasses.replace(manifest, saved_at=time.time()))
            return
        # A copy, for the next update donates the device's buffers while it is still written.
        self._writing = self._thread.submit(self._write, step, jax.tree.map(np.array, state))

    def restore(self, like: LearnerState) -> tuple[LearnerState, int] | None:
        """The newest good checkpoint as (state of numpy arrays, its learner step), None if there is none. Damaged ones
        are skipped, and why is logged.

        Raises:
            ValueError: its structure or shapes aren't those of `like`.
            RuntimeError: there are some, and none is good.
        """
        for step in reversed(steps_in(self._root)):
            manifest = read_manifest(self._root, step)
            wrong = (
                damage(folder_of(self._root, step), manifest.files) if manifest else "its list of files can't be read"
            )
            if wrong:
                logging.warning("checkpoint %s is skipped: %s", folder_of(self._root, step), wrong)
                self._damaged.add(step)
                continue
            template = ocp.args.StandardRestore(jax.tree.map(np.asarray, like))
            return self._checkpointer.restore(folder_of(self._root, step), args=template), step
        if self._damaged:
            raise RuntimeError(
                f"None of the learner's checkpoints in {self._root} is whole (steps {sorted(self._damaged)}; the lines "
                "above say why). Put back what is missing, or remove the folder to begin anew."
            )
        return None

    def close(self) -> None:
        """Waits for what is being written."""
        self._thread.shutdown(wait=True)
        self._checkpointer.close()

    def _write(self, step: int, state: Any) -> None:
        try:
            self._write_whole(step, state)
        except Exception as error:  # a full disk, say: the learner learns on, and the checkpoints before stay
            logging.error("No checkpoint of learner step %d: %s", step, error)
        give_back_memory()

    def _write_whole(self, step: int, state: Any) -> None:
        folder = folder_of(self._root, step)
        if folder.exists():  # a damaged one, or one without its list of files
            shutil.rmtree(folder)
        self._checkpointer.save(folder, args=ocp.args.StandardSave(state))
        write_manifest(self._root, LearnerManifest(step=step, saved_at=time.time(), files=fingerprints(folder)))
        self._damaged.discard(step)
        for old in steps_in(self._root)[: -self._kept]:
            manifest_of(self._root, old).unlink()
            shutil.rmtree(folder_of(self._root, old))
