# SPDX-License-Identifier: Apache-2.0
"""What the language models for NVIDIA's GPUs have in common."""

from __future__ import annotations

import jax.numpy as jnp

from pax import base_experiment, tasks_lib
from praxis import base_layer, optimizers, pax_fiddle
from praxis.layers import activations

Config = pax_fiddle.Config
TaskConfig = Config[tasks_lib.SingleTask]
WeightInit = base_layer.WeightInit


class NvidiaLm(base_experiment.BaseExperiment):
  """Sizes of a batch, initial values and training; not those of a model.

  Unlike upstream, SOFTMAX_INIT_STD has its effect on the softmax. The flags of
  the Triton kernels, which are gone, say what to set instead.
  """

  # Set by the model and the learner of the experiment.
  MODEL_DIMS: int
  WEIGHT_DECAY: float

  USE_FLASH_ATTENTION = False
  USE_TRITON_LAYER_NORM = False

  MAX_SEQ_LEN = 2048
  VOCAB_SIZE = 51200
  ACTIVATION_CLS = activations.GELU
  USE_GATED_ACTIVATION = False
  PACKED_INPUT = True
  FPROP_DTYPE = jnp.bfloat16

  TRAINABLE_POSITION_EMB = True
  TRAINABLE_PE_MAX_SEQ_LEN = MAX_SEQ_LEN

  # Standard deviations of initial weights; that of the softmax is
  # 1/sqrt(MODEL_DIMS) if 0.
  INIT_STD = 0.023
  SOFTMAX_INIT_STD = 0.023

  LEARNING_RATE = 6e-4
  # Sharded Adafactor takes the place of Adam.
  USE_ADAFACTOR = False
  ADAM_BETA1 = 0.9
  ADAM_BETA2 = 0.95
  ADAM_EPSILON = 1e-8
  ADAM_EPSILON_ROOT = 0.0
  CLIP_GRADIENT_NORM_TO_VALUE = 1.0
  # Updates of Adam with a larger root mean square are scaled down to it.
  CLIP_THRESHOLD = 1.0

  LR_SCHEDULE = 'linear_rampup_cosine_decay'
  LR_COS_WARMUP = 0
  LR_COS_DECAY_START = 1
  LR_COS_DECAY_END = 500000
  LR_COS_MIN_RATIO = 0.1
  LR_COS_MAX = 1.0

  CHECKPOINT_EVERY_N_STEPS = 100000

  def validate(self) -> None:
    super().validate()
    for flag, instead in (
      ('USE_FLASH_ATTENTION', 'set USE_CUDNN_FLASH_ATTENTION instead'),
      ('USE_TRITON_LAYER_NORM', 'XLA fuses the norm by itself'),
    ):
      if getattr(self, flag):
        raise ValueError(
          f'{flag} must be False, got True: the Triton kernel it took is gone; '
          f'{instead}'
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
        decay_method='adam',
        beta1=self.ADAM_BETA1,
        decay_adam=0.99,
        weight_decay=self.WEIGHT_DECAY,
        clip_gradient_norm_to_value=self.CLIP_GRADIENT_NORM_TO_VALUE,
        learning_rate=adam_p.learning_rate,
        lr_schedule=adam_p.lr_schedule,
      )
    return task_p
