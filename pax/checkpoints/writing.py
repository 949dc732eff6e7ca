# SPDX-License-Identifier: Apache-2.0
"""Writes one checkpoint, by all processes together.

    write   all processes: their shards, input state and manifest, in staging
    commit  process 0: what needs the data of all; renames staging

After each phase all processes meet at a barrier, and pass their errors to each
other: a save succeeds or fails in all of them.
"""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Generic

import jax
from absl import logging

from pax import coordination_service, storage
from pax.checkpoints import agreement, layouts, manifest, paths
from pax.checkpoints.types import CheckpointError

Path = pathlib.Path

_POLL_SECS = 0.01
# Network file systems show the files of other hosts with a delay.
_VISIBLE_SECS = 60.0


@dataclasses.dataclass(frozen=True)
class Contents(Generic[layouts.SnapshotT]):
  """The contents of a checkpoint that one process has."""

  # Host copy of the state.
  snapshot: layouts.SnapshotT
  step: int
  # State of the training input of this process as JSON.
  input_text: str | None = None
  # Functions that each write a further folder of the checkpoint, by its name.
  # All processes call them.
  items: Mapping[str, Callable[[Path], None]] = dataclasses.field(
    default_factory=dict
  )


def write(
  layout: layouts.Layout[layouts.SnapshotT],
  final: storage.Path,
  contents: Contents[layouts.SnapshotT],
  barriers: coordination_service.Barriers,
  prepare: Callable[[], None] = lambda: None,
) -> None:
  """Writes a checkpoint; on return it is complete, for every process.

  A checkpoint in a bucket is written to a temporary local directory first:
  Orbax cannot write to s3://, and checksums need not read the bucket.

  Args:
    layout: The on-disk format.
    final: Path of the checkpoint, in a folder that exists after `prepare`.
    contents: What this process writes.
    barriers: Barriers of the checkpointer.
    prepare: Called first, in every process.

  Raises:
    CheckpointError: Another process fails, or does not finish in time.
    OSError: A file cannot be written.
  """
  if not isinstance(final, storage.BucketPath):
    _write(layout, final, contents, barriers, prepare)
    return

  def prepare_bucket() -> None:
    prepare()
    if final.exists():
      # Parts of an attempt that failed.
      storage.remove_tree(final)

  with tempfile.TemporaryDirectory(prefix='pax_checkpoint_') as folder:
    local = Path(folder) / final.name
    _write(layout, local, contents, barriers, prepare_bucket)
    try:
      paths.publish(local, final)
    except OSError:
      paths.discard(final)
      raise


def _write(
  layout: layouts.Layout[layouts.SnapshotT],
  final: Path,
  contents: Contents[layouts.SnapshotT],
  barriers: coordination_service.Barriers,
  prepare: Callable[[], None],
) -> None:
  staging = paths.staging(final)
  snapshot, step = contents.snapshot, contents.step
  index, count = jax.process_index(), jax.process_count()
  entries: dict[str, manifest.Entry] = {}

  def write_part() -> None:
    prepare()
    if count == 1 and staging.exists():
      # Files of an attempt that failed would be unexpected in the checkpoint.
      paths.discard(staging)
    staging.mkdir(exist_ok=count > 1)
    entries.update(layout.write(staging, snapshot, step))
    if contents.input_text is not None:
      entries.update(
        layouts.write_input(staging, contents.input_text, index, count)
      )
    for name, write_item in contents.items.items():
      write_item(staging / name)
    if index:
      manifest.write(staging, entries, index, count)

  def commit() -> None:
    if index:
      return
    for i in range(1, count):
      file = manifest.file(staging, i, count)
      wait_until(file.exists, str(file))
    entries.update(layout.finish(staging, snapshot, step))
    for name in contents.items:
      files = (f'{name}/{file}' for file in storage.files(staging / name))
      entries.update(manifest.file_entries(staging, files))
    manifest.write(staging, entries, index, count)
    layout.commit(staging, final, snapshot, step)
    logging.info('Saved %s', final)

  for phase, name in ((write_part, 'written'), (commit, 'committed')):
    error = None
    try:
      phase()
    except Exception as e:
      error = e
    barrier = f'{final.name} is {name}'
    if error := agreement.agree(error, barriers, barrier):
      if count == 1 and isinstance(error, OSError):
        # Frees the disk, which may be full.
        paths.discard(staging)
      raise error
  wait_until(final.exists, str(final))


def wait_until(is_visible: Callable[[], bool], name: str) -> None:
  """Waits until this process sees what another one has written.

  Args:
    is_visible: Whether it does.
    name: The file or the directory, for the message.

  Raises:
    CheckpointError: It does not appear.
  """
  deadline = time.monotonic() + _VISIBLE_SECS
  while not is_visible():
    if time.monotonic() > deadline:
      raise CheckpointError(
        f'another process has written {name}, and this one does not see it'
        f' {_VISIBLE_SECS:.0f} s later; all hosts must see the same'
        ' --job_log_dir'
      )
    time.sleep(_POLL_SECS)
