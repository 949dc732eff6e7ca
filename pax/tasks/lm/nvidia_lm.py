# SPDX-License-Identifier: Apache-2.0
"""Common settings of the language models for NVIDIA GPUs."""

from __future__ import annotations

import jax.numpy as jnp

from pax import base_experiment, tasks_lib
from praxis import base_layer, optimizers, pax_fiddle
from praxis.layers import activations

Config = pax_fiddle.Config
TaskConfig = Config[tasks_lib.SingleTask]
WeightInit = base_layer.WeightInit


class NvidiaLm(base_experiment.BaseExperiment):
  """Mixin for language models on NVIDIA GPUs; subclasses set the sizes.

  Unlike upstream, SOFTMAX_INIT_STD initializes the softmax. The flags of
  removed Triton kernels raise an error that names the replacement.
  """

  # Set by the model and the learner of the experiment.
  MODEL_DIMS: int
  WEIGHT_DECAY: float

  VOCAB_SIZE = 51200
  MAX_SEQ_LEN = 2048
  PACKED_INPUT = True
  TRAINABLE_PE_MAX_SEQ_LEN = MAX_SEQ_LEN
  TRAINABLE_POSITION_EMB = True
  USE_GATED_ACTIVATION = False
  ACTIVATION_CLS: type[activations.BaseActivation] = activations.GELU
  FPROP_DTYPE = jnp.bfloat16
  # Standard deviations of initial weights; 0 for the softmax is
  # 1/sqrt(MODEL_DIMS).
  INIT_STD = 0.023
  SOFTMAX_INIT_STD = 0.023

  # Triton kernels that were removed.
  USE_TRITON_LAYER_NORM = False
  USE_FLASH_ATTENTION = False

  LEARNING_RATE: float | None = 6e-4
  CLIP_GRADIENT_NORM_TO_VALUE = 1.0
  ADAM_EPSILON: float | None = 1e-8
  ADAM_EPSILON_ROOT: float | None = 0.0
  ADAM_BETA1: float | None = 0.9
  ADAM_BETA2: float | None = 0.95
  # Maximum root mean square of an update of Adam.
  CLIP_THRESHOLD = 1.0
  # Whether to train by sharded Adafactor instead of Adam.
  USE_ADAFACTOR = False

  LR_SCHEDULE = 'linear_rampup_cosine_decay'
  LR_COS_MAX = 1.0
  LR_COS_MIN_RATIO = 0.1
  LR_COS_WARMUP: int | None = 0
  LR_COS_DECAY_START: int | None = 1
  LR_COS_DECAY_END: int | None = 500000

  CHECKPOINT_EVERY_N_STEPS: int | None = 100000

  def validate(self) -> None:
    """Checks the constants.

    Raises:
      ValueError: A flag enables a removed Triton kernel.
    """
    super().validate()
    if self.USE_FLASH_ATTENTION:
      raise ValueError(
        'USE_FLASH_ATTENTION must be False, got True: its Triton kernel was '
        'removed; set USE_CUDNN_FLASH_ATTENTION instead'
      )
    if self.USE_TRITON_LAYER_NORM:
      raise ValueError(
        'USE_TRITON_LAYER_NORM must be False, got True: its Triton kernel was '
        'removed; XLA fuses layer norms'
      )

  def task(self) -> TaskConfig:
    task_p = super().task()
    task_p.model.params_init = WeightInit.Gaussian(self.INIT_STD)
    task_p.model.lm_tpl.softmax_tpl.params_init = WeightInit.Gaussian(
      self.SOFTMAX_INIT_STD or self.MODEL_DIMS**-0.5
    )
    learner_p = task_p.train.learner
    adam_p = learner_p.optimizer
    adam_p.clip_threshold = self.CLIP_THRESHOLD
    if self.USE_ADAFACTOR:
      learner_p.optimizer = Config(
        optimizers.ShardedAdafactor,
        learning_rate=adam_p.learning_rate,
        lr_schedule=adam_p.lr_schedule,
        clip_gradient_norm_to_value=self.CLIP_GRADIENT_NORM_TO_VALUE,
        weight_decay=self.WEIGHT_DECAY,
        beta1=self.ADAM_BETA1,
        decay_method='adam',
        decay_adam=0.99,
      )
    return task_p
