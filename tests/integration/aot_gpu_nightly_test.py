# SPDX-License-Identifier: Apache-2.0
"""Compiles for GPUs that are not here, where their compiler is.

    ./bazelw test --config=nightly --config=cuda \
        //tests/integration:aot_gpu_nightly_test
"""

# bazel: size=large
# bazel: tags=nightly
# bazel: deps=//third_party/pip:accelerator
from __future__ import annotations

import pytest

from tests.integration import binary

pytest.importorskip(
  'jax_cuda13_plugin', reason='the CUDA compiler is not installed'
)


def test_one_host(tmp_path):
  found = binary.aot_report(
    tmp_path, '--topology=8xh100', '--set=ICI_MESH_SHAPE=[1,4,2]'
  )
  assert found['compile_s'] and found['num_devices'] == 8
  assert found['fits'] and found['memory']['capacity'] == 80e9
  # What the compiler says that the step takes is what shapes say, and more.
  held = found['memory']
  assert held['temporaries'] > 0 and held['total'] < 2**20
  axes = {tuple(sent['axes']) for sent in found['collectives']}
  assert axes and all(axis in ('data', 'mdl') for a in axes for axis in a)
  assert all(sent['dcn_bytes'] == 0 for sent in found['collectives'])


def test_hosts_talk_over_the_slow_network(tmp_path):
  found = binary.aot_report(
    tmp_path, '--topology=2x4xa100', '--set=ICI_MESH_SHAPE=[1,8,1]'
  )
  assert found['compile_s'] and found['num_devices'] == 8
  assert sum(sent['dcn_bytes'] for sent in found['collectives']) > 0
  assert sum(sent['ici_bytes'] for sent in found['collectives']) > 0
