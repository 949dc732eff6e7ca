# SPDX-License-Identifier: Apache-2.0
"""ResNet50Pjit with a network that is compiled in a moment."""

from __future__ import annotations

from typing import Any

from pax import experiment_registry
from pax.tasks.vision.params import imagenet_resnets
from praxis import pax_fiddle
from praxis.layers import resnets


@experiment_registry.register
class TinyResNet(imagenet_resnets.ResNet50Pjit):
  """One block on small images of four classes; two steps are an epoch."""

  NUM_TRAIN_EXAMPLES = 16
  NUM_CLASSES = 4
  IMAGE_SIZE = 16
  TRAIN_BATCH_SIZE = 8
  EVAL_BATCH_SIZE = 8
  LEARNING_RATE = 0.05
  NUM_EPOCHS = 15
  SUMMARY_INTERVAL_STEPS = 1
  SAVE_INTERVAL_STEPS = 10

  def _network(self) -> Any:
    network = resnets.ResNet.HParamsResNet5()
    network.block_params = pax_fiddle.Config(
      resnets.ResNetBlock, zero_init_residual=True
    )
    return network
