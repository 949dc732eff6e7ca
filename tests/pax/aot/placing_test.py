# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: deps=//tests/integration:experiments
"""Which machine an experiment is put on, and which it does not fit."""

from __future__ import annotations

import jax
import pytest

from pax.aot import placing
from pax.tools import abstract_experiment

EXP = 'tests.integration.experiments.TinySpmd'


@pytest.fixture(scope='module', autouse=True)
def devices():
  """The eight devices of all tests, found before any other number is wished."""
  return jax.devices()


def place(name, *settings):
  options = abstract_experiment.ExperimentOptions(exp=EXP, set=settings)
  return placing.place(options, name)


def test_a_mesh_is_put_on_the_devices_of_the_machine():
  found = place('cpu:4', 'ICI_MESH_SHAPE=[1,2,2]')
  assert found.topology.name == 'cpu:4' and found.declared.name == EXP
  assert found.partitioner.devices == jax.devices()[:4]
  assert found.partitioner.mesh.shape['mdl'] == 2


def test_a_part_of_a_host_may_be_used():
  found = place('cpu:4', 'ICI_MESH_SHAPE=[1,1,2]')
  assert len(found.partitioner.devices) == 2


def test_without_a_name_it_is_the_machine_that_the_mesh_is():
  found = place(None, 'ICI_MESH_SHAPE=[1,4,2]')
  assert found.topology.name == 'v4-16'


def test_a_mesh_that_is_no_machine():
  with pytest.raises(ValueError, match=r'4 devices and v4-128 has 64.*v4-8'):
    place('v4-128', 'ICI_MESH_SHAPE=[1,2,2]')


def test_slices_that_the_mesh_does_not_have():
  with pytest.raises(ValueError, match='has 2 slices and dcn_mesh_shape'):
    place('v4-8x2', 'ICI_MESH_SHAPE=[1,8,1]')
