# SPDX-License-Identifier: Apache-2.0
"""Experiments of the benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax import base_experiment, experiment_registry, tasks_lib
from pax.tasks.lm import llama
from pax.tasks.lm.params import c4_multislice, lm_cloud
from praxis import pax_fiddle


@experiment_registry.register
class Lm4x256(lm_cloud.LmCloudSpmd):
  """4 layers of dimension 256, hidden 1024, vocabulary 8192, batch 8 x 256.

  Computes in float32, so that losses agree to 1e-5. Without a mesh it runs one
  replica per device.
  """

  NUM_LAYERS = 4
  MODEL_DIMS = 256
  HIDDEN_DIMS = 1024
  DIMS_PER_HEAD = 64
  VOCAB_SIZE = 8192
  GLOBAL_BATCH_SIZE = 8
  MAX_SEQ_LEN = 256
  FPROP_DTYPE = jnp.float32
  ICI_MESH_SHAPE: Sequence[int] | None = None

  # A constant that needs the devices is a property.
  @property
  def PERCORE_BATCH_SIZE(self) -> float:  # type: ignore[override]
    return self.GLOBAL_BATCH_SIZE / jax.device_count()


@experiment_registry.register
class Lm4x256Spmd(Lm4x256):
  """The same over a mesh that shards the batch and the weights."""

  @property
  def ICI_MESH_SHAPE(self) -> list[int]:  # type: ignore[override]
    return [1, jax.device_count(), 1]


@experiment_registry.register
class LmNothing(Lm4x256Spmd):
  """A model of negligible compute, to measure the overhead of a step."""

  NUM_LAYERS = 1
  MODEL_DIMS = 8
  HIDDEN_DIMS = 8
  DIMS_PER_HEAD = 8
  VOCAB_SIZE = 8
  MAX_SEQ_LEN = 4


class _RmsNorms(base_experiment.BaseExperiment):
  """RMS norms and no biases, as in MaxText's blocks."""

  def task(self) -> pax_fiddle.Config[tasks_lib.SingleTask]:
    task_p = super().task()
    llama.set_rms_norms(task_p.model.lm_tpl, epsilon=1e-6)
    return task_p


@experiment_registry.register
class Lm2BRmsNorms(_RmsNorms, lm_cloud.LmCloudSpmd2BLimitSteps):
  """LmCloudSpmd2BLimitSteps with RMS norms and without biases."""


@experiment_registry.register
class Lm22BRmsNorms(_RmsNorms, c4_multislice.C4Spmd22BAdam2xv4_128):
  """C4Spmd22BAdam2xv4_128 with RMS norms and without biases."""
