# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Language models that are parts of models of images and texts."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from pax.huggingface import (
  conversion,
  families,
  model_folder,
  multimodal,
  peft_adapters,
  safetensors,
)
from tests.pax.huggingface import loaded_models, reference_models

_IMAGES = {
  'vision_tower.encoder.layers.0.self_attn.q_proj.weight': (4, 4),
  'multi_modal_projector.mm_input_projection_weight': (4, 8),
}


def _write(folder, prefixes, **options):
  """Writes a gemma3 whose language model is the reference."""
  reference = reference_models.load()['gemma3']
  config = reference['config']
  text_config = {
    key: value
    for key, value in config.items()
    if key not in ('eos_token_id', 'tie_word_embeddings')
  }
  whole = {
    'model_type': 'gemma3',
    'eos_token_id': [1, 106],
    'text_config': text_config,
    'vision_config': {'hidden_size': 4},
  }
  stack, others = prefixes
  tensors = {
    stack + name.removeprefix('model.')
    if name.startswith('model.')
    else others + name: shape
    for name, shape in reference['tensors'].items()
  }
  return reference_models.write(folder, whole, tensors | _IMAGES, **options)


_PREFIXES = pytest.mark.parametrize(
  'prefixes',
  [
    ('language_model.model.', 'language_model.'),
    ('model.language_model.', ''),
  ],
)


@_PREFIXES
def test_the_variables_are_those_of_the_language_model(prefixes, tmp_path):
  source = _write(tmp_path / 'whole', prefixes)
  whole = model_folder.ModelFolder.open(source)
  variables = loaded_models.read_variables(whole)
  # The same tensors, with the names of a model without images.
  stack, _ = prefixes
  tensors = {
    name.replace(stack, 'model.'): entry.read()
    for name, entry in safetensors.read_folder(source).items()
    if name not in _IMAGES
  }
  alone = tmp_path / 'alone'
  alone.mkdir()
  config = reference_models.load()['gemma3']['config']
  (alone / 'config.json').write_text(json.dumps(config))
  reference_models.write_safetensors(
    alone / 'model.safetensors', tensors, 'F32'
  )
  want = loaded_models.read_variables(model_folder.ModelFolder.open(alone))
  jax.tree.map(np.testing.assert_array_equal, variables, want)


@_PREFIXES
def test_round_trip_keeps_what_belongs_to_images(prefixes, tmp_path):
  source = _write(tmp_path / 'source', prefixes, dtype='BF16')
  conversion.to_pax(source, tmp_path / 'job')
  conversion.to_huggingface(tmp_path / 'job', tmp_path / 'output')
  for file in ('config.json', 'model.safetensors'):
    written = (tmp_path / 'output' / file).read_bytes()
    assert written == (source / file).read_bytes(), file


def test_settings_that_files_leave_out():
  whole = {
    'model_type': 'gemma3',
    'eos_token_id': [1, 106],
    'text_config': {
      'model_type': 'gemma3_text',
      'hidden_size': 2560,
      'intermediate_size': 10240,
      'num_hidden_layers': 34,
      'rope_scaling': {'factor': 8.0, 'rope_type': 'linear'},
      'sliding_window': 1024,
    },
  }
  # Gemma 3 4B, without its encoder of images and the projection.
  weights = list(families.read_model(whole).weights())
  assert sum(np.prod(x.tensor_shape) for x in weights) == 3_880_263_168
  config = multimodal.language_config(whole)
  assert config['eos_token_id'] == [1, 106]
  assert multimodal.language_config(config) is config
  with pytest.raises(ValueError, match='text_config .* of a gemma3 .* None'):
    families.read_model({'model_type': 'gemma3'})


# Of Mistral Small 3.1 24B.
_MISTRAL_SMALL = {
  'model_type': 'mistral3',
  'text_config': {
    'model_type': 'mistral',
    'head_dim': 128,
    'hidden_size': 5120,
    'intermediate_size': 32768,
    'max_position_embeddings': 131_072,
    'num_attention_heads': 32,
    'num_hidden_layers': 40,
    'num_key_value_heads': 8,
    'rms_norm_eps': 1e-5,
    'rope_theta': 1e9,
    'sliding_window': None,
    'vocab_size': 131_072,
  },
}


def test_mistral_small_has_its_published_size():
  weights = list(families.read_model(_MISTRAL_SMALL).weights())
  assert sum(np.prod(x.tensor_shape) for x in weights) == 23_572_403_200


