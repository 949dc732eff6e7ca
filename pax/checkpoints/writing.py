# SPDX-License-Identifier: Apache-2.0
"""Writes one checkpoint, by all processes together."""

from __future__ import annotations

import pathlib
import time

import jax
from absl import logging

from pax.checkpoints import layouts, manifest, paths
from pax.checkpoints.types import CheckpointError

_POLL_SECS = 0.01


def write(
  layout: layouts.Layout[layouts.SnapshotT],
  final: pathlib.Path,
  snapshot: layouts.SnapshotT,
  step: int,
  input_text: str | None,
  timeout_secs: float,
) -> None:
  """Writes a checkpoint; on return it is complete, for every process.

  Args:
    layout: The on-disk format.
    final: Path of the checkpoint, in a folder that exists.
    snapshot: The host copy of the state.
    step: The training step.
    input_text: State of the training input of this process as JSON, or None.
    timeout_secs: How long to wait for the other processes.

  Raises:
    CheckpointError: Another process does not finish in time.
    OSError: A file cannot be written.
  """
  staging = paths.staging(final)
  index, count = jax.process_index(), jax.process_count()
  if count == 1 and staging.exists():
    # Files of an attempt that failed would be unexpected in the checkpoint.
    paths.discard(staging)
  staging.mkdir(exist_ok=count > 1)
  entries = layout.write(staging, snapshot, step)
  if input_text is not None:
    entries |= layouts.write_input(staging, input_text, index, count)
  if index == 0:
    manifest.wait_for_others(staging, count, timeout_secs)
    entries |= layout.finish(staging, snapshot, step)
  manifest.write(staging, entries, index, count)
  if index == 0:
    layout.commit(staging, final, snapshot, step)
    logging.info('Saved %s', final)
  else:
    _wait_for(final, timeout_secs)


def _wait_for(final: pathlib.Path, timeout_secs: float) -> None:
  deadline = time.monotonic() + timeout_secs
  while not final.exists():
    paths.check_present(final.parent)
    if time.monotonic() > deadline:
      raise CheckpointError(
        f'process 0 had not completed {final} after {timeout_secs:.0f} s'
      )
    time.sleep(_POLL_SECS)
