# SPDX-License-Identifier: Apache-2.0
"""A tiny LmCloudSpmd, trained on random tokens."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp

from pax.tasks.lm.params import lm_cloud
from tests.pax.tasks.lm import tiny_training

VOCAB = tiny_training.VOCAB


class Tiny(lm_cloud.LmCloudSpmd):
  """LmCloudSpmd with one small layer."""

  NUM_LAYERS = 1
  MODEL_DIMS = 16
  HIDDEN_DIMS = 32
  DIMS_PER_HEAD = 8
  VOCAB_SIZE = VOCAB
  FPROP_DTYPE = jnp.float32


def losses(
  mesh: Sequence[int] | None, num_devices: int
) -> tuple[list[float], str]:
  """Returns three losses of Tiny and the text of the compiled step."""
  experiment = type('Tiny', (Tiny,), {'ICI_MESH_SHAPE': mesh})()
  trained = tiny_training.train(experiment.task(), num_devices=num_devices)
  return trained.losses, trained.text
