# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Layers of models of Hugging Face as a scan over stacked weights."""

from __future__ import annotations

import re

import pytest

from pax.checkpoints import reading
from pax.checkpoints.checkpoint_reader import CheckpointReader
from pax.huggingface import families, stacked_variables
from tests.pax.huggingface import convert_command, reference_models
from tests.testing import nightly


@pytest.mark.parametrize(
  'name, prefix, size, experts',
  [
    ('gemma2', 0, 2, []),
    ('llama3', 0, 1, []),
    ('llama4', 0, 2, [4]),
    ('mixtral', 0, 1, [4]),
    ('deepseek_v3', 1, 1, [8]),
    ('qwen3_next', 0, 2, [6, 6]),
    *nightly.cases(('qwen3_5', 0, 2, []), ('qwen3_5_moe', 0, 2, [6, 6])),
    ('gpt_oss', 0, 2, [6, 6]),
    *nightly.cases(('olmo2', 0, 1, [])),
    ('phi3', 0, 1, []),
    ('smollm3', 0, 2, []),
    *nightly.cases(('glm4', 0, 1, [])),
    ('glm4_moe', 1, 1, [8]),
    *nightly.cases(
      ('granite', 0, 1, []),
      ('granite_hybrid', 0, 2, []),
      ('granite_hybrid_moe', 0, 2, [4, 4]),
    ),
  ],
)
def test_repeated_layers_are_stacked(
  name, prefix, size, experts, tmp_path, capsys
):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  reference_models.write_byte_model(source, name, num_layers=4)
  convert_command.run(capsys, 'hf-to-pax', source, job, '--repeated_layers')
  path = reading.find_checkpoint(job)[1]
  stack = 'mdl_vars.params.lm.transformer'
  shapes = {
    leaf.removeprefix(f'{stack}.'): shape
    for leaf, (shape, _) in CheckpointReader(path).shapes.items()
    if leaf.startswith(stack)
  }
  names = {'.'.join(re.split(r'\.x_layers_(\d+)\.', x)[:2]) for x in shapes}
  assert names == {
    *(f'prefix_layers.{i}' for i in range(prefix)),
    *(f'repeat.sub.{i}' for i in range(size)),
  }
  shapes = {k: v for k, v in shapes.items() if k.startswith('repeat')}
  assert {shape[0] for shape in shapes.values()} == {(4 - prefix) // size}
  stacks = [shape for leaf, shape in shapes.items() if leaf.endswith('.wo_0')]
  assert [shape[1] for shape in stacks] == experts
  convert_command.run(capsys, 'pax-to-hf', job, output)
  assert convert_command.contents(output) == convert_command.contents(source)


def _block_of_repeated_layers(name, **settings):
  config = {**reference_models.load()[name]['config'], **settings}
  model_p = families.read_model(config).model()
  stacked_variables.repeat_layers(model_p)
  repeated_p = model_p.lm_tpl.stacked_transformer_tpl
  block_p = repeated_p.block
  num_prefix_layers = repeated_p.prefix.num_layers if repeated_p.prefix else 0
  num_repeated = repeated_p.x_times * block_p.num_layers
  assert num_prefix_layers + num_repeated == config['num_hidden_layers']
  return block_p


def test_blocks_have_the_period_of_layers():
  block_p = _block_of_repeated_layers(
    'gemma3', num_hidden_layers=12, layer_types=None
  )
  assert block_p.local_window_size == [(3, 0)] * 5 + [None]
  timescales = [
    layer_p.tr_atten_tpl.rotary_position_emb_tpl.max_timescale
    for layer_p in block_p.transformer_layer_params_tpl
  ]
  assert timescales == [100.0] * 5 + [1000.0]
  block_p = _block_of_repeated_layers(
    'olmo3', num_hidden_layers=12, layer_types=None
  )
  assert block_p.local_window_size == [(3, 0)] * 3 + [None]
  qwen = {'num_hidden_layers': 4, 'mlp_only_layers': []}
  block_p = _block_of_repeated_layers('qwen3_moe', **qwen)
  assert block_p.moe_layers == [0]
  block_p = _block_of_repeated_layers(
    'qwen3_moe', **qwen, decoder_sparse_step=2
  )
  assert block_p.num_layers == 2 and block_p.moe_layers == [1]
  # A prefix takes what does not fit the period.
  block_p = _block_of_repeated_layers(
    'gemma3', num_hidden_layers=26, layer_types=None
  )
  assert block_p.local_window_size == [(3, 0)] * 3 + [None] + [(3, 0)] * 2
  block_p = _block_of_repeated_layers(
    'qwen3_moe', num_hidden_layers=4, mlp_only_layers=[0]
  )
  assert block_p.moe_layers == [0] and block_p.num_layers == 1
  with pytest.raises(ValueError, match=r'experts in the layers \[0, 1\] of 3'):
    _block_of_repeated_layers(
      'qwen3_moe', num_hidden_layers=3, mlp_only_layers=[2]
    )


def test_blocks_have_the_mixers_of_layers():
  block_p = _block_of_repeated_layers(
    'smollm3',
    num_hidden_layers=12,
    layer_types=None,
    no_rope_layers=[1, 1, 1, 0] * 3,
  )
  assert [
    layer_p.tr_atten_tpl.use_rotary_position_emb
    for layer_p in block_p.transformer_layer_params_tpl
  ] == [True, True, True, False]
  block_p = _block_of_repeated_layers(
    'llama4',
    num_hidden_layers=12,
    **dict.fromkeys(('layer_types', 'no_rope_layers', 'moe_layers')),
  )
  assert [
    layer_p.tr_atten_tpl.attention_chunk_size
    for layer_p in block_p.transformer_layer_params_tpl
  ] == [4, None]
  assert block_p.moe_layers == [1]
  block_p = _block_of_repeated_layers(
    'qwen3_next', num_hidden_layers=12, layer_types=None
  )
  assert [
    layer_p.tr_atten_tpl.cls.__name__
    for layer_p in block_p.transformer_layer_params_tpl
  ] == ['GatedDeltaNet'] * 3 + ['MultiQueryDotProductAttention']
  assert block_p.moe_layers == [0, 1, 2, 3]


@pytest.mark.parametrize(
  'settings, message',
  [
    ({}, 'must not have inputs of their own, .* USE_REPEATED_LAYER=False'),
    (
      {'hidden_size_per_layer_input': 0},
      'must not have the keys of other layers, .* USE_REPEATED_LAYER=False',
    ),
  ],
)
def test_layers_that_depend_on_their_place_are_not_repeated(settings, message):
  with pytest.raises(ValueError, match=message):
    _block_of_repeated_layers('gemma4_e2b', **settings)


def test_layers_without_a_period_are_not_repeated(tmp_path, capsys):
  source, _ = reference_models.write_reference(tmp_path / 't5', 't5')
  error = convert_command.fail(
    capsys, 'hf-to-pax', source, tmp_path, '--repeated_layers'
  )
  assert 'only the layers of decoders' in error
  config = {
    **reference_models.load()['qwen2']['config'],
    'use_sliding_window': True,
    'max_window_layers': 1,
    'sliding_window': 3,
  }
  config.pop('layer_types', None)
  with pytest.raises(ValueError, match='a period of them'):
    stacked_variables.repetition_of(families.read_model(config).model())
