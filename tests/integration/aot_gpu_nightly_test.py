# SPDX-License-Identifier: Apache-2.0
"""Compiles for GPUs with JAX's CUDA plugin, without a GPU.

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
  report = binary.aot_report(
    tmp_path, '--topology=8xh100', '--set=ICI_MESH_SHAPE=[1,4,2]'
  )
  assert report['compile_s'] and report['num_devices'] == 8
  assert report['fits'] and report['memory']['capacity'] == 80e9
  memory = report['memory']
  assert memory['temporaries'] > 0 and memory['total'] < 2**20
  axes = {tuple(total['axes']) for total in report['collectives']}
  assert axes and all(axis in ('data', 'mdl') for a in axes for axis in a)
  assert all(total['dcn_bytes'] == 0 for total in report['collectives'])


def test_hosts_talk_over_the_slow_network(tmp_path):
  report = binary.aot_report(
    tmp_path, '--topology=2x4xa100', '--set=ICI_MESH_SHAPE=[1,8,1]'
  )
  assert report['compile_s'] and report['num_devices'] == 8
  assert sum(total['dcn_bytes'] for total in report['collectives']) > 0
  assert sum(total['ici_bytes'] for total in report['collectives']) > 0
