# SPDX-License-Identifier: Apache-2.0
"""A tiny LLaMA."""

from __future__ import annotations

import jax.numpy as jnp

from pax.contrib.gpu.scripts_gpu import configs
from tests.pax.tasks.lm import tiny_training

SIZES = {
  'NUM_LAYERS': 2,
  'NUM_HEADS': 4,
  'DIMS_PER_HEAD': 4,
  'MODEL_DIMS': 16,
  'HIDDEN_DIMS': 24,
  'VOCAB_SIZE': tiny_training.VOCAB,
  'MAX_SEQ_LEN': tiny_training.LENGTH,
  'PERCORE_BATCH_SIZE': tiny_training.ROWS,
  'FPROP_DTYPE': jnp.float32,
  'ICI_MESH_SHAPE': [1, 1, 1],
  'TRUE_TOKEN': 5,
  'FALSE_TOKEN': 6,
}


def made(**constants: object) -> configs.LLaMA7B:
  """Returns a tiny LLaMA with additional constants."""
  return type('TinyLLaMA', (configs.LLaMA7B,), {**SIZES, **constants})()
