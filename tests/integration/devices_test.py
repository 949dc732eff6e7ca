# SPDX-License-Identifier: Apache-2.0
"""A language model learns the same on 1, 4 and 8 devices, either way."""

# bazel: deps=//pax/tasks:experiments
# bazel: size=large
from __future__ import annotations

import os

import jax
import numpy as np
import pytest

from pax import partitioning
from pax.programs import batch_shapes
from pax.runner import job_setup, options
from tests.testing import nightly

NUM_STEPS = 3
SMALL = (
  'NUM_LAYERS=1', 'MODEL_DIMS=32', 'HIDDEN_DIMS=64', 'MAX_SEQ_LEN=32',
  'BATCH_SIZE=8', 'NUM_PIECES=None', 'WARMUP_STEPS=1',
  f'NUM_TRAIN_STEPS={NUM_STEPS}',
)  # fmt: skip


@pytest.fixture(scope='module', autouse=True)
def _fast_compilation():
  """Three steps do not pay for optimizations; by night they are on."""
  is_fast = os.environ.get('PAX_NIGHTLY') != '1'
  jax.config.update('jax_disable_most_optimizations', is_fast)
  yield
  jax.config.update('jax_disable_most_optimizations', False)


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  file = tmp_path_factory.mktemp('corpus') / 'lines.txt'
  lines = (f'Line {i} of a text about models.\n' for i in range(200))
  file.write_text(''.join(lines))
  return file


def _losses(corpus, exp, num_devices, *settings):
  planned = job_setup.resolve(
    options.RunOptions(
      exp=f'tasks.lm.params.quickstart.{exp}',
      job_log_dir='unused',
      set=(*SMALL, *settings),
    )
  )
  planned.tree.train_input.files = [str(corpus)]
  planned.tree.train_input.held_out_percent = 0.0
  data = planned.tree.train_input.Instantiate()
  partitioner = partitioning.partition_task(
    planned.tree.task,
    batch_shapes.batch_spec(data),
    devices=jax.devices()[:num_devices],
  )
  key = jax.random.key(0)
  state, step = partitioner.initialize(key), partitioner.train_step()
  losses = []
  for _ in range(NUM_STEPS):
    batch = partitioner.put_batch(data.get_next_padded())
    state, output = step(state, batch, key)
    losses.append(float(output.loss))
  return losses


@pytest.fixture(scope='module')
def one_device(corpus):
  losses = _losses(corpus, 'TinyLmBytes', 1)
  assert losses[-1] < losses[0] - 0.1
  return losses


@pytest.mark.parametrize('mesh', [*nightly.cases([1, 4, 1]), [2, 2, 2]])
def test_mesh(mesh, corpus, one_device):
  setting = f'ICI_MESH_SHAPE={mesh}'
  losses = _losses(corpus, 'TinyLmBytes', int(np.prod(mesh)), setting)
  np.testing.assert_allclose(losses, one_device, rtol=1e-5)


def test_replicas(corpus):
  one, eight = (_losses(corpus, 'TinyLmPmap', count) for count in (1, 8))
  np.testing.assert_allclose(eight, one, rtol=1e-5)
