# SPDX-License-Identifier: Apache-2.0
"""Models of each family have the outputs of transformers."""

# bazel: size=medium
from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from pax.huggingface import families, model_folder
from pax.tasks.lm import low_rank_tasks
from pax.tasks.lm.params import published_moe_configs
from praxis import py_utils, weight_matrices
from tests.pax.huggingface import loaded_models, reference_models

_NAMES = reference_models.names()
# Each has a cache of another kind; others are decoded by night.
_CACHES = ('deepseek_v3', 'gemma4_e2b', 'gpt_oss', 'qwen3_next', 't5')
_TOLERANCE = 1e-4


@pytest.mark.parametrize('name', _NAMES)
def test_logits_are_those_of_transformers(name, tmp_path):
  path, reference = reference_models.write_reference(tmp_path / 'model', name)
  model = loaded_models.LoadedModel(model_folder.ModelFolder.open(path))
  vocab_size = reference['config']['vocab_size']
  ids = reference_models.input_ids(vocab_size)
  targets = None
  if not model.is_decoder:
    targets = reference_models.decoder_ids(vocab_size)
  logits = np.asarray(model.logits(ids, targets))[:, -1]
  want = np.array(reference['logits'])
  np.testing.assert_allclose(logits, want, rtol=0, atol=_TOLERANCE)
  # A model that ignores its inputs has other logits by far.
  assert np.abs(want[0] - want[1]).max() > 1000 * _TOLERANCE


@pytest.mark.parametrize('name', reference_models.names(by_day=_CACHES))
def test_greedy_tokens_are_those_of_transformers(name, tmp_path):
  path, reference = reference_models.write_reference(tmp_path / 'model', name)
  model = loaded_models.LoadedModel(model_folder.ModelFolder.open(path))
  ids = reference_models.input_ids(reference['config']['vocab_size'])
  np.testing.assert_array_equal(model.greedy(ids), reference['greedy'])


@pytest.mark.parametrize(
  'name', reference_models.names(by_day=reference_models.LAYOUTS)
)
def test_low_rank_matrices_are_laid_out_as_their_weights(name):
  """By the declarations of layers, which know what is an input."""
  config = reference_models.load()[name]['config']
  family = families.read_model(config)
  model_p = family.model().set(name='model')
  low_rank_tasks.LowRankSettings(rank=2, alpha=4.0, targets='all').add_to_model(
    model_p
  )
  declared = dict(
    py_utils.tree_paths(loaded_models.declared_variables(model_p))
  )
  factors = {x for x in declared if x.endswith('lora_a')}
  assert factors
  for layout in family.weights():
    weight = layout.variable
    name_of_a = f'{weight.removesuffix("w")}lora_a'
    if not weight.endswith('/w'):
      name_of_a = f'{weight}_lora_a'
    if name_of_a not in declared:
      continue
    factors.discard(name_of_a)
    hparams = declared[weight]
    inputs, outputs = weight_matrices.matrix_axes(hparams)
    assert layout.has_outputs_first == (min(outputs) < min(inputs)), weight
  assert not factors


def test_names_of_older_files():
  config = reference_models.load()['qwen3_moe']['config']
  published = {**config, 'num_experts': config['num_local_experts']}
  del published['num_local_experts']
  assert families.read_model(published) == families.read_model(config)
  config = reference_models.load()['gemma3']['config']
  ropes = config['rope_parameters']
  published = {
    **config,
    'rope_theta': ropes['full_attention']['rope_theta'],
    'rope_scaling': {'rope_type': 'linear', 'factor': 8.0},
    'rope_local_base_freq': ropes['sliding_attention']['rope_theta'],
    'layer_types': None,
    'sliding_window_pattern': 2,
  }
  del published['rope_parameters']
  found = families.read_model(published)
  assert found.mixers[1].rope['factor'] == 8.0
  assert dataclasses.asdict(found) == dataclasses.asdict(
    families.read_model(config)
  )


def test_published_files_of_olmo_3_and_glm_4():
  config = reference_models.load()['olmo3']['config']
  ropes = config['rope_parameters']
  scaling = dict(ropes['full_attention'])
  published = {
    **config,
    'rope_theta': scaling.pop('rope_theta'),
    'rope_scaling': scaling,
    'layer_types': None,
  }
  del published['rope_parameters']
  assert families.read_model(published) == families.read_model(config)
  config = reference_models.load()['glm4']['config']
  published = {**config, 'rope_theta': 100.0}
  del published['rope_parameters']
  assert families.read_model(published) == families.read_model(config)
  whole = families.read_model({**published, 'partial_rotary_factor': 1.0})
  assert whole.mixers[0].rotary_dims == config['head_dim']


