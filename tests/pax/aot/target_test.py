# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: deps=//tests/integration:experiments
"""Experiments on machines that match their mesh, and that do not."""

from __future__ import annotations

import jax
import pytest

from pax.aot import target
from pax.tools import abstract_experiment

EXP = 'tests.integration.experiments.TinySpmd'


@pytest.fixture(scope='module', autouse=True)
def devices():
  """The eight devices of all tests, counted before a test asks for fewer."""
  return jax.devices()


def create(name, *settings):
  options = abstract_experiment.ExperimentOptions(exp=EXP, set=settings)
  return target.create_target(options, name)


def test_a_mesh_is_put_on_the_devices_of_the_machine():
  created = create('cpu:4', 'ICI_MESH_SHAPE=[1,2,2]')
  assert created.topology.name == 'cpu:4'
  assert created.experiment.name == EXP
  assert created.partitioner.devices == jax.devices()[:4]
  assert created.partitioner.mesh.shape['mdl'] == 2


def test_a_part_of_a_host_may_be_used():
  created = create('cpu:4', 'ICI_MESH_SHAPE=[1,1,2]')
  assert len(created.partitioner.devices) == 2


def test_without_a_name_it_is_the_machine_that_the_mesh_is():
  created = create(None, 'ICI_MESH_SHAPE=[1,4,2]')
  assert created.topology.name == 'v4-16'


def test_a_mesh_that_is_no_machine():
  message = r'mesh \[1, 2, 2\] has 4 devices and v4-128 has 64.*v4-8'
  with pytest.raises(ValueError, match=message):
    create('v4-128', 'ICI_MESH_SHAPE=[1,2,2]')


def test_a_mesh_of_several_slices_that_is_no_machine():
  message = r'mesh \[1, 2, 2\] x \[2, 1, 1\] has 8 devices and v4-128 has 64'
  with pytest.raises(ValueError, match=message):
    create(
      'v4-128', 'ICI_MESH_SHAPE=[1,2,2]', 'task.model.dcn_mesh_shape=[2,1,1]'
    )


@pytest.mark.parametrize(
  ('name', 'fitting'), [('16x8xh100', '4xh100'), ('cpu:16', 'cpu:4')]
)
def test_the_machine_that_is_advised_is_of_the_same_platform(name, fitting):
  with pytest.raises(ValueError, match=rf'use --topology={fitting} or'):
    create(name, 'ICI_MESH_SHAPE=[1,2,2]')


def test_slices_that_the_mesh_does_not_have():
  message = r'has 2 slices and the mesh \[1, 8, 1\] has 1; set ICI_MESH_SHAPE'
  with pytest.raises(ValueError, match=message):
    create('v4-8x2', 'ICI_MESH_SHAPE=[1,8,1]')
