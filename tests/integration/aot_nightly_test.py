# SPDX-License-Identifier: Apache-2.0
"""Compiles for TPUs with libtpu, without a TPU."""

# bazel: size=large
# bazel: tags=nightly
# bazel: deps=//third_party/pip:tpu_compiler
from __future__ import annotations

import pytest

from tests.integration import binary

pytest.importorskip('libtpu', reason='the TPU compiler is not installed')


def test_one_slice(tmp_path):
  report = binary.aot_report(
    tmp_path, '--topology=v4-16', '--set=ICI_MESH_SHAPE=[1,4,2]'
  )
  assert report['device_kind'] == 'TPU v4' and report['num_devices'] == 8
  assert report['fits'] and report['memory']['capacity'] == 30.75 * 2**30
  axes = {tuple(total['axes']) for total in report['collectives']}
  assert axes and all(axis in ('data', 'mdl') for a in axes for axis in a)
  assert all(total['dcn_bytes'] == 0 for total in report['collectives'])


def test_two_slices_talk_over_the_slow_network(tmp_path):
  report = binary.aot_report(
    tmp_path,
    '--topology=v4-8x2',
    '--set=task.model.dcn_mesh_shape=[2,1,1]',
    '--set=ICI_MESH_SHAPE=[1,4,1]',
  )
  assert report['num_devices'] == 8
  assert sum(total['dcn_bytes'] for total in report['collectives']) > 0


def test_another_generation(tmp_path):
  report = binary.aot_report(
    tmp_path, '--topology=v5e-4', '--set=ICI_MESH_SHAPE=[1,4,1]'
  )
  assert report['device_kind'] == 'TPU v5 lite' and report['fits']
