# SPDX-License-Identifier: Apache-2.0
"""Language models with equal growth of depth and width, for larger slices.

References: Chinchilla, https://arxiv.org/abs/2203.15556
"""

from __future__ import annotations

from typing import Any

from pax import experiment_registry, tasks_lib
from pax.tasks.lm.params import lm_cloud
from praxis import pax_fiddle
from praxis.layers.checkpoint_policy import AutodiffCheckpointType

# Any: the bases declare numbers.
_NOT_SET: Any = None


class OptimalScaling(lm_cloud.LmCloudSpmd):
  """As many heads of dimension 128 as layers; subclasses set NUM_LAYERS."""

  # The width follows from NUM_LAYERS.
  MODEL_DIMS: int = _NOT_SET
  HIDDEN_DIMS: int = _NOT_SET
  NUM_LAYERS: int = _NOT_SET

  CHECKPOINT_POLICY = AutodiffCheckpointType.SAVE_DOT_WITH_NO_BATCH_DIM
  PERCORE_BATCH_SIZE: float = _NOT_SET

  def task(self) -> pax_fiddle.Config[tasks_lib.SingleTask]:
    """Returns the task.

    Raises:
      ValueError: NUM_LAYERS is not set, or the width does not follow from it.
    """
    if not self.NUM_LAYERS:
      raise ValueError(
        f'NUM_LAYERS must be set, got {self.NUM_LAYERS}; it determines '
        'MODEL_DIMS and HIDDEN_DIMS'
      )
    self._set_derived('MODEL_DIMS', self.NUM_LAYERS * 128)
    self._set_derived('HIDDEN_DIMS', self.MODEL_DIMS * 4)
    return super().task()

  def _set_derived(self, name: str, value: int) -> None:
    if getattr(self, name) not in (None, value):
      raise ValueError(
        f'{name} must be {value} with NUM_LAYERS={self.NUM_LAYERS}, got '
        f'{getattr(self, name)}; set only NUM_LAYERS'
      )
    setattr(self, name, value)


@experiment_registry.register
class OptimalScaling2x2x1(OptimalScaling):
  """4.4B parameters on 4 devices."""

  ICI_MESH_SHAPE = [1, 4, 1]
  PERCORE_BATCH_SIZE = 16
  NUM_LAYERS = 28


@experiment_registry.register
class OptimalScaling2x2x2(OptimalScaling):
  """6.6B parameters on 8 devices."""

  ICI_MESH_SHAPE = [1, 8, 1]
  PERCORE_BATCH_SIZE = 8
  NUM_LAYERS = 32


@experiment_registry.register
class OptimalScaling2x2x4(OptimalScaling2x2x2):
  """9.3B parameters on 16 devices."""

  ICI_MESH_SHAPE = [1, 16, 1]
  NUM_LAYERS = 36


@experiment_registry.register
class OptimalScaling2x4x4(OptimalScaling2x2x2):
  """12.8B parameters on 32 devices."""

  ICI_MESH_SHAPE = [1, 32, 1]
  NUM_LAYERS = 40


@experiment_registry.register
class OptimalScaling4x4x4(OptimalScaling2x2x2):
  """18.1B parameters on 64 devices."""

  ICI_MESH_SHAPE = [1, 64, 1]
  NUM_LAYERS = 45


@experiment_registry.register
class OptimalScaling4x4x8(OptimalScaling):
  """24.8B parameters on 128 devices."""

  ICI_MESH_SHAPE = [1, 128, 1]
  PERCORE_BATCH_SIZE = 4
  NUM_LAYERS = 50


@experiment_registry.register
class OptimalScaling4x8x8(OptimalScaling):
  """34.8B parameters on 256 devices."""

  ICI_MESH_SHAPE = [1, 64, 4]
  PERCORE_BATCH_SIZE = 2
  NUM_LAYERS = 56


@experiment_registry.register
class OptimalScaling4x8x16(OptimalScaling4x8x8):
  """51.8B parameters on 512 devices."""

  ICI_MESH_SHAPE = [1, 128, 4]
  NUM_LAYERS = 64


@experiment_registry.register
class OptimalScaling4x16x16(OptimalScaling4x8x16):
  """51.8B parameters on 1024 devices."""

  ICI_MESH_SHAPE = [1, 256, 4]
  PERCORE_BATCH_SIZE = 1


@experiment_registry.register
class OptimalScaling4x16x32(OptimalScaling4x16x16):
  """51.8B parameters on 2048 devices."""

  ICI_MESH_SHAPE = [1, 512, 4]


@experiment_registry.register
class OptimalScaling4x24x32(OptimalScaling4x16x16):
  """51.8B parameters on 3072 devices."""

  ICI_MESH_SHAPE = [1, 768, 4]