@pytest.mark.parametrize('declared', [None, True, False])
@pytest.mark.parametrize('is_tied', [True, False])
def test_files_decide_whether_mistral_3_has_a_head(declared, is_tied, tmp_path):
  text_config = _MISTRAL_SMALL['text_config'] | {
    'head_dim': 4,
    'hidden_size': 8,
    'intermediate_size': 12,
    'num_attention_heads': 2,
    'num_hidden_layers': 1,
    'num_key_value_heads': 1,
    'vocab_size': 16,
  }
  config = _MISTRAL_SMALL | {'text_config': text_config}
  if declared is not None:
    config['tie_word_embeddings'] = declared
  text_config = text_config | {'tie_word_embeddings': is_tied}
  model = families.read_model(config | {'text_config': text_config})
  shapes = {
    multimodal.tensor_names(x.tensor)[-1]: x.tensor_shape
    for x in model.weights()
  }
  assert ('language_model.lm_head.weight' in shapes) != is_tied
  source = reference_models.write(tmp_path / 'source', config, shapes | _IMAGES)
  conversion.to_pax(source, tmp_path / 'job')
  conversion.to_huggingface(tmp_path / 'job', tmp_path / 'output')
  for file in ('config.json', 'model.safetensors'):
    written = (tmp_path / 'output' / file).read_bytes()
    assert written == (source / file).read_bytes(), file


def test_modules_of_adapters_have_the_names_of_the_whole(tmp_path):
  source = _write(tmp_path / 'model', ('language_model.model.', ''))
  config = model_folder.read_config(source)
  family = families.find_family(config)
  layout = next(
    x
    for x in families.read_model(config).weights()
    if x.tensor.endswith('layers.0.mlp.up_proj.weight')
  )
  outputs, inputs = layout.tensor_shape
  a, b = np.ones((inputs, 2), np.float32), np.ones((outputs, 2), np.float32)
  factors = peft_adapters.LowRankFactors(a, b, 1.5)
  modules = peft_adapters.of_modules([(layout.tensor, layout, factors)], family)
  name = 'model.language_model.layers.0.mlp.up_proj'
  assert list(modules) == [name]
  contents = peft_adapters.make_config(
    modules, {layout.tensor: [layout]}, family, config
  )
  # Modules of images have the same last names.
  assert contents['target_modules'] == [name]
  folder = tmp_path / 'adapter'
  folder.mkdir()
  peft_adapters.write(folder, modules, contents)
  tensors = safetensors.read_entries(folder / 'adapter_model.safetensors')
  assert f'base_model.model.{name}.lora_A.weight' in tensors
  [read] = peft_adapters.read(folder)
  assert read == layout.tensor.removesuffix('.weight')


def test_all_experts_of_qwen3_5_may_be_one_tensor(tmp_path):
  reference = reference_models.load()['qwen3_5_moe']
  config = {'model_type': 'qwen3_5_moe', 'text_config': reference['config']}
  part = 'model.language_model.'
  tensors = {
    name.replace('model.', part, 1): shape
    for name, shape in reference['tensors'].items()
  }
  alone = reference_models.write(tmp_path / 'alone', config, tensors)
  arrays = {
    name: entry.read() for name, entry in safetensors.read_folder(alone).items()
  }
  fused = {'model.visual.patch_embed.weight': np.ones((2, 3), np.float32)}
  for name, array in arrays.items():
    if '.mlp.experts.' not in name:
      fused[name] = array
  for layer in range(4):
    experts = f'{part}layers.{layer}.mlp.experts'
    gate_up, down = [], []
    for i in range(reference['config']['num_experts']):
      gate, up, of_output = (
        arrays[f'{experts}.{i}.{x}_proj.weight'] for x in ('gate', 'up', 'down')
      )
      gate_up.append(np.concatenate([gate, up]))
      down.append(of_output)
    fused[f'{experts}.gate_up_proj'] = np.stack(gate_up)
    fused[f'{experts}.down_proj'] = np.stack(down)
  # As in published folders.
  fused['mtp.layers.0.mlp.experts.gate_up_proj'] = np.ones((6, 4), np.float32)
  together = tmp_path / 'together'
  together.mkdir()
  (together / 'config.json').write_text((alone / 'config.json').read_text())
  header = safetensors.make_header(
    {name: (x.shape, x.dtype) for name, x in fused.items()}, {'format': 'pt'}
  )
  safetensors.write(together / 'model.safetensors', header, fused.values())
  want, found = (
    loaded_models.read_variables(model_folder.ModelFolder.open(folder))
    for folder in (alone, together)
  )
  jax.tree.map(np.testing.assert_array_equal, found, want)
  conversion.to_pax(together, tmp_path / 'job')
  conversion.to_huggingface(tmp_path / 'job', tmp_path / 'output')
  written, source = (
    (tmp_path / folder / 'model.safetensors').read_bytes()
    for folder in ('output', 'together')
  )
  assert written == source
