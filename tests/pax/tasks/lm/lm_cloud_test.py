# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
"""Small experiments of lm_cloud: data, names, equal losses on all meshes."""

from __future__ import annotations

import importlib

import jax
import numpy as np
import pytest

from pax import experiment_registry
from pax.tasks.lm.params import lm_cloud
from tests.pax.tasks.lm import tiny_cloud
from tests.testing import nightly


@pytest.fixture(scope='module')
def one_device():
  return tiny_cloud.losses([1, 1, 1], 1)


def test_one_device_learns_and_talks_to_nobody(one_device):
  losses, text = one_device
  assert losses[0] == pytest.approx(np.log(tiny_cloud.VOCAB), rel=0.2)
  assert losses[2] < losses[1] == losses[0]
  assert 'all-reduce' not in text


@pytest.mark.parametrize(
  ('mesh', 'num_devices'),
  [([1, 2, 2], 4), *nightly.cases((None, 2))],
)
def test_losses_are_those_of_one_device(mesh, num_devices, one_device):
  losses, text = tiny_cloud.losses(mesh, num_devices)
  np.testing.assert_allclose(losses, one_device[0], rtol=1e-5)
  assert ('all-reduce' in text) == (num_devices > 1)
  # Sharded weights are gathered where they are used; replicas hold them.
  assert ('all-gather' in text) == (mesh is not None and num_devices > 1)


def test_every_spelling_of_a_name():
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
  made = type('Sized', (tiny_cloud.Tiny,), {'PERCORE_BATCH_SIZE': per_core})()
  train, test = made.datasets()
  assert (train.is_training, test.is_training) == (True, False)
  assert train.batch_size == batch_size
  assert train.num_infeed_hosts == infeed_hosts
  assert train.seq_len == 1024
