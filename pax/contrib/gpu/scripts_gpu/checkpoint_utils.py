# SPDX-License-Identifier: Apache-2.0
"""Initialization of experiments from the variables of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from pax import base_experiment, tasks_lib
from praxis import pax_fiddle

TaskConfig = pax_fiddle.Config[tasks_lib.SingleTask]


class CheckpointRestoreMixin(base_experiment.BaseExperiment):
  """Mixin for experiments that initialize their model from a checkpoint."""

  # Checkpoint directory; None initializes all variables at random.
  CHECKPOINT_RESTORE_PATH: str | None = None
  # Regexes over paths of variables that the checkpoint does not hold.
  CHECKPOINT_IGNORE_RULES: Sequence[str] | None = None

  def configure_checkpoint_restore(self, task_p: TaskConfig) -> TaskConfig:
    """Adds the rule that loads variables of equal names; returns `task_p`."""
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
