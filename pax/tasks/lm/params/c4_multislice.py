# SPDX-License-Identifier: Apache-2.0
"""Language models on C4 over several slices, sized as MaxText's."""

from __future__ import annotations

import jax.numpy as jnp

from pax import experiment_registry, tasks_lib
from pax.tasks.lm.params import c4, lm_cloud
from praxis import pax_fiddle
from praxis.layers.checkpoint_policy import AutodiffCheckpointType

TaskConfig = pax_fiddle.Config[tasks_lib.SingleTask]


@experiment_registry.register
class C4Spmd22BAdamMaxText(c4.C4SpmdAdam):
  """22B parameters on 8 devices, 128 rows a step, to compare with MaxText."""

  NUM_LAYERS = 48
  MODEL_DIMS = 6144
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 24
  DIMS_PER_HEAD = 256
  VOCAB_SIZE = 32768

  PERCORE_BATCH_SIZE = 16
  FPROP_DTYPE = jnp.bfloat16
  USE_REPEATED_LAYER = True
  CHECKPOINT_POLICY = AutodiffCheckpointType.SAVE_NOTHING

  SUMMARY_INTERVAL_STEPS = 10


@experiment_registry.register
class C4Spmd22BAdam1xv4_128(C4Spmd22BAdamMaxText):
  """22B parameters on a v4-128, 1024 rows a step."""

  ICI_MESH_SHAPE = [1, 64, 1]


@experiment_registry.register
class C4Spmd22BAdam2xv4_128(C4Spmd22BAdam1xv4_128):
  """22B parameters on two v4-128, 2048 rows a step."""

  DCN_MESH_SHAPE = [2, 1, 1]


@experiment_registry.register
class C4Spmd22BAdam4xv4_128(C4Spmd22BAdam1xv4_128):
  """22B parameters on four v4-128, 4096 rows a step."""

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
  """25B parameters (the name says less) on a v4-384, 1920 rows a step."""

  NUM_LAYERS = 24
  MODEL_DIMS = 9216
  HIDDEN_DIMS = MODEL_DIMS * 4
  DIMS_PER_HEAD = 384

  PERCORE_BATCH_SIZE = 10
  ICI_MESH_SHAPE = [1, 192, 1]


@experiment_registry.register
class C4Spmd22BAdam2xv4_384(C4Spmd22BAdam1xv4_384):
  """25B parameters on two v4-384, 3840 rows a step."""

  DCN_MESH_SHAPE = [2, 1, 1]


@experiment_registry.register
class C4Spmd22BAdam1xv4_8(C4Spmd22BAdamMaxText):
  """0.9B parameters (the name says more) on a v4-8, 64 rows a step."""

  NUM_LAYERS = 16
  MODEL_DIMS = 2048
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 8

  ICI_MESH_SHAPE = [1, 4, 1]


@experiment_registry.register
class C4Spmd22BAdam2xv4_8(C4Spmd22BAdam1xv4_8):
  """0.9B parameters on two v4-8, 128 rows a step."""

  DCN_MESH_SHAPE = [2, 1, 1]


@experiment_registry.register
class C4Spmd22BAdam4xv4_8(C4Spmd22BAdam1xv4_8):
  """0.9B parameters on four v4-8, 256 rows a step."""

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
  """GPT-3 on two slices of 256 devices, 256 rows a step, for 100 steps.

  Keeps 20 checkpoints; upstream sets that by a name nobody reads.
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
  """32B parameters on 128 chips of a v5, 256 rows a step."""

  NUM_LAYERS = 40
  MODEL_DIMS = 8192
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 32

  PERCORE_BATCH_SIZE = 2
  MAX_SEQ_LEN = 2048
  ICI_MESH_SHAPE = [1, 128, 1]


@experiment_registry.register
class C4Spmd32BAdam2xv5_256(C4Spmd32BAdam1xv5_256):
  """32B parameters on two slices of 128 chips of a v5, 512 rows a step."""

  DCN_MESH_SHAPE = [2, 1, 1]