def test_the_published_file_of_glm_4_5():
  config = reference_models.load()['glm4_moe']['config']
  published = {
    **config,
    'rope_scaling': None,
    'rope_theta': 10000.0,
    'partial_rotary_factor': 0.5,
  }
  del published['rope_parameters']
  model = families.read_model(config)
  assert families.read_model(published) == model
  assert model.mixers[0].rotary_dims == config['head_dim'] // 2
  # Absent settings are those of transformers.
  names = ('use_qk_norm', 'attention_bias', 'routed_scaling_factor', 'n_group')
  absent = {k: v for k, v in config.items() if k not in names}
  model = families.read_model(absent)
  assert not model.mixers[0].has_head_norms
  assert not model.mixers[0].has_qkv_bias
  assert model.experts.routing['gate_scale'] == 1.0
  assert model.experts.routing['num_expert_groups'] == 1


def test_the_published_file_of_minimax_m2():
  config = reference_models.load()['minimax_m2']['config']
  rope = config['rope_parameters']
  published = {**config, 'rope_theta': rope['rope_theta'], 'rotary_dim': 8}
  del published['rope_parameters']
  model = families.read_model(published)
  assert model == families.read_model(config)
  assert model.mixers[0].rotary_dims == 8


@pytest.mark.parametrize('pattern', [2, 'LG', 'LGLL'])
def test_the_patterns_of_windows_of_exaone_4(pattern):
  config = reference_models.load()['exaone4']['config']
  window = config['sliding_window']
  published = {**config, 'sliding_window_pattern': pattern}
  del published['layer_types']
  model = families.read_model(published)
  # The last layer has none with all patterns.
  windows = [mixer.window for mixer in model.mixers]
  assert windows == [window, None, window, None]
  rotates = [mixer.rope is not None for mixer in model.mixers]
  assert rotates == [True, False, True, False]


def test_kimi_k2_is_a_deepseek_v3():
  config = reference_models.load()['deepseek_v3']['config']
  kimi = {**config, 'model_type': 'kimi_k2'}
  assert families.read_model(kimi) == families.read_model(config)
  published = families.read_model(published_moe_configs.KIMI_K2)
  shapes = {x.tensor: x.tensor_shape for x in published.weights()}
  # The number of the published files, without the scales of FP8.
  assert sum(map(math.prod, shapes.values())) == 1_026_408_232_448


def test_the_published_files_of_llama_4():
  config = reference_models.load()['llama4']['config']
  lists = {'no_rope_layers': [], 'moe_layers': None, 'layer_types': None}
  published = {
    **config,
    **lists,
    'attn_temperature_tuning': 4,
    'rope_scaling': config['rope_parameters'],
    'rope_theta': config['rope_parameters']['rope_theta'],
  }
  del published['rope_parameters']
  assert families.read_model(published) == families.read_model(config)
  chunk_sizes = [x.chunk_size for x in families.read_model(config).mixers]
  assert chunk_sizes == [4, None]
  # Settings that transformers has, too, are its defaults.
  scout = published_moe_configs.LLAMA4
  names = ('hidden_size', 'intermediate_size', 'num_hidden_layers')
  sizes = {k: scout[k] for k in (*names, 'num_attention_heads', 'vocab_size')}
  rope = {'rope_scaling': scout['rope_scaling']}
  read = families.read_model
  assert read({'model_type': 'llama4_text', **sizes, **rope}) == read(scout)
  # As transformers counts them.
  maverick = {
    **scout,
    'num_local_experts': 128,
    'interleave_moe_layer_step': 2,
    'use_qk_norm': False,
    'rope_scaling': None,
  }
  for sized, want in (
    (scout, 107_769_861_120),
    (maverick, 400_711_848_960),
  ):
    shapes = {x.tensor: x.tensor_shape for x in read(sized).weights()}
    assert sum(map(math.prod, shapes.values())) == want
  dense = {**config, **lists, 'moe_layers': [], 'attention_chunk_size': None}
  assert read(dense).experts is None
  assert [x.chunk_size for x in read(dense).mixers] == [None, None]


