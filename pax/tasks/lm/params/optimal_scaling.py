# SPDX-License-Identifier: Apache-2.0
"""Language models whose depth and width grow together, for growing slices.

References: Chinchilla, https://arxiv.org/abs/2203.15556
"""

from __future__ import annotations

from pax import experiment_registry, tasks_lib
from pax.tasks.lm.params import lm_cloud
from praxis import pax_fiddle
from praxis.layers.checkpoint_policy import AutodiffCheckpointType


class OptimalScaling(lm_cloud.LmCloudSpmd):
  """As many layers as heads of dimension 128; a subclass says how many."""

  NUM_LAYERS = None
  # Both follow from NUM_LAYERS.
  MODEL_DIMS = None
  HIDDEN_DIMS = None

  PERCORE_BATCH_SIZE = None
  CHECKPOINT_POLICY = AutodiffCheckpointType.SAVE_DOT_WITH_NO_BATCH_DIM

  def task(self) -> pax_fiddle.Config[tasks_lib.SingleTask]:
    if not self.NUM_LAYERS:
      raise ValueError('NUM_LAYERS must be set, got none; the width follows')
    self._follow('MODEL_DIMS', self.NUM_LAYERS * 128)
    self._follow('HIDDEN_DIMS', self.MODEL_DIMS * 4)
    return super().task()

  def _follow(self, name: str, value: int) -> None:
    if getattr(self, name) not in (None, value):
      raise ValueError(
        f'{name} must be {value} with NUM_LAYERS={self.NUM_LAYERS}, got '
        f'{getattr(self, name)}; set NUM_LAYERS, the width follows'
      )
    setattr(self, name, value)


@experiment_registry.register
class OptimalScaling2x2x1(OptimalScaling):
  """4.4B parameters on 4 devices."""

  NUM_LAYERS = 28
  PERCORE_BATCH_SIZE = 16
  ICI_MESH_SHAPE = [1, 4, 1]


@experiment_registry.register
class OptimalScaling2x2x2(OptimalScaling):
  """6.6B parameters on 8 devices."""

  NUM_LAYERS = 32
  PERCORE_BATCH_SIZE = 8
  ICI_MESH_SHAPE = [1, 8, 1]


@experiment_registry.register
class OptimalScaling2x2x4(OptimalScaling):
  """9.3B parameters on 16 devices."""

  NUM_LAYERS = 36
  PERCORE_BATCH_SIZE = 8
  ICI_MESH_SHAPE = [1, 16, 1]


@experiment_registry.register
class OptimalScaling2x4x4(OptimalScaling):
  """12.8B parameters on 32 devices."""

  NUM_LAYERS = 40
  PERCORE_BATCH_SIZE = 8
  ICI_MESH_SHAPE = [1, 32, 1]


@experiment_registry.register
class OptimalScaling4x4x4(OptimalScaling):
  """18.1B parameters on 64 devices."""

  NUM_LAYERS = 45
  PERCORE_BATCH_SIZE = 8
  ICI_MESH_SHAPE = [1, 64, 1]


@experiment_registry.register
class OptimalScaling4x4x8(OptimalScaling):
  """24.8B parameters on 128 devices."""

  NUM_LAYERS = 50
  PERCORE_BATCH_SIZE = 4
  ICI_MESH_SHAPE = [1, 128, 1]


@experiment_registry.register
class OptimalScaling4x8x8(OptimalScaling):
  """34.8B parameters on 256 devices."""

  NUM_LAYERS = 56
  PERCORE_BATCH_SIZE = 2
  ICI_MESH_SHAPE = [1, 64, 4]


@experiment_registry.register
class OptimalScaling4x8x16(OptimalScaling):
  """51.8B parameters on 512 devices."""

  NUM_LAYERS = 64
  PERCORE_BATCH_SIZE = 2
  ICI_MESH_SHAPE = [1, 128, 4]


@experiment_registry.register
class OptimalScaling4x16x16(OptimalScaling):
  """51.8B parameters on 1024 devices."""

  NUM_LAYERS = 64
  PERCORE_BATCH_SIZE = 1
  ICI_MESH_SHAPE = [1, 256, 4]


@experiment_registry.register
class OptimalScaling4x16x32(OptimalScaling):
  """51.8B parameters on 2048 devices."""

  NUM_LAYERS = 64
  PERCORE_BATCH_SIZE = 1
  ICI_MESH_SHAPE = [1, 512, 4]


@experiment_registry.register
class OptimalScaling4x24x32(OptimalScaling):
  """51.8B parameters on 3072 devices."""

  NUM_LAYERS = 64
  PERCORE_BATCH_SIZE = 1
  ICI_MESH_SHAPE = [1, 768, 4]
