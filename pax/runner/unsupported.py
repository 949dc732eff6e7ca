# SPDX-License-Identifier: Apache-2.0
"""Refuses what an experiment asks for and this version would not do."""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from pax import base_experiment
from pax.runner.run_config import RunConfig
from praxis import pax_fiddle

# Fields that change what is trained or told, and have no effect yet.
_TRAIN_FIELDS = (
  'init_from_checkpoint_rules',
  'external_checkpoint_path',
  'external_checkpoint_handler',
  'restore_transformations',
  'eval_use_ema_states',
  'summary_accumulate_interval_steps',
  'log_train_output_interval_steps',
  'decode_interval_steps',
)
_TASK_FIELDS = ('early_stopping_fn', 'infer_writer')
_METHODS = ('partitioner', 'train_programs', 'eval_programs', 'executor')


def check(
  experiment: base_experiment.BaseExperiment,
  tree: pax_fiddle.Config[RunConfig],
) -> None:
  """Raises ValueError if the experiment asks for something of these lists."""
  task = tree.task
  wanted = [f'task.{name}' for name in _TASK_FIELDS if _is_set(task, name)]
  wanted += [
    f'task.train.{name}' for name in _TRAIN_FIELDS if _is_set(task.train, name)
  ]
  wanted += [f'{name}()' for name in _METHODS if getattr(experiment, name)()]
  if wanted:
    raise ValueError(
      f'{type(experiment).__name__} sets {", ".join(wanted)}, which this'
      ' version of Pax does not follow yet; unset it to train without'
    )


def _is_set(config: pax_fiddle.Config[Any], name: str) -> bool:
  value = getattr(config, name, None)
  if isinstance(value, fdl.Buildable):
    value = pax_fiddle.build(value)
  return bool(value)
