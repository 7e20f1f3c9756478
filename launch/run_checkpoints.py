"""Checkpoints of a whole run: which of the learner's and which of each shard's belong together.

Roles save at the same times of day (launch.checkpoint_clock), each into its own folder. The launcher ties what they
saved by a manifest, written last and in one step:

    checkpoints/learner/600/   600.json        the learner's, with digests
    checkpoints/replay-0/000017/manifest.json  a shard's, with counts and digests
    checkpoints/run/000009.json                the ninth of the run: those two and what the run had counted by then
"""

import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import logging

from configs.experiment import Experiment
from launch import learner_manifests as learners
from launch.run_directory import RunDirectory, write_atomically
from replay import shard_manifests as shards
from replay.fingerprints import Fingerprint, damage, digest_of

KEPT = 3  # the newest ones; those whose parts are gone are of no use
LOOK_SECONDS = 0.5  # between two looks at what the roles have saved


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LearnerPart:
    """The learner's checkpoint."""

    step: int
    digest: str  # of all its files
    saved_at: float  # seconds since the epoch


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ShardPart:
    """A shard's checkpoint."""

    number: int
    items: dict[str, int]  # by table
    digest: str  # of all its files
    saved_at: float  # seconds since the epoch


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunManifest:
    """A checkpoint of a run."""

    learner: LearnerPart
    shards: tuple[ShardPart, ...]  # none where replay is a queue
    config: dict[str, Any]  # the experiment, as in config.json
    status: dict[str, Any] | None  # as in status.json: what was counted by then

    @property
    def times(self) -> tuple[float, ...]:
        """When each part was saved, in seconds since the epoch."""
        return (self.learner.saved_at, *(part.saved_at for part in self.shards))

    def describe(self) -> str:
        """For a person."""
        items = sum(part.items["trajectories"] for part in self.shards)
        held = f", {items:,} items in {len(self.shards)} shards" if self.shards else ""
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(max(self.times)))
        return f"learner step {self.learner.step:,}{held}, of {moment}"


