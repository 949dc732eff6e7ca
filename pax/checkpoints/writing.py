# SPDX-License-Identifier: Apache-2.0
"""Writes one checkpoint, by all processes together.

    prepare  process 0, in a bucket: removes parts of an attempt that failed
    write    all processes: their shards, input state and manifest, in staging
    commit   process 0: what needs the data of all; renames staging, or uploads
             the marker

After each phase all processes meet at a barrier, and pass their errors to each
other: a save succeeds or fails in all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Generic

import jax

from pax import coordination_service
from pax.checkpoints import agreement, staging
from pax.checkpoints.formats import layouts, manifest, verification
from pax.checkpoints.types import CheckpointError
from pax.files import storage

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
  # Name of the complete checkpoint with the frozen leaves, if any.
  frozen_checkpoint: str | None = None
  # Functions that each write a further folder of the checkpoint, by its name.
  # All processes call them.
  items: Mapping[str, Callable[[pathlib.Path], None]] = dataclasses.field(
    default_factory=dict
  )


def write(
  layout: layouts.Layout[layouts.SnapshotT],
  final: storage.Path,
  contents: Contents[layouts.SnapshotT],
  barriers: coordination_service.Barriers,
  prepare: Callable[[], None] = lambda: None,
  waiting: Callable[
    [], contextlib.AbstractContextManager[None]
  ] = contextlib.nullcontext,
) -> None:
  """Writes a checkpoint; on return it is complete, for every process.

  Args:
    layout: The on-disk format.
    final: Path of the checkpoint, in a folder that exists after `prepare`.
    contents: What this process writes.
    barriers: Barriers of the checkpointer.
    prepare: Called first, in every process.
    waiting: Returns the context of each wait for other processes.

  Raises:
    CheckpointError: Another process fails, or does not finish in time.
    OSError: A file cannot be written.
  """
  with staging.open_staging(final, is_folder=layout.is_folder) as place:

    def prepare_place() -> None:
      prepare()
      place.prepare()

    def write_part() -> None:
      if place.others is None:
        prepare_place()
      _write_part(layout, place, contents, entries)

    def commit() -> None:
      if jax.process_index() == 0:
        _commit(layout, place, contents, entries)

    entries: dict[str, manifest.Entry] = {}
    phases = {'written': write_part, 'committed': commit}
    if place.others is not None:
      # The first process removes parts before the others upload theirs.
      phases = {'prepared': prepare_place, **phases}
    for name, phase in phases.items():
      error = None
      try:
        phase()
      except Exception as e:
        error = e
      barrier = f'{final.name} is {name}'
      with waiting():
        error = agreement.agree(error, barriers, barrier)
      if error:
        place.discard(error)
        raise error
  with waiting():
    wait_until(final.exists, str(final), final.parent)


def _write_part(
  layout: layouts.Layout[layouts.SnapshotT],
  place: staging.Staging,
  contents: Contents[layouts.SnapshotT],
  entries: dict[str, manifest.Entry],
) -> None:
  """Writes the files of this process, and adds their manifest entries."""
  index, count = jax.process_index(), jax.process_count()
  place.create()
  entries.update(layout.write(place.folder, contents.snapshot))
  if contents.input_text is not None:
    entries.update(
      layouts.write_input(place.folder, contents.input_text, index, count)
    )
  for name, write_item in contents.items.items():
    write_item(place.folder / name)
  place.share(entries)
  if index:
    manifest.write(place.folder, entries, index, count)
    file = manifest.file(place.folder, index, count)
    place.share([str(file.relative_to(place.folder))])


def _commit(
  layout: layouts.Layout[layouts.SnapshotT],
  place: staging.Staging,
  contents: Contents[layouts.SnapshotT],
  entries: dict[str, manifest.Entry],
) -> None:
  """Completes the checkpoint when all processes have written their files."""
  snapshot = contents.snapshot
  metadata = verification.create_metadata(
    contents.step, contents.frozen_checkpoint
  )
  count = jax.process_count()
  for index in range(1, count):
    file = manifest.file(place.others or place.folder, index, count)
    wait_until(file.exists, str(file), place.folder)
  entries.update(layout.finish(place.folder, snapshot, metadata, place.others))
  for name in contents.items:
    files = (f'{name}/{file}' for file in storage.files(place.folder / name))
    entries.update(manifest.file_entries(place.folder, files))
  manifest.write(place.folder, entries, 0, count)
  layout.commit(place.folder, place.local, snapshot, metadata)
  place.publish()


def wait_until(
  is_visible: Callable[[], bool], name: str, folder: storage.Path
) -> None:
  """Waits until this process sees what another one has written.

  Args:
    is_visible: Whether it does.
    name: The file or the directory, for the message.
    folder: A folder with it that this process has seen before.

  Raises:
    CheckpointError: It does not appear.
    OSError: The folder is gone.
  """
  deadline = time.monotonic() + _VISIBLE_SECS
  while not is_visible():
    if isinstance(folder, pathlib.Path):
      # Raises FileNotFoundError if it was moved, deleted or unmounted.
      folder.stat()
    if time.monotonic() > deadline:
      raise CheckpointError(
        f'another process has written {name}, and this one does not see it'
        f' {_VISIBLE_SECS:.0f} s later; all hosts must see the same'
        ' --job_log_dir'
      )
    time.sleep(_POLL_SECS)
