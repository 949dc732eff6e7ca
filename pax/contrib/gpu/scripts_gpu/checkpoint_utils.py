# SPDX-License-Identifier: Apache-2.0
"""Experiments that start from the variables of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from pax import tasks_lib
from praxis import pax_fiddle

TaskConfig = pax_fiddle.Config[tasks_lib.SingleTask]


class CheckpointRestoreMixin:
  """Lets an experiment name the checkpoint it starts from."""

  # The folder; None starts afresh.
  CHECKPOINT_RESTORE_PATH: str | None = None
  # Variables, by regex on their paths, that are not in it.
  CHECKPOINT_IGNORE_RULES: Sequence[str] | None = None

  def configure_checkpoint_restore(self, task_p: TaskConfig) -> TaskConfig:
    """Loads what the checkpoint has by the same name; returns the task."""
    if self.CHECKPOINT_RESTORE_PATH:
      task_p.train.init_from_checkpoint_rules = {
        self.CHECKPOINT_RESTORE_PATH: tasks_lib.CheckpointLoadingRules(
          task_p=task_p.clone(),
          load_rules=[('(.*)', '{}')],
          ignore_rules=self.CHECKPOINT_IGNORE_RULES,
          input_specs_provider_p=self.get_input_specs_provider_params(),
        )
      }
    return task_p
