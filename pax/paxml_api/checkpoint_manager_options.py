# SPDX-License-Identifier: Apache-2.0
"""Options of paxml's checkpoint manager: those of Orbax, and two more."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Collection, Container, Mapping
from typing import Any

from absl import logging

from pax.checkpoints.types import CheckpointOptions

_TRASH = 'use todelete_subdir'
_PROCESSES = 'all processes of jax save together'
# Options of Orbax whose effect does not exist here, with what to do.
_UNSUPPORTED = {
  'best_fn': 'the manager saves no metrics; use should_keep_fn',
  'enable_per_process_directory_creation': _PROCESSES,
  'file_options': 'files have the permissions of the process',
  'multiprocessing_options': _PROCESSES,
  'temporary_path_class': 'checkpoints are renamed when they are complete',
  'todelete_full_path': _TRASH,
}
# Options of Orbax that paxml accepts and overrides.
_WITHOUT_EFFECT = {
  'save_decision_policy': 'use save_interval_steps',
  'save_on_steps': 'call save with force=True',
  'should_save_fn': 'call save with force=True',
  'step_format_fixed_length': 'paxml sets the names',
  'step_name_format': 'paxml sets the names',
  'step_prefix': 'paxml sets the names',
}


@dataclasses.dataclass
class CheckpointManagerOptions:
  """When checkpoints are saved, and which of them are kept."""

  # Steps between checkpoints; 0 is 1.
  save_interval_steps: int = 1
  # Number of newest checkpoints to keep; None keeps all.
  max_to_keep: int | None = None
  # Besides the newest, keeps one checkpoint per such duration.
  keep_time_interval: datetime.timedelta | None = None
  # Besides the newest, keeps the checkpoints of multiples of this step.
  keep_period: int | None = None
  # Whether the checkpoint of a step is kept; replaces `keep_period`.
  should_keep_fn: Callable[[int], bool] | None = None
  best_fn: Callable[[Any], float] | None = None
  best_mode: str = 'max'
  keep_checkpoints_without_metrics: bool = True
  step_prefix: str | None = None
  step_format_fixed_length: int | None = None
  step_name_format: Any = None
  # Whether the directory is created before the first save.
  create: bool = True
  # Whether temporary files of killed jobs are deleted at once; the first save
  # deletes them in any case.
  cleanup_tmp_directories: bool = False
  save_on_steps: Container[int] | None = None
  # Ignored: each process lists the directory.
  single_host_load_and_broadcast: bool = False
  # Folder of the directory to which expired checkpoints are renamed; None
  # deletes them.
  todelete_subdir: str | None = None
  todelete_full_path: str | None = None
  # Expired checkpoints are deleted by the thread that writes.
  enable_background_delete: bool = False
  # Whether nothing is saved.
  read_only: bool = False
  # The class of the checkpointer decides.
  enable_async_checkpointing: bool = True
  # Options of writing in a thread; only `timeout_secs` is used.
  async_options: Any = None
  multiprocessing_options: Any = None
  should_save_fn: Callable[[int, int | None], bool] | None = None
  file_options: Any = None
  # Orbax would write a file about the directory, which paxml leaves empty.
  save_root_metadata: bool = True
  temporary_path_class: Any = None
  save_decision_policy: Any = None
  # A PreservationPolicy of Orbax, which decides in place of `max_to_keep`,
  # `keep_time_interval` and `keep_period`.
  preservation_policy: Any = None
  prevent_write_metrics: bool = False
  # Only for a `save_decision_policy`.
  enable_should_save_is_saving_in_progress_check: bool = True
  enable_per_process_directory_creation: bool = False
  # Ignored: only names are read when a directory is opened.
  lightweight_initialize: bool = False

  def __post_init__(self):
    """Checks the options.

    Raises:
      ValueError: An option has an invalid value, or excludes another one.
      NotImplementedError: The effect of an option does not exist here.
    """
    for name, remedy in _UNSUPPORTED.items():
      if getattr(self, name):
        raise NotImplementedError(
          f'CheckpointManagerOptions.{name} is not supported: {remedy}'
        )
    for name, remedy in _WITHOUT_EFFECT.items():
      if getattr(self, name):
        logging.warning(
          'CheckpointManagerOptions.%s has no effect, as in paxml: %s',
          name,
          remedy,
        )
    if self.best_mode not in ('min', 'max'):
      raise ValueError(
        f"best_mode must be 'min' or 'max', got {self.best_mode}"
      )
    if self.keep_period is not None and self.keep_period < 1:
      raise ValueError(
        f'keep_period must be at least 1, got {self.keep_period}'
      )
    if self.preservation_policy and (
      self.max_to_keep or self.keep_time_interval or self.keep_period
    ):
      raise ValueError(
        '`preservation_policy` and max_to_keep, keep_time_interval or'
        ' keep_period are mutually exclusive'
      )

  def to_checkpoint_options(
    self, *, is_async: bool, use_ocdbt: bool, timeout_secs: float
  ) -> CheckpointOptions:
    """Returns the options of the checkpointer that saves.

    Args:
      is_async: Whether a thread writes.
      use_ocdbt: Whether Orbax writes OCDBT databases.
      timeout_secs: Deadline of barriers.

    Raises:
      ValueError: `max_to_keep` is below 1, or a name or a duration is invalid.
    """
    interval = self.keep_time_interval
    return CheckpointOptions(
      save_interval_steps=self.save_interval_steps or 1,
      max_to_keep=self.max_to_keep,
      keep_interval_secs=interval.total_seconds() if interval else None,
      should_keep=self._should_keep(),
      preserve=self._preserve if self.preservation_policy else None,
      todelete_subdir=self.todelete_subdir,
      saving=not self.read_only,
      asynchronous=is_async,
      use_ocdbt=use_ocdbt,
      timeout_secs=timeout_secs,
    )

  def _should_keep(self) -> Callable[[int], bool] | None:
    period = self.keep_period
    if self.should_keep_fn is not None or period is None:
      return self.should_keep_fn
    return lambda step: step % period == 0

  def _preserve(self, saved_at: Mapping[int, float]) -> Collection[int]:
    # The user's policy is of Orbax, so that it is imported already.
    from orbax.checkpoint import checkpoint_managers

    checkpoints = [_CheckpointInfo(*item) for item in sorted(saved_at.items())]
    flags = self.preservation_policy.should_preserve(
      checkpoints, context=checkpoint_managers.PreservationContext()
    )
    should_keep = self.should_keep_fn or (lambda step: False)
    return [
      checkpoint.step
      for checkpoint, is_preserved in zip(checkpoints, flags, strict=True)
      if is_preserved or should_keep(checkpoint.step)
    ]


@dataclasses.dataclass(frozen=True)
class _CheckpointInfo:
  """The properties of a checkpoint that policies of Orbax read."""

  step: int
  # In seconds since 1970.
  saved_at: float
  metrics: None = None

  @property
  def time(self) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(self.saved_at, datetime.UTC)
