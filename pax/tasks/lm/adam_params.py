# SPDX-License-Identifier: Apache-2.0
"""Language models over a mesh, trained by Adam with a choice of schedules."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from pax import base_experiment, tasks_lib
from pax.tasks.lm import model_params
from praxis import optimizers, pax_fiddle, schedules
from praxis.layers.transformer_models import stack_configs

Config = pax_fiddle.Config
TaskConfig = Config[tasks_lib.SingleTask]

# The schedule of GPT-3 was tuned for this many rows a step; other sizes stretch
# it, and up to the second number the learning rate is the lower one.
_GPT3_ROWS, _GPT3_WARMUP, _GPT3_DECAY_END = 1536, 265, 108600
_MOST_ROWS_OF_LOWER_RATE, _MOST_ROWS = 3584, 8192


class AdamLm(base_experiment.BaseExperiment):
  """Puts Adam in the place of the optimizer of the experiment it is mixed into.

  None stands for the default of a number of Adam; 0 is 0. (Upstream takes 0 for
  absent, so that its GLaM64B models train with a first moment they switch off.)
  """

  NUM_LAYERS = 32
  NUM_HEADS = 16
  MODEL_DIMS = 1024
  HIDDEN_DIMS = MODEL_DIMS * 4
  FPROP_DTYPE = jnp.float32
  PACKED_INPUT = True
  # Whether attention projections have a bias.
  USE_BIAS = False
  EMBEDDING_LOOKUP_STYLE = 'matmul'

  # None follows from the number of rows a step, as for GPT-3.
  LEARNING_RATE = 1e-3
  ADAM_BETA1 = 0.9
  ADAM_BETA2 = 0.99
  # Updates with a larger root mean square are scaled down to it; -1 leaves all.
  ADAM_CLIP_THRESHOLD = 1.0
  ADAM_EPSILON = 1e-6
  ADAM_EPSILON_ROOT = 0.0

  # Or 'linear_rampup_cosine_decay', or 'constant'.
  LR_SCHEDULE = 'linear_rampup_exponential_decay'
  LR_LRED_WARMUP = 4000
  LR_LRED_DECAY_START = 4001
  LR_LRED_DECAY_END = 300000
  LR_LRED_MIN_RATIO = 0.1
  LR_LRED_MAX = 1.0

  LR_COS_MIN_RATIO = 0.1
  LR_COS_MAX = 1.0
  # None follows from the number of rows a step, as for GPT-3.
  LR_COS_WARMUP = 4000
  LR_COS_DECAY_START = 4001
  LR_COS_DECAY_END = 300000

  def task(self) -> TaskConfig:
    task_p = super().task()
    for block_p in stack_configs.stacked_transformers(
      task_p.model.lm_tpl.stacked_transformer_tpl
    ):
      layer_p = block_p.transformer_layer_params_tpl
      layer_p.tr_atten_tpl.use_bias = self.USE_BIAS
    return set_adam_and_learning_rate_schedule(self, task_p)


class TransformerLmSpmdAdam(AdamLm, model_params.TransformerLmSpmdAdafactor):
  """A Transformer language model over a mesh, trained by Adam."""


class TransformerLmSpmdPipelineAdam(
  AdamLm, model_params.TransformerLmSpmdPipelineAdafactor
):
  """A language model whose layers are a pipeline's stages, trained by Adam."""


def set_adam_and_learning_rate_schedule(
  cls: Any, task_p: TaskConfig
) -> TaskConfig:
  """Trains a task by Adam as the constants of `cls` say; returns the task.

  Raises:
    ValueError: the name of the schedule is unknown, or a number that is None
      does not follow from the number of rows a step.
  """
  numbers = {
    'beta1': (cls.ADAM_BETA1, 0.9),
    'beta2': (cls.ADAM_BETA2, 0.999),
    'weight_decay': (cls.WEIGHT_DECAY, 0.0),
    'epsilon': (cls.ADAM_EPSILON, 1e-6),
    'epsilon_root': (cls.ADAM_EPSILON_ROOT, 0.0),
    'clip_gradient_norm_to_value': (cls.CLIP_GRADIENT_NORM_TO_VALUE, 5.0),
    'clip_threshold': (cls.ADAM_CLIP_THRESHOLD, 1.0),
  }
  task_p.train.learner.set(
    loss_name='total_loss',
    optimizer=Config(
      optimizers.Adam,
      learning_rate=_learning_rate(cls),
      lr_schedule=_schedule(cls),
      **{
        name: default if value is None else value
        for name, (value, default) in numbers.items()
      },
    ),
  )
  return task_p


def _learning_rate(cls: Any) -> float:
  if cls.LEARNING_RATE is not None:
    return cls.LEARNING_RATE
  few = _rows(cls, 'LEARNING_RATE') <= _MOST_ROWS_OF_LOWER_RATE
  return 2e-5 if few else 3e-5


def _schedule(cls: Any) -> Config[schedules.BaseSchedule]:
  if cls.LR_SCHEDULE == 'linear_rampup_exponential_decay':
    return Config(
      schedules.LinearRampupExponentialDecay,
      warmup_steps=cls.LR_LRED_WARMUP,
      decay_start=cls.LR_LRED_DECAY_START,
      decay_end=cls.LR_LRED_DECAY_END,
      min_ratio=cls.LR_LRED_MIN_RATIO,
      max=cls.LR_LRED_MAX,
    )
  if cls.LR_SCHEDULE == 'linear_rampup_cosine_decay':
    warmup, start = cls.LR_COS_WARMUP, cls.LR_COS_DECAY_START
    if warmup is None:
      warmup = _gpt3_steps(cls, 'LR_COS_WARMUP', _GPT3_WARMUP)
    end = cls.LR_COS_DECAY_END
    if end is None:
      end = _gpt3_steps(cls, 'LR_COS_DECAY_END', _GPT3_DECAY_END)
    return Config(
      schedules.LinearRampupCosineDecay,
      warmup_steps=warmup,
      decay_start=warmup + 1 if start is None else start,
      decay_end=end,
      min_ratio=cls.LR_COS_MIN_RATIO,
      max=cls.LR_COS_MAX,
    )
  if cls.LR_SCHEDULE == 'constant':
    return Config(schedules.Constant)
  raise ValueError(
    'LR_SCHEDULE must be linear_rampup_exponential_decay, '
    f'linear_rampup_cosine_decay or constant, got {cls.LR_SCHEDULE!r}'
  )


def _gpt3_steps(cls: Any, name: str, steps: int) -> int:
  """Returns how many steps see the rows that GPT-3 saw in `steps`."""
  return math.ceil(steps * _GPT3_ROWS / _rows(cls, name) - 1e-6)


def _rows(cls: Any, name: str) -> int:
  """Returns the rows a step, on all devices, that `name` follows from."""
  rows = int(cls.PERCORE_BATCH_SIZE * _num_devices(cls) + 1e-6)
  if not 0 < rows <= _MOST_ROWS:
    raise ValueError(
      f'PERCORE_BATCH_SIZE={cls.PERCORE_BATCH_SIZE} makes {rows} rows a step, '
      f'want 1 to {_MOST_ROWS} for {name} to follow from it; set {name}'
    )
  return rows


def _num_devices(cls: Any) -> int:
  """Returns the size of the mesh, or how many devices there are without one."""
  if cls.ICI_MESH_SHAPE is None:
    return jax.device_count()
  return math.prod(cls.ICI_MESH_SHAPE) * math.prod(cls.DCN_MESH_SHAPE or [1])
