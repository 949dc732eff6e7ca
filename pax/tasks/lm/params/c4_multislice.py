# SPDX-License-Identifier: Apache-2.0
"""Language models on C4 over several slices, with the sizes of MaxText's."""

from __future__ import annotations

import jax.numpy as jnp

from pax import experiment_registry, tasks_lib
from pax.tasks.lm.params import c4, lm_cloud
from praxis import pax_fiddle
from praxis.layers.checkpoint_policy import AutodiffCheckpointType

TaskConfig = pax_fiddle.Config[tasks_lib.SingleTask]


@experiment_registry.register
class C4Spmd22BAdamMaxText(c4.C4SpmdAdam):
  """22B parameters on 8 devices, batch size 128; compares with MaxText."""

  MODEL_DIMS = 6144
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 24
  DIMS_PER_HEAD = 256
  NUM_LAYERS = 48
  VOCAB_SIZE = 32768

  USE_REPEATED_LAYER = True
  CHECKPOINT_POLICY = AutodiffCheckpointType.SAVE_NOTHING
  FPROP_DTYPE = jnp.bfloat16
  PERCORE_BATCH_SIZE = 16

  SUMMARY_INTERVAL_STEPS = 10


@experiment_registry.register
class C4Spmd22BAdam1xv4_128(C4Spmd22BAdamMaxText):
  """22B parameters on a v4-128, batch size 1024."""

  ICI_MESH_SHAPE = [1, 64, 1]


@experiment_registry.register
class C4Spmd22BAdam2xv4_128(C4Spmd22BAdam1xv4_128):
  """22B parameters on two v4-128, batch size 2048."""

  DCN_MESH_SHAPE = [2, 1, 1]


@experiment_registry.register
class C4Spmd22BAdam4xv4_128(C4Spmd22BAdam1xv4_128):
  """22B parameters on four v4-128, batch size 4096."""

  DCN_MESH_SHAPE = [4, 1, 1]


@experiment_registry.register
class C4Spmd22BAdam1xv4_128LimitSteps(
  lm_cloud.LimitSteps, C4Spmd22BAdam1xv4_128
):
  """22B parameters on a v4-128 for 300 steps."""


@experiment_registry.register
class C4Spmd22BAdam2xv4_128LimitSteps(
  lm_cloud.LimitSteps, C4Spmd22BAdam2xv4_128
):
  """22B parameters on two v4-128 for 300 steps."""


@experiment_registry.register
class C4Spmd22BAdam4xv4_128LimitSteps(
  lm_cloud.LimitSteps, C4Spmd22BAdam4xv4_128
):
  """22B parameters on four v4-128 for 300 steps."""


@experiment_registry.register
class C4Spmd22BAdam1xv4_384(C4Spmd22BAdamMaxText):
  """25B parameters (despite the name) on a v4-384, batch size 1920."""

  MODEL_DIMS = 9216
  HIDDEN_DIMS = MODEL_DIMS * 4
  DIMS_PER_HEAD = 384
  NUM_LAYERS = 24

  PERCORE_BATCH_SIZE = 10
  ICI_MESH_SHAPE = [1, 192, 1]


@experiment_registry.register
class C4Spmd22BAdam2xv4_384(C4Spmd22BAdam1xv4_384):
  """25B parameters on two v4-384, batch size 3840."""

  DCN_MESH_SHAPE = [2, 1, 1]


@experiment_registry.register
class C4Spmd22BAdam1xv4_8(C4Spmd22BAdamMaxText):
  """0.9B parameters (despite the name) on a v4-8, batch size 64."""

  MODEL_DIMS = 2048
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 8
  NUM_LAYERS = 16

  ICI_MESH_SHAPE = [1, 4, 1]


@experiment_registry.register
class C4Spmd22BAdam2xv4_8(C4Spmd22BAdam1xv4_8):
  """0.9B parameters on two v4-8, batch size 128."""

  DCN_MESH_SHAPE = [2, 1, 1]


@experiment_registry.register
class C4Spmd22BAdam4xv4_8(C4Spmd22BAdam1xv4_8):
  """0.9B parameters on four v4-8, batch size 256."""

  DCN_MESH_SHAPE = [4, 1, 1]


@experiment_registry.register
class C4Spmd22BAdam1xv4_8LimitSteps(lm_cloud.LimitSteps, C4Spmd22BAdam1xv4_8):
  """0.9B parameters on a v4-8 for 300 steps."""


@experiment_registry.register
class C4Spmd22BAdam2xv4_8LimitSteps(lm_cloud.LimitSteps, C4Spmd22BAdam2xv4_8):
  """0.9B parameters on two v4-8 for 300 steps."""


@experiment_registry.register
class C4Spmd22BAdam4xv4_8LimitSteps(lm_cloud.LimitSteps, C4Spmd22BAdam4xv4_8):
  """0.9B parameters on four v4-8 for 300 steps."""


@experiment_registry.register
class C4SpmdGpt3AdamDataParallel2x16x16(
  lm_cloud.LimitSteps, c4.C4SpmdGpt3AdamOrgHP
):
  """GPT-3 on two slices of 256 devices, batch size 256, for 100 steps.

  Keeps 20 checkpoints; upstream sets the number by a name without effect.
  """

  PERCORE_BATCH_SIZE = 0.5
  ICI_MESH_SHAPE = [1, 16, 16]
  DCN_MESH_SHAPE = [2, 1, 1]
  FPROP_DTYPE = jnp.bfloat16

  CHECKPOINT_EVERY_N_STEPS = 2000
  CHECKPOINT_MAX_TO_KEEP = 20
  NUM_TRAIN_STEPS = 100

  def task(self) -> TaskConfig:
    task_p = super().task()
    task_p.summary_verbosity = 0
    return task_p


@experiment_registry.register
class C4Spmd32BAdam1xv5_256(C4Spmd22BAdam1xv4_128):
  """32B parameters on 128 chips of a v5, batch size 256."""

  MODEL_DIMS = 8192
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 32
  NUM_LAYERS = 40

  PERCORE_BATCH_SIZE = 2
  MAX_SEQ_LEN = 2048
  ICI_MESH_SHAPE = [1, 128, 1]


@experiment_registry.register
class C4Spmd32BAdam2xv5_256(C4Spmd32BAdam1xv5_256):
  """32B parameters on two slices of 128 chips of a v5, batch size 512."""

  DCN_MESH_SHAPE = [2, 1, 1]
