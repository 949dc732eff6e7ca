# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that the original paxml wrote.

tests/compare/upstream/write_checkpoints.py writes the archive.
"""

from __future__ import annotations

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from pax import learners, tasks_lib, train_states
from praxis import base_layer, optimizers, pax_fiddle, pytypes, schedules
from praxis.layers import linears, repeats
from tools.release import archives

FORMATS = ('flax', 'gda', 'ocdbt')
STEP = 7
_ARCHIVE = pathlib.Path('tests/golden/paxml_checkpoints.tar.gz')


def extract(directory: pathlib.Path) -> list[np.ndarray]:
  """Extracts a folder of checkpoints per format.

  Returns:
    The values of the state, in the order of its leaves.
  """
  archives.unpack(_ARCHIVE, directory)
  with np.load(directory / 'values.npz') as values:
    return [values[f'arr_{i}'] for i in range(len(values))]


def model() -> tuple[
  pytypes.Nested[base_layer.WeightHParams], learners.Learner
]:
  """Returns WeightHParams of the variables in the archive, and the learner."""
  feed_forward = pax_fiddle.Config(
    linears.FeedForward, input_dims=4, output_dims=4
  )
  feed_forward.weight_split_dims_mapping.wt = [None, 'data']
  layer = pax_fiddle.Config(
    repeats.Repeat, name='layers', sub_tpl=feed_forward, x_times=2
  ).Instantiate()
  hparams = layer.abstract_init_with_metadata(jnp.ones((2, 4)))
  learner = pax_fiddle.Config(
    learners.Learner,
    name='learner',
    loss_name='loss',
    bprop_variable_exclusion=[r'.*/b'],
    optimizer=pax_fiddle.Config(
      optimizers.Adam,
      learning_rate=1e-3,
      ema_decay=0.9,
      lr_schedule=pax_fiddle.Config(schedules.Constant),
    ),
  ).Instantiate()
  return {base_layer.PARAMS: hparams[base_layer.PARAMS]}, learner


def shapes() -> train_states.TrainState[jax.ShapeDtypeStruct]:
  """Returns the shapes of the state in the archive."""
  hparams, learner = model()
  return tasks_lib.create_state_unpadded_shapes(hparams, False, [learner])