@pytest.mark.parametrize(
  'name, settings, message',
  [
    (
      'mixtral',
      {'router_jitter_noise': 0.1},
      'jitter_noise .* must be 0',
    ),
    (
      'minimax_m2',
      {'scoring_func': 'softmax'},
      "must be 'sigmoid', got 'softm",
    ),
    (
      'minimax_m2',
      {'attn_type_list': [1, 0]},
      r'attn_type_list .* must have only 1, .* got \[1, 0\]',
    ),
    (
      'exaone4',
      {'layer_types': None, 'sliding_window_pattern': 'LX'},
      "sliding_window_pattern .* 'LLLG', got 'LX'",
    ),
    ('qwen3_moe', {'num_local_experts': 0}, 'num_local_experts .* at least 1'),
    (
      'phi3',
      {'rope_scaling': {'type': 'longrope'}},
      "rope_type .* must be 'default', got 'longrope'; LongRoPE",
    ),
    # An older name of it.
    ('phi3', {'rope_scaling': {'type': 'yarn'}}, "'yarn'; LongRoPE has no"),
    (
      'phi3',
      {'rope_parameters': {'partial_rotary_factor': 0.4}},
      'partial_rotary_factor .* product with 8, .* got 0.4',
    ),
    ('glm4', {'rope_parameters': {'partial_rotary_factor': 2}}, 'got 2; use'),
    ('olmo2', {'partial_rotary_factor': 0.5}, 'must be 1, got 0.5'),
    ('smollm3', {'no_rope_layers': [1, 0]}, r'of 4 layers .* got \[1, 0\]'),
    (
      'smollm3',
      {'no_rope_layers': None, 'no_rope_layer_interval': 0},
      'no_rope_layer_interval .* at least 1, got 0',
    ),
    ('llama4', {'model_type': 'llama4'}, 'text_config .* of a llama4 .* None'),
    ('llama4', {'attention_chunk_size': None}, 'attention_chunk_size .* None'),
    ('llama4', {'floor_scale': 0}, 'floor_scale .* at least 1, got 0'),
    (
      'llama4',
      {'layer_types': ['sliding_attention'] * 2},
      r"must be of \['chunked_attention', 'full_attention'\], got",
    ),
    (
      'llama4',
      {'layer_types': ['chunked_attention']},
      'layer_types .* each of 2 layers, got 1; use',
    ),
    ('granite', {'logits_scaling': 0}, 'logits_scaling .* positive number'),
    (
      'granite_hybrid',
      {'layer_types': ['mamba', 'attention']},
      r"one of \['mamba', 'attention'\] for each of 4 layers, got",
    ),
    (
      'nemotron_h',
      {'layers_block_type': ['mamba', 'mlp', 'moe']},
      'must follow Mamba or attention, got one at 2 after another; praxis',
    ),
    ('nemotron_h', {'layers_block_type': ['moe']}, 'one at 0 after none'),
    (
      'nemotron_h',
      {'layers_block_type': None, 'hybrid_override_pattern': 'M-X'},
      r"layers_block_type .* got \['linear_attention', 'mlp', 'X'\]; use",
    ),
    (
      'nemotron_h',
      {'moe_latent_size': 8},
      'moe_latent_size .* must be None, got 8; praxis has no layer',
    ),
    (
      'granite_hybrid',
      {'mamba_proj_bias': True},
      r'mamba_proj_bias .* one of \[False\], got True; praxis has no layer',
    ),
    (
      'granite_hybrid',
      {'mamba_d_head': 4},
      r'mamba_d_head .* must be 64 / 8, .* got 4; use',
    ),
    (
      'granite_hybrid',
      {'mamba_n_groups': 3},
      'groups .* must divide its 8 heads, got 3; use',
    ),
    (
      'granite_hybrid',
      {'time_step_limit': [1.0, 0.5]},
      r'must be two numbers, the smaller first, got \[1.0, 0.5\]',
    ),
    ('qwen3_next', {'hidden_act': 'gelu'}, "must be 'silu', got 'gelu'; the"),
    (
      'qwen3_next',
      {'layer_types': ['full_attention']},
      'layer_types .* each of 4 layers, got .*; use',
    ),
    (
      'qwen3_next',
      {'layer_types': ['sliding_attention'] * 4},
      r"one of \['linear_attention', 'full_attention'\]",
    ),
    (
      'qwen3_next',
      {'linear_num_value_heads': 3},
      'must be a multiple of linear_num_key_heads=2, got 3; use',
    ),
    (
      'glm4_moe_lite',
      {'mlp_layer_types': ['sparse', 'dense', 'sparse']},
      "must be 'dense' for the first layers",
    ),
    (
      'qwen3_5',
      {'attn_output_gate': False},
      'attn_output_gate .* must be True, got False',
    ),
    ('olmo3', {'layer_types': ['chunked']}, 'layer_types .* must be'),
    (
      'olmo3',
      {'layer_types': ['full_attention']},
      'layer_types .* each of 4 layers, got 1; use',
    ),
    (
      'gemma3',
      {'layer_types': ['chunked_attention']},
      'layer_types .* must be',
    ),
    (
      'gemma4_e2b',
      {'num_kv_shared_layers': 5},
      r"a layer of each type .* last 5 of 6, got none of \['full_attention'\]",
    ),
    (
      'gemma4_e2b',
      {'vocab_size_per_layer_input': 60},
      'vocab_size_per_layer_input .* vocab_size=61, got 60',
    ),
    (
      'gemma4_moe',
      {'use_double_wide_mlp': True},
      'use_double_wide_mlp .* must be false with enable_moe_block, got true',
    ),
  ],
)
def test_settings_without_a_layer_are_refused(name, settings, message):
  config = {**reference_models.load()[name]['config'], **settings}
  with pytest.raises(ValueError, match=message):
    families.read_model(config)
