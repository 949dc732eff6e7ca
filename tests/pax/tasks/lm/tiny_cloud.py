# SPDX-License-Identifier: Apache-2.0
"""LmCloudSpmd as small as it can be, trained on random tokens."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pax import partitioning
from pax.tasks.lm.params import lm_cloud
from praxis.pytypes import NestedMap

_ROWS, _LENGTH, VOCAB = 8, 16, 64


class Tiny(lm_cloud.LmCloudSpmd):
  """LmCloudSpmd with one small layer."""

  NUM_LAYERS = 1
  MODEL_DIMS = 16
  HIDDEN_DIMS = 32
  DIMS_PER_HEAD = 8
  VOCAB_SIZE = VOCAB
  FPROP_DTYPE = jnp.float32


def _batch() -> NestedMap:
  """Returns a batch of random tokens, two packed examples a row."""
  random = np.random.default_rng(0)
  tokens = random.integers(VOCAB, size=(_ROWS, _LENGTH + 1), dtype=np.int32)
  ones = np.ones((_ROWS, _LENGTH), np.float32)
  position = np.arange(_LENGTH, dtype=np.int32)
  half = _LENGTH // 2
  return NestedMap(
    ids=tokens[:, :-1],
    labels=tokens[:, 1:],
    paddings=0 * ones,
    weights=ones,
    segment_ids=np.tile(1 + position // half, (_ROWS, 1)),
    segment_pos=np.tile(position % half, (_ROWS, 1)),
  )


def losses(
  mesh: Sequence[int] | None, num_devices: int
) -> tuple[list[float], str]:
  """Returns three losses of Tiny and the text of the compiled step."""
  experiment = type('Tiny', (Tiny,), {'ICI_MESH_SHAPE': mesh})()
  task_p = experiment.task()
  # The learning rate is 0 at step 0 and full at step 1.
  task_p.train.learner.optimizer.lr_schedule.warmup_steps = 1
  task_p.train.learner.optimizer.learning_rate = 0.01
  made = partitioning.create_partitioner(
    task_p, _batch(), devices=jax.devices()[:num_devices]
  )
  key = jax.random.key(0)
  state, step = made.initialize(key), made.train_step()
  batch, found = made.put_batch(_batch()), []
  for _ in range(3):
    state, output = step(state, batch, key)
    found.append(float(output.loss))
  return found, step.compiled.as_text()