class RunCheckpoints:
    """The manifests of one run. One thread uses it."""

    def __init__(self, run: RunDirectory, experiment: Experiment) -> None:
        self._run, self._root, self._learner = run, run.checkpoints / "run", run.checkpoints / "learner"
        replay = experiment.agent_config.replay
        kept = not replay.queue and experiment.shard.checkpoint_period > 0
        self._shards = [run.checkpoints / f"replay-{index}" for index in range(experiment.topology.shards * kept)]
        self._last = next(iter(self.newest_first()), None)

    def newest_first(self) -> Iterator[RunManifest]:
        """All that can be read."""
        for path in sorted(self._root.glob("[0-9]*.json"), reverse=True):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                yield _from_json(path.read_text())

    def tie(self, *, all_new: bool) -> RunManifest | None:
        """Writes a manifest of what was saved last; None where nothing was since the one before.

        Args:
            all_new: only where everybody has saved since: the parts are of one time then. Else where anybody has.
        """
        found = self._look()
        if found is None:
            return None
        new, last = _parts_of(found), _parts_of(self._last) if self._last else {}
        changed = [name for name, part in new.items() if last.get(name) != part]
        if not changed or (all_new and len(changed) < len(new)):
            return None
        numbers = [int(path.stem) for path in self._root.glob("[0-9]*.json")]
        self._root.mkdir(parents=True, exist_ok=True)
        path = self._root / f"{max(numbers, default=0) + 1:06d}.json"
        write_atomically(path, json.dumps(dataclasses.asdict(found)))
        for old in sorted(self._root.glob("[0-9]*.json"))[:-KEPT]:
            old.unlink()
        self._last = found
        return found

    def _look(self) -> RunManifest | None:
        """What was saved last; None while somebody has saved nothing."""
        steps = learners.steps_in(self._learner)
        learner = learners.read_manifest(self._learner, steps[-1]) if steps else None
        parts = [_newest_part(root) for root in self._shards]
        if learner is None or None in parts:
            return None
        found = tuple(part for part in parts if part is not None)
        return RunManifest(
            learner=LearnerPart(step=learner.step, digest=digest_of(learner.files), saved_at=learner.saved_at),
            shards=found,
            config=json.loads(self._run.config.read_text()),
            status=json.loads(self._run.status.read_text()) if self._run.status.exists() else None,
        )

    def damage_of(self, manifest: RunManifest) -> str:
        """What is wrong with a manifest's parts, in words; "" where all are whole."""
        learner = learners.read_manifest(self._learner, manifest.learner.step)
        if learner is None:
            return f"the learner's checkpoint of step {manifest.learner.step} is missing"
        wrong = _damage(learners.folder_of(self._learner, learner.step), learner.files, manifest.learner.digest)
        if wrong:
            return f"learner: {wrong}"
        for index, (folder, part) in enumerate(zip(self._shards, manifest.shards, strict=True)):
            try:
                shard = shards.read_manifest(folder, part.number)
            except ValueError as error:
                return f"replay-{index}, checkpoint {part.number}: {error}"
            wrong = _damage(shards.folder_of(folder, part.number) / "data", shard.files, part.digest)
            if wrong:
                return f"replay-{index}, checkpoint {part.number}: {wrong}"
        return ""

    def set_aside(self, manifest: RunManifest, *, shards_too: bool) -> Path | None:
        """Moves what is newer than a manifest out of the roles' sight; where to, None where nothing is.

        Args:
            manifest: what the run goes on from.
            shards_too: whether the shards' checkpoints go as well, all of them: the tables begin empty.
        """
        goal = self._run.checkpoints / "set_aside" / time.strftime("%Y%m%d-%H%M%S")
        moved = [
            path
            for step in learners.steps_in(self._learner)
            if step > manifest.learner.step
            for path in (learners.manifest_of(self._learner, step), learners.folder_of(self._learner, step))
        ]
        for index, part in enumerate(manifest.shards):
            folder, newest = self._run.checkpoints / f"replay-{index}", -1 if shards_too else part.number
            moved += [shards.folder_of(folder, number) for number in shards.numbers_in(folder) if number > newest]
        for path in moved:
            target = goal / path.relative_to(self._run.checkpoints)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
        return goal if moved else None


@contextlib.contextmanager
def tied(run: RunDirectory, experiment: Experiment) -> Iterator[None]:
    """Ties what the roles of a run save, while it goes on and once more when they have ended."""
    checkpoints, stop = RunCheckpoints(run, experiment), threading.Event()

    def watch() -> None:
        while not stop.wait(LOOK_SECONDS):
            _try_to_tie(checkpoints, all_new=True)

    thread = threading.Thread(target=watch, name="run-checkpoints", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        _try_to_tie(checkpoints, all_new=False)


def _try_to_tie(checkpoints: RunCheckpoints, *, all_new: bool) -> None:
    try:
        checkpoints.tie(all_new=all_new)
    except (OSError, ValueError) as error:  # a part that is being replaced just now, or a full disk
        logging.log_every_n_seconds(logging.WARNING, "No manifest of the run's checkpoint: %s", 10, error)


def _parts_of(manifest: RunManifest) -> dict[str, LearnerPart | ShardPart]:
    return {"learner": manifest.learner, **{f"replay-{index}": part for index, part in enumerate(manifest.shards)}}


def _newest_part(folder: Path) -> ShardPart | None:
    numbers = shards.numbers_in(folder)
    if not numbers:
        return None
    manifest = shards.read_manifest(folder, numbers[-1])
    return ShardPart(
        number=numbers[-1], items=manifest.items, digest=digest_of(manifest.files), saved_at=manifest.saved_at
    )


def _damage(folder: Path, files: dict[str, Fingerprint], digest: str) -> str:
    return "another checkpoint took its place" if digest_of(files) != digest else damage(folder, files)


def _from_json(text: str) -> RunManifest:
    values = json.loads(text)
    parts = tuple(ShardPart(**part) for part in values["shards"])
    return RunManifest(**{**values, "learner": LearnerPart(**values["learner"]), "shards": parts})
