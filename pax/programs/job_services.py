# SPDX-License-Identifier: Apache-2.0
"""What a training job has besides its task, its data and its programs."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

from absl import logging

from pax import checkpoints, exit_codes, stop_signals, summaries, tasks_lib
from pax.checkpoints.types import CheckpointType
from pax.programs.stopping.preemption import PreemptionHandler
from pax.steps import Batch

# Seconds that a failed job waits for a checkpoint that is being written.
_ABANDON_SECS = 30.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobServices:
  """The outputs of a training job, and the requests to stop it.

  The runner opens them before, and closes them after the executor runs; as a
  context manager they close themselves. `TrainingCheckpointer.services` gives
  them to executors.
  """

  job_log_dir: str
  # Reads and writes the checkpoints.
  checkpoints: checkpoints.Checkpointer
  checkpoint_type: CheckpointType
  writer: summaries.Writer
  # Accounts for the wall time.
  goodput: summaries.goodput.Recorder
  progress: summaries.Progress
  preemption: PreemptionHandler
  # `--init_from`: the checkpoint of another job that initializes variables.
  init_from: str | None = None
  # Whether the state of the training input is restored for other data.
  accept_changed_data: bool = False
  # `--aot_load`: the file of the compiled train step.
  aot_load: str | None = None
  # `--pgle`: how XLA schedules the train step by a profile of it.
  pgle: str | None = None
  # Whether files that run code are read even if others can write them.
  trust_foreign_files: bool = False
  # (task, shapes of a batch of this host) -> files that describe the model.
  describe: Callable[[tasks_lib.SingleTask, Batch], None] = (
    lambda task, input_spec: None
  )
  # Whether decoded outputs are also written as `.npz`.
  decode_output_pickle: bool = True

  def __enter__(self) -> JobServices:
    return self

  def __exit__(self, kind: type[BaseException] | None, *unused: Any) -> None:
    """Closes the outputs; raises their errors unless one is being raised."""
    if kind and issubclass(kind, checkpoints.CheckpointTimeoutError):
      _end_later()
    self.progress.close()
    if kind is None:
      self._close()
    else:
      self._abandon()

  def _close(self) -> None:
    # A checkpoint flushes the writer before it is written.
    try:
      with self.goodput.record(summaries.goodput.CHECKPOINT):
        self.checkpoints.close()
    finally:
      self.writer.close()
      self.goodput.close()

  def _abandon(self) -> None:
    """Closes after an error: pending writes may wait for a dead process."""
    self.goodput.close()
    self.checkpoints.abandon(_ABANDON_SECS)
    try:
      self.writer.close()
    except Exception as e:
      logging.warning('Summaries are incomplete: %s', e)


def _end_later() -> None:
  """Ends the process if it does not exit: to close a file may hang."""
  timer = threading.Timer(
    2 * _ABANDON_SECS,
    stop_signals.end_process,
    (exit_codes.ERROR, 'the outputs of the job cannot be closed: they hang'),
  )
  timer.daemon = True
  timer.start()
