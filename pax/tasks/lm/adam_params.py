# SPDX-License-Identifier: Apache-2.0
"""Language models over a mesh, trained by Adam with one of three schedules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import jax
import jax.numpy as jnp

from pax import base_experiment, tasks_lib
from pax.tasks.lm import model_params
from praxis import optimizers, pax_fiddle, schedules
from praxis.layers.transformer_models import stack_configs

Config = pax_fiddle.Config
TaskConfig = Config[tasks_lib.SingleTask]

# The batch size of GPT-3, in rows, and its schedule, in steps. The schedule of
# another batch size covers the same number of rows.
_GPT3_BATCH_SIZE, _GPT3_WARMUP, _GPT3_DECAY_END = 1536, 265, 108600
# MLPerf's learning rates: the first up to a batch size, the second above it.
_LEARNING_RATES, _LEARNING_RATE_BOUNDARY = (2e-5, 3e-5), 3584
_MAX_BATCH_SIZE = 8192


class AdamConstants(Protocol):
  """Constants of an experiment that set its optimizer and its schedule."""

  PERCORE_BATCH_SIZE: float
  ICI_MESH_SHAPE: Sequence[int] | None
  DCN_MESH_SHAPE: Sequence[int] | None

  LEARNING_RATE: float | None
  WEIGHT_DECAY: float
  CLIP_GRADIENT_NORM_TO_VALUE: float
  ADAM_BETA1: float | None
  ADAM_BETA2: float | None
  ADAM_EPSILON: float | None
  ADAM_EPSILON_ROOT: float | None
  ADAM_CLIP_THRESHOLD: float | None

  LR_SCHEDULE: str
  LR_LRED_WARMUP: int
  LR_LRED_DECAY_START: int
  LR_LRED_DECAY_END: int
  LR_LRED_MIN_RATIO: float
  LR_LRED_MAX: float
  LR_COS_WARMUP: int | None
  LR_COS_DECAY_START: int | None
  LR_COS_DECAY_END: int | None
  LR_COS_MIN_RATIO: float
  LR_COS_MAX: float


class AdamLm(base_experiment.BaseExperiment):
  """Mixin that replaces the optimizer of a language model by Adam.

  An Adam constant that is None takes its default; 0 is 0. (Upstream reads 0 as
  absent, so that its GLaM64B models train with the first moment that they
  disable.)
  """

  # Set by the model and the data of the experiment.
  PERCORE_BATCH_SIZE: float
  ICI_MESH_SHAPE: Sequence[int] | None
  DCN_MESH_SHAPE: Sequence[int] | None
  WEIGHT_DECAY: float
  CLIP_GRADIENT_NORM_TO_VALUE: float

  MODEL_DIMS = 1024
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS: int | None = 16
  NUM_LAYERS = 32
  FPROP_DTYPE = jnp.float32
  # Whether attention projections have a bias.
  USE_BIAS = False
  PACKED_INPUT = True
  EMBEDDING_LOOKUP_STYLE = 'matmul'

  # Peak learning rate; None derives it from the batch size, as for GPT-3.
  LEARNING_RATE: float | None = 1e-3
  # 'linear_rampup_exponential_decay', 'linear_rampup_cosine_decay' or
  # 'constant'.
  LR_SCHEDULE = 'linear_rampup_exponential_decay'
  # The exponential decay, in steps and in multiples of the learning rate.
  LR_LRED_MAX = 1.0
  LR_LRED_MIN_RATIO = 0.1
  LR_LRED_WARMUP = 4000
  LR_LRED_DECAY_START = LR_LRED_WARMUP + 1
  LR_LRED_DECAY_END = 300000
  # The cosine decay; steps that are None follow from the batch size, as for
  # GPT-3.
  LR_COS_MAX = 1.0
  LR_COS_MIN_RATIO = 0.1
  LR_COS_WARMUP: int | None = 4000
  LR_COS_DECAY_START: int | None = 4001
  LR_COS_DECAY_END: int | None = 300000

  ADAM_EPSILON: float | None = 1e-6
  ADAM_EPSILON_ROOT: float | None = 0.0
  ADAM_BETA1: float | None = 0.9
  ADAM_BETA2: float | None = 0.99
  # Maximum root mean square of an update; -1 does not clip.
  ADAM_CLIP_THRESHOLD: float | None = 1.0

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
  """A Transformer language model in pipeline stages, trained by Adam."""


def set_adam_and_learning_rate_schedule(
  cls: AdamConstants, task_p: TaskConfig
) -> TaskConfig:
  """Sets Adam and its schedule from the constants of `cls`; returns the task.

  Raises:
    ValueError: The schedule is unknown, or cannot be derived from the batch
      size.
  """
  values_and_defaults = {
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
        for name, (value, default) in values_and_defaults.items()
      },
    ),
  )
  return task_p


def _learning_rate(cls: AdamConstants) -> float:
  if cls.LEARNING_RATE is not None:
    return cls.LEARNING_RATE
  batch_size = _global_batch_size(cls, 'LEARNING_RATE')
  return _LEARNING_RATES[batch_size > _LEARNING_RATE_BOUNDARY]


def _schedule(cls: AdamConstants) -> Config[schedules.BaseSchedule]:
  if cls.LR_SCHEDULE == 'linear_rampup_exponential_decay':
    return Config(
      schedules.LinearRampupExponentialDecay,
      max=cls.LR_LRED_MAX,
      min_ratio=cls.LR_LRED_MIN_RATIO,
      warmup_steps=cls.LR_LRED_WARMUP,
      decay_start=cls.LR_LRED_DECAY_START,
      decay_end=cls.LR_LRED_DECAY_END,
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


def _gpt3_steps(cls: AdamConstants, name: str, steps: int) -> int:
  """Returns the number of steps with as many rows as `steps` of GPT-3."""
  batch_size = _global_batch_size(cls, name)
  return math.ceil(steps * _GPT3_BATCH_SIZE / batch_size - 1e-6)


def _global_batch_size(cls: AdamConstants, name: str) -> int:
  """Returns the batch size that the constant `name` is derived from."""
  batch_size = int(cls.PERCORE_BATCH_SIZE * _num_devices(cls) + 1e-6)
  if not 0 < batch_size <= _MAX_BATCH_SIZE:
    raise ValueError(
      f'{name}=None needs a global batch size of 1 to {_MAX_BATCH_SIZE}, got '
      f'{batch_size} from PERCORE_BATCH_SIZE={cls.PERCORE_BATCH_SIZE}; set '
      f'{name}'
    )
  return batch_size


def _num_devices(cls: AdamConstants) -> int:
  """Returns the size of the mesh; without a mesh, the number of devices."""
  if cls.ICI_MESH_SHAPE is None:
    return jax.device_count()
  return math.prod(cls.ICI_MESH_SHAPE) * math.prod(cls.DCN_MESH_SHAPE or [1])
