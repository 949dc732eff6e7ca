# SPDX-License-Identifier: Apache-2.0
"""Compiles for TPUs that are not here, where their compiler is."""

# bazel: size=large
# bazel: tags=nightly
# bazel: deps=//third_party/pip:tpu_compiler
from __future__ import annotations

import pytest

from tests.integration import binary

pytest.importorskip('libtpu', reason='the TPU compiler is not installed')


def test_one_slice(tmp_path):
  found = binary.aot_report(
    tmp_path, '--topology=v4-16', '--set=ICI_MESH_SHAPE=[1,4,2]'
  )
  assert found['device_kind'] == 'TPU v4' and found['num_devices'] == 8
  assert found['fits'] and found['memory']['capacity'] == 30.75 * 2**30
  axes = {tuple(sent['axes']) for sent in found['collectives']}
  assert axes and all(axis in ('data', 'mdl') for a in axes for axis in a)
  assert all(sent['dcn_bytes'] == 0 for sent in found['collectives'])


def test_two_slices_talk_over_the_slow_network(tmp_path):
  found = binary.aot_report(
    tmp_path,
    '--topology=v4-8x2',
    '--set=task.model.dcn_mesh_shape=[2,1,1]',
    '--set=ICI_MESH_SHAPE=[1,4,1]',
  )
  assert found['num_devices'] == 8
  assert sum(sent['dcn_bytes'] for sent in found['collectives']) > 0


def test_another_generation(tmp_path):
  found = binary.aot_report(
    tmp_path, '--topology=v5e-4', '--set=ICI_MESH_SHAPE=[1,4,1]'
  )
  assert found['device_kind'] == 'TPU v5 lite' and found['fits']
