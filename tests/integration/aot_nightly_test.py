# SPDX-License-Identifier: Apache-2.0
"""Compiles for TPUs with libtpu, without a TPU."""

# bazel: size=large
# bazel: tags=nightly
# bazel: deps=//third_party/pip:tpu_compiler
from __future__ import annotations

import re

import pytest

from pax.aot import target as target_lib
from pax.aot.hlo import hlo_parser
from pax.tools import abstract_experiment
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


def test_experts_multiply_the_rows_that_are_routed_to_them():
  options = abstract_experiment.ExperimentOptions(
    exp='tasks.lm.params.huggingface.Qwen3Moe',
    set=(
      *('USE_EXPERT_PARALLEL=True', 'ICI_MESH_SHAPE=[1,1,4,1]'),
      *('BATCH_SIZE=4', 'MAX_SEQ_LEN=1024'),
      *('task.model.lm_tpl.vocab_size=1024',),
      *('task.model.lm_tpl.stacked_transformer_tpl.block.num_experts=16',),
    ),
  )
  step = target_lib.create_target(options, 'v4-8').partitioner.train_step()
  text = step.lower().compile().as_text()
  kernels = re.findall(
    r'tpu_custom_call.*?([\w.]+)/jit\((t?gmm)\)/pallas_call', text
  )
  of_experts = [name for scope, name in kernels if '_expert' in scope]
  # The gradients of three weights; three products forward, two again in the
  # backward pass, and three gradients of the rows.
  assert of_experts.count('tgmm') == 3 and of_experts.count('gmm') == 8
  # Sums: of the rows, and in the gradients of the tokens and the gates.
  assert len(kernels) - len(of_experts) == 3
  # XLA's products have the rows of all experts, in the dimensions of experts.
  assert 'ragged' not in text


def test_rows_go_to_the_devices_of_their_experts():
  stack = 'task.model.lm_tpl.stacked_transformer_tpl.block'
  options = abstract_experiment.ExperimentOptions(
    exp='tasks.lm.params.huggingface.DeepSeekV2',
    set=(
      *('USE_EXPERT_PARALLEL=True', 'ICI_MESH_SHAPE=[1,1,4,1]'),
      *('BATCH_SIZE=4', 'MAX_SEQ_LEN=1024'),
      *('task.model.lm_tpl.vocab_size=1024', f'{stack}.num_experts=16'),
      f'{stack}.moe_layer_tpl.expert_dispatch=all_to_all',
    ),
  )
  step = target_lib.create_target(options, 'v4-8').partitioner.train_step()
  text = step.lower().compile().as_text()
  sent = re.findall(r'= \S+ ragged-all-to-all\(', text)
  # Rows and results forward, again, and their gradients; as often in the
  # branch for experts that are not balanced.
  assert len(sent) == 2 * 3 * 2
  # Latent attention in one layer before the repeated ones and in those, its
  # values with fewer channels than keys.
  assert len(re.findall(r'splash_mha_fwd\w*', text)) > 0
  assert 'ragged-dot' not in text


@pytest.mark.parametrize('axes', [[], ['data']])
def test_decoding_gathers_weights_before_its_loop(axes):
  options = abstract_experiment.ExperimentOptions(
    exp='tasks.lm.params.huggingface.Qwen3',
    set=(
      *('ICI_MESH_SHAPE=[1,4,1]', f'DECODE_GATHERED_AXES={axes}'),
      *('BATCH_SIZE=4', 'MAX_SEQ_LEN=64', 'USE_REPEATED_LAYER=False'),
      *('task.model.lm_tpl.vocab_size=1024',),
      'task.model.lm_tpl.stacked_transformer_tpl.num_layers=2',
    ),
  )
  made = target_lib.create_target(options, 'v4-8').partitioner
  step = made.decode_step_for(made.input_spec)
  module = hlo_parser.parse(step.lower().compile().as_text())
  entry = module.computations[module.entry]
  in_loops = [
    each
    for each in module.executions()
    if each.instruction.opcode.startswith('all-gather')
    and each.computation is not entry
  ]
  # Attention, feed-forward and embedding.
  assert not in_loops if axes else len(in_loops) >= 2 * 7
