# SPDX-License-Identifier: Apache-2.0
"""Compiles for GPUs with JAX's CUDA plugin, without a GPU.

    ./bazelw test --config=nightly --config=cuda \
        //tests/integration:aot_gpu_nightly_test

or, with the plugin installed (`pip install 'jax[cuda13]'`),

    PAX_NIGHTLY=1 pytest tests/integration/aot_gpu_nightly_test.py
"""

# bazel: size=large
# bazel: tags=nightly
# bazel: deps=//third_party/pip:accelerator
from __future__ import annotations

import re
import subprocess
import sys

import pytest

from pax.aot import target as target_lib
from pax.tools import abstract_experiment
from tests.integration import binary
from tests.testing import programs

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


def test_the_scheduler_reads_the_profile_of_a_job(tmp_path):
  """`--pgle=manual`, from its stored profile to the schedule of the step."""
  code = f"""
import contextlib, pathlib, struct
from pax import partitioning
from pax.aot import topology
from pax.partitioning import profile_guided
from tests.pax import tiny

partitioner = partitioning.partition_task(
  tiny.task(mesh=[1, 4, 2]),
  tiny.spec(tiny.batch()),
  devices=topology.parse_topology('8xh100').devices(),
)
step = partitioner.train_step()
name = step.compiled.as_text().rpartition('ROOT %')[2].partition(' ')[0]
# A ProfiledInstructionsProto with one cost: a name and microseconds.
cost = b'\\x0a' + bytes([len(name)]) + name.encode()
cost += b'\\x11' + struct.pack('<d', 7.0)
folder = pathlib.Path({str(tmp_path)!r})
profile = b'\\x0a' + bytes([len(cost)]) + cost
(folder / 'profile.pb').write_bytes(profile)
profile_guided.ManualRecompilation(
  step, folder, print, contextlib.nullcontext, num_train_steps=100
).compile()
"""
  completed = subprocess.run(
    [sys.executable, '-c', code],
    capture_output=True,
    text=True,
    env=programs.environment()
    | {
      'JAX_PLATFORMS': 'cpu',
      'TF_CPP_MIN_LOG_LEVEL': '0',
      'XLA_FLAGS': '--xla_gpu_enable_latency_hiding_scheduler=true',
    },
  )
  assert completed.returncode == 0, completed.stderr
  log = completed.stderr
  assert log.count('Using PGLE profile from fdo_profile') == 1
  assert log.count('using profile guided latency estimator') == 1
  assert 'PGLE: the step is compiled with' in completed.stdout


@pytest.mark.parametrize('topology', ['8xa100', '8xh100', '8xb200'])
@pytest.mark.parametrize(('head_dim', 'cap'), [(64, 0.0), (256, 30.0)])
def test_packed_rows_attend_without_logits_in_memory(topology, head_dim, cap):
  options = abstract_experiment.ExperimentOptions(
    exp='tasks.lm.params.nvidia.NVIDIA1_3B',
    set=(
      *('ICI_MESH_SHAPE=[1,4,2]', 'NUM_LAYERS=2', 'NUM_HEADS=4'),
      *(f'MODEL_DIMS={4 * head_dim}', f'DIMS_PER_HEAD={head_dim}'),
      f'ATTEN_LOGIT_CAP={cap}',
    ),
  )
  step = target_lib.create_target(options, topology).partitioner.train_step()
  text = step.lower().compile().as_text()
  # Forward, again in the backward pass, and the two gradients.
  assert text.count('"__gpu$xla.gpu.triton"') == 4
  # Positions are embedded by a one-hot [B, T, T].
  assert not re.search(r'\[\d+,\d+,2048,2048\]', text)


@pytest.mark.parametrize('topology', ['8xa100', '8xh100', '8xb200'])
def test_experts_multiply_the_rows_that_are_routed_to_them(topology):
  options = abstract_experiment.ExperimentOptions(
    exp='tasks.lm.params.huggingface.Qwen3Moe',
    set=(
      *('USE_EXPERT_PARALLEL=True', 'ICI_MESH_SHAPE=[1,4,2,1]'),
      *('BATCH_SIZE=8', 'MAX_SEQ_LEN=1024'),
      *('task.model.lm_tpl.vocab_size=1024',),
      *('task.model.lm_tpl.stacked_transformer_tpl.block.num_experts=16',),
    ),
  )
  step = target_lib.create_target(options, topology).partitioner.train_step()
  text = step.lower().compile().as_text()
  kernels = re.findall(r'name = "pax_grouped_(\w+)"', text)
  # Three products forward, two again in the backward pass.
  assert kernels.count('product') == 5
  assert kernels.count('transposed_product') == 3
  assert kernels.count('weight_gradient') == 3
  assert 'ragged' not in text


@pytest.mark.parametrize('scaling', ['delayed', 'current'])
def test_products_with_weights_run_as_fp8_matmuls_of_cublas(scaling):
  constants = {
    'ICI_MESH_SHAPE': '[1,2,2]',
    'FPROP_DTYPE': 'bfloat16',
    'MODEL_DIMS': 64,
    'HIDDEN_DIMS': 256,
    'NUM_LAYERS': 2,
    'USE_REPEATED_LAYER': True,
    'task.model.lm_tpl.fp8_scaling': scaling,
  }
  options = abstract_experiment.ExperimentOptions(
    exp='tasks.lm.params.quickstart.TinyLmBytes',
    set=tuple(f'{name}={value}' for name, value in constants.items()),
  )
  target = target_lib.create_target(options, '8xh100')
  step = target.partitioner.train_step().lower()
  # Without measurements XLA prefers its Triton kernels, fp8 too.
  compiled = step.compile({'xla_gpu_enable_triton_gemm': False})
  matmuls = {True: [], False: []}
  for line in compiled.as_text().splitlines():
    if match := re.search(r'custom_call_target="__cublas\$lt\$matmul', line):
      (name,) = re.findall(r'op_name="([^"]*)"', line)
      matmuls[line[match.end() :].startswith('$f8')].append(name)
  # Of four products per layer: all forward, without the last one recomputed,
  # and two gradients each.
  assert len(matmuls[True]) == 4 + 3 + 2 * 4
  assert all('/einsum/' in name for name in matmuls[True])
  for name in matmuls[False]:
    assert re.search('qk_einsum|pv_einsum|/softmax', name)
