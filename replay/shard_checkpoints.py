"""Checkpoints of one shard's tables: the newest few, each whole or not there, and the newest good one restored.

Reverb keeps one checkpoint, deletes whatever lies beside it, and brings a damaged one back as an empty table without a
word (seen with 0.11.0). So each finished one gets a folder of its own here, with a manifest that is written last and
says what it holds. Files are linked, not copied.

    root/live/...                  where Reverb writes and reads, and deletes
    root/000017/data/*.tfrecord    the 17th
    root/000017/manifest.json
"""

import collections
import dataclasses
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import reverb
import tensorflow as tf
from absl import logging
from reverb.cc import schema_pb2
from reverb.platform.checkpointers_lib import DefaultCheckpointer

from replay.fingerprints import damage, fingerprints
from replay.layout import Layout
from replay.plan import ShardPlan
from replay.server import Shard, table_sizes
from replay.shard_manifests import MANIFEST, Manifest, folder_of, numbers_in, read_manifest
from replay.tables import METRICS, TRAJECTORIES

FINISHED = "DONE"  # the file that Reverb writes last
RESTORING = "restoring"  # a file beside the manifest while a server reads the checkpoint: it stays where that kills it
ITEMS = "items.tfrecord"
DEADLINE_S = 10.0  # for the server to say what it holds


class ShardCheckpoints:
    """The checkpoints of one shard. One thread uses it."""

    def __init__(self, root: Path, plan: ShardPlan, layout: Layout, *, kept: int) -> None:
        """`root` is the shard's alone; it is made where it isn't there. `kept`: checkpoints, the newest."""
        self._root, self._live = root, root / "live"
        self._plan, self._layout, self._kept = plan, layout, kept
        root.mkdir(parents=True, exist_ok=True)
        for partial in root.glob("*.partial"):
            shutil.rmtree(partial)

    def start(self, port: int) -> Shard:
        """Serves at `port`, from the newest good checkpoint if there is one; says which were skipped, and why.

        Raises:
            ValueError: the newest was made with other settings, which Reverb would bring back over the present ones.
            RuntimeError: something already listens on the port.
        """
        for number in reversed(self._numbers()):
            try:
                manifest = self._read(number)
                self._check_settings(number, manifest)
                shard = self._restore(number, manifest, port)
            except _Damaged as damaged:
                logging.warning("checkpoint %s is skipped: %s", self._folder(number), damaged)
                continue
            reverb.Client(shard.address).reset(METRICS)  # they were read long ago
            age = time.time() - manifest.saved_at
            logging.info(
                "Restored %d items from %s, %.0f s old.", manifest.items[TRAJECTORIES], self._folder(number), age
            )
            return shard
        self._clear_live()
        return self._serve(port)

    def save(self, shard: Shard) -> Manifest:
        """Writes another checkpoint, then removes those that are too many.

        Raises:
            RuntimeError: it was not written whole, or holds more than its table does; those before it are kept.
        """
        written = Path(shard.checkpoint())
        if not (written / FINISHED).exists():
            raise RuntimeError(f"Reverb says it stored {written}, and did not finish it")
        counted = _count_items(written / ITEMS)
        items = {table: counted[table] for table in table_sizes(shard.address, DEADLINE_S)}  # the empty ones too
        if items[TRAJECTORIES] > self._plan.max_size:  # Reverb 0.11 can write what it then refuses to load
            raise RuntimeError(f"{written} holds {items[TRAJECTORIES]} items, the table {self._plan.max_size}")
        number = max(self._numbers(), default=0) + 1
        partial = self._root / f"{number:06d}.partial"
        (partial / "data").mkdir(parents=True)
        for file in written.iterdir():
            os.link(file, partial / "data" / file.name)
        manifest = Manifest(
            saved_at=time.time(),
            items=items,
            plan=dataclasses.asdict(self._plan),
            layout=_describe(self._layout),
            name=written.name,
            files=fingerprints(partial / "data"),
        )
        with (partial / MANIFEST).open("w") as stream:
            json.dump(dataclasses.asdict(manifest), stream, indent=2)
            stream.flush()
            os.fsync(stream.fileno())
        partial.rename(self._folder(number))
        for old in self._numbers()[: -self._kept]:
            shutil.rmtree(self._folder(old))
        return manifest

    def _numbers(self) -> list[int]:
        return numbers_in(self._root)

    def _folder(self, number: int) -> Path:
        return folder_of(self._root, number)

    def _read(self, number: int) -> Manifest:
        folder = self._folder(number)
        try:
            manifest = read_manifest(self._root, number)
        except ValueError as error:
            raise _Damaged(str(error)) from error
        wrong = damage(folder / "data", manifest.files)
        if wrong:
            raise _Damaged(wrong)
        if (folder / RESTORING).exists():
            raise _Damaged("a server ended while it was being restored")
        return manifest

    def _check_settings(self, number: int, manifest: Manifest) -> None:
        present = {"plan": dataclasses.asdict(self._plan), "layout": _describe(self._layout)}
        for part, now in present.items():
            then: dict[str, Any] = getattr(manifest, part)
            for name in sorted({*now, *then}):
                if now.get(name) != then.get(name):
                    raise ValueError(
                        f"{self._folder(number)} was made with {name}={then.get(name)!r}, and now it is "
                        f"{now.get(name)!r} ({part} of a shard): Reverb would bring the old one back. Start a run with "
                        "a directory of its own, or set it as it was."
                    )

    def _restore(self, number: int, manifest: Manifest, port: int) -> Shard:
        self._clear_live()
        shutil.copytree(self._folder(number) / "data", self._live / manifest.name, copy_function=os.link)
        marker = self._folder(number) / RESTORING
        marker.touch()
        try:
            shard = self._serve(port)
        except ValueError as error:  # what Reverb raises for data that it can't load
            raise _Damaged(f"Reverb can't load it: {error}") from error
        finally:
            marker.unlink()
        found = table_sizes(shard.address, DEADLINE_S)
        if found != manifest.items:
            shard.stop()
            raise _Damaged(f"Reverb restored {found}, want {manifest.items}")
        return shard

    def _clear_live(self) -> None:
        if self._live.exists():
            shutil.rmtree(self._live)
        self._live.mkdir()

    def _serve(self, port: int) -> Shard:
        return Shard(port, self._plan, self._layout, DefaultCheckpointer(str(self._live)))


class _Damaged(Exception):
    """Why a checkpoint isn't used."""


def _count_items(path: Path) -> collections.Counter[str]:
    """Items of each table in a checkpoint. Not by tf.data, whose runtime takes a busy machine seconds to start."""
    records = tf.compat.v1.io.tf_record_iterator(str(path), tf.io.TFRecordOptions(compression_type="ZLIB"))
    return collections.Counter(schema_pb2.PrioritizedItem.FromString(record).table for record in records)


def _describe(layout: Layout) -> dict[str, str]:
    columns = {name: f"{dtype.name}{list(shape)}" for name, (shape, dtype) in layout.signature.items()}
    packed = {f"rows.{field.name}": f"{field.dtype.name}{list(field.shape)}" for field in layout.fields}
    return columns | packed
