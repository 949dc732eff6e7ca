# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
"""Experiments of lm_cloud, scaled down: data, names, equal losses anywhere."""

from __future__ import annotations

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax import compat, experiment_registry, partitioning
from pax.tasks.lm.params import lm_cloud
from praxis.pytypes import NestedMap

_ROWS, _LENGTH, _VOCAB = 8, 16, 64


class _Tiny(lm_cloud.LmCloudSpmd):
  """LmCloudSpmd with one small layer."""

  NUM_LAYERS = 1
  MODEL_DIMS = 16
  HIDDEN_DIMS = 32
  DIMS_PER_HEAD = 8
  VOCAB_SIZE = _VOCAB
  FPROP_DTYPE = jnp.float32


def _batch():
  """Returns a batch of random tokens, two packed examples a row."""
  random = np.random.default_rng(0)
  tokens = random.integers(_VOCAB, size=(_ROWS, _LENGTH + 1), dtype=np.int32)
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


def _losses(mesh, num_devices):
  """Returns three losses of _Tiny and the text of the compiled step."""
  experiment = type('Tiny', (_Tiny,), {'ICI_MESH_SHAPE': mesh})()
  task_p = experiment.task()
  # The learning rate is 0 at step 0 and full at step 1.
  task_p.train.learner.optimizer.lr_schedule.warmup_steps = 1
  task_p.train.learner.optimizer.learning_rate = 0.01
  made = partitioning.create_partitioner(
    task_p, _batch(), devices=jax.devices()[:num_devices]
  )
  key = jax.random.key(0)
  state, step = made.initialize(key), made.train_step()
  batch, losses = made.put_batch(_batch()), []
  for _ in range(3):
    state, output = step(state, batch, key)
    losses.append(float(output.loss))
  return losses, step.compiled.as_text()


@pytest.fixture(scope='module')
def one_device():
  return _losses([1, 1, 1], 1)


def test_one_device_learns_and_talks_to_nobody(one_device):
  losses, text = one_device
  assert losses[0] == pytest.approx(np.log(_VOCAB), rel=0.2)
  assert losses[2] < losses[1] == losses[0]
  assert 'all-reduce' not in text


@pytest.mark.parametrize(
  ('mesh', 'num_devices'),
  [([1, 2, 2], 4), ([2, 2, 2], 8), (None, 1), (None, 2)],
)
def test_losses_are_those_of_one_device(mesh, num_devices, one_device):
  losses, text = _losses(mesh, num_devices)
  np.testing.assert_allclose(losses, one_device[0], rtol=1e-5)
  assert ('all-reduce' in text) == (num_devices > 1)
  # Sharded weights are gathered where they are used; replicas hold them.
  assert ('all-gather' in text) == (mesh is not None and num_devices > 1)


def test_every_spelling_of_a_name():
  compat.install()
  wanted = lm_cloud.LmCloudSpmd2B
  for name in (
    'tasks.lm.params.lm_cloud.LmCloudSpmd2B',
    'lm_cloud.LmCloudSpmd2B',
    'lm.lm_cloud.LmCloudSpmd2B',
    'paxml.tasks.lm.params.lm_cloud.LmCloudSpmd2B',
    'LmCloudSpmd2B',
  ):
    assert experiment_registry.get_experiment(name) is wanted
  old = importlib.import_module('paxml.tasks.lm.params.lm_cloud')
  assert old.LmCloudSpmd2B is wanted


@pytest.mark.parametrize(
  ('per_core', 'devices', 'hosts', 'batch_size', 'infeed_hosts'),
  [(16, 8, 1, 128, 1), (4, 4, 2, 16, 2), (0.75, 4, 32, 3, 32)],
)
def test_batch_of_a_host(
  per_core, devices, hosts, batch_size, infeed_hosts, monkeypatch
):
  monkeypatch.setattr(jax, 'local_device_count', lambda: devices)
  monkeypatch.setattr(jax, 'process_count', lambda: hosts)
  made = type('Sized', (_Tiny,), {'PERCORE_BATCH_SIZE': per_core})()
  train, test = made.datasets()
  assert (train.is_training, test.is_training) == (True, False)
  assert train.batch_size == batch_size
  assert train.num_infeed_hosts == infeed_hosts
  assert train.seq_len == 1024
