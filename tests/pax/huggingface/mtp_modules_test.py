# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Modules of multi-token prediction, from files to variables and back."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest

from pax.huggingface import families, model_folder, safetensors
from pax.tasks.lm.params import huggingface
from tests.pax.huggingface import (
  convert_command,
  loaded_models,
  reference_models,
)
from tests.testing import nightly

_FILE = 'model.safetensors'
# Of DeepSeek-V3's README_WEIGHTS.md, but its transformer layer.
_OF_MODULES = (
  'embed_tokens',
  'enorm',
  'hnorm',
  'eh_proj',
  'shared_head.norm',
  'shared_head.head',
)


@pytest.fixture
def source(tmp_path):
  return reference_models.write_mtp_model(tmp_path / 'source')


def test_variables_have_the_values_of_the_tensors(source):
  folder = model_folder.ModelFolder.open(source, has_mtp=True)
  entries = safetensors.read_folder(source)
  tensor = lambda name: entries[f'model.layers.4.{name}.weight'].read()
  assert all(f'model.layers.4.{x}.weight' in entries for x in _OF_MODULES)
  module = loaded_models.read_variables(folder)['params']['lm']['mtp'][
    'modules_0'
  ]
  for name, want in (('enorm', 'embedding_ln'), ('hnorm', 'hidden_ln')):
    np.testing.assert_array_equal(module[want]['scale'], tensor(name))
  np.testing.assert_array_equal(
    module['final_ln']['scale'], tensor('shared_head.norm')
  )
  np.testing.assert_array_equal(module['proj']['w'], tensor('eh_proj').T)
  layer = module['transformer']['x_layers_0']
  np.testing.assert_array_equal(
    layer['self_attention']['query_down']['w'], tensor('self_attn.q_a_proj').T
  )
  # The mixture of experts of the last layer, not the first one's dense layer.
  np.testing.assert_array_equal(
    layer['ff_layer']['wo_0'][3], tensor('mlp.experts.3.down_proj').T
  )
  assert (
    'x_layers_4'
    not in loaded_models.read_variables(folder)['params']['lm']['transformer']
  )


def _published_sizes(config):
  """Returns the number of all weights of a file, and of those in float32."""
  shapes, biases = {}, 0
  for weight in families.read_model(config, has_mtp=True).weights():
    shapes[weight.tensor] = weight.tensor_shape
    if 'e_score_correction_bias' in weight.tensor:
      biases += math.prod(weight.tensor_shape)
  copies = families.find_family(config, has_mtp=True).copies
  shapes |= {
    name: shapes[source] for name, source in copies.items() if 'layers' in name
  }
  return sum(map(math.prod, shapes.values())), biases


def test_models_have_their_published_sizes():
  # The numbers in FP8 and BF16 of the repository; these biases are in F32.
  published = 680_571_043_840 + 3_918_786_560
  total, biases = _published_sizes(huggingface.DeepSeekV3.CONFIG)
  assert total - biases == published
  # Those of all tensors of GLM-4.5-Air and GLM-4.5.
  air = huggingface.Glm4Moe.CONFIG
  assert _published_sizes(air)[0] == 110_468_824_832
  large = {
    **air,
    'hidden_size': 5120,
    'intermediate_size': 12288,
    'moe_intermediate_size': 1536,
    'num_hidden_layers': 92,
    'first_k_dense_replace': 3,
    'n_routed_experts': 160,
    'routed_scaling_factor': 2.5,
    'use_qk_norm': True,
  }
  assert _published_sizes(large)[0] == 358_337_791_296


_REPEATED, _MTP = ('--repeated_layers',), ('--mtp',)


@pytest.mark.parametrize(
  ('name', 'mtp', 'words'),
  [
    ('deepseek_v3', (), _REPEATED),
    ('deepseek_v3', _MTP, ()),
    ('glm4_moe', (), ()),
    ('glm4_moe', _MTP, _REPEATED),
    *nightly.cases(
      ('deepseek_v3', (), ()),
      ('deepseek_v3', _MTP, _REPEATED),
      ('glm4_moe', (), _REPEATED),
      ('glm4_moe', _MTP, ()),
    ),
  ],
)
def test_an_export_has_the_bytes_of_the_source(
  name, words, mtp, tmp_path, capsys
):
  source = reference_models.write_mtp_model(tmp_path / 'source', name)
  job, output = tmp_path / 'job', tmp_path / 'output'
  convert_command.run(capsys, 'hf-to-pax', source, job, *words, *mtp)
  # Modules that are not read are taken along as they are.
  assert (job / 'huggingface/extra.safetensors').exists() == (not mtp)
  convert_command.run(capsys, 'pax-to-hf', job, output)
  assert (output / _FILE).read_bytes() == (source / _FILE).read_bytes()


def test_new_files_have_the_copies_too(source, tmp_path, capsys):
  job, output = tmp_path / 'job', tmp_path / 'output'
  convert_command.run(capsys, 'hf-to-pax', source, job, '--mtp')
  # As for a folder in FP8, whose files are not written again.
  (job / 'huggingface/safetensors_headers.json').unlink()
  convert_command.run(capsys, 'pax-to-hf', job, output)
  want, got = (safetensors.read_folder(x) for x in (source, output))
  assert set(got) == set(want)
  for name, entry in got.items():
    np.testing.assert_array_equal(entry.read(), want[name].read())


def test_the_layers_of_a_model_have_no_modules_without_a_request(source):
  folder = model_folder.ModelFolder.open(source)
  assert not any('layers.4' in name for name in folder.layouts)
  assert folder.model.model().lm_tpl.mtp_tpl is None
  config = {**folder.config, 'num_nextn_predict_layers': 0}
  (source / 'config.json').write_text(json.dumps(config))
  with pytest.raises(ValueError, match='do not belong to a deepseek_v3'):
    model_folder.ModelFolder.open(source)


def test_errors(source, tmp_path):
  open_it = lambda: model_folder.ModelFolder.open(source, has_mtp=True)
  original = tmp_path / 'original'
  shutil.copytree(source, original)

  def write(change):
    arrays = {
      name: entry.read()
      for name, entry in safetensors.read_folder(original).items()
    }
    change(arrays)
    reference_models.write_safetensors(source / _FILE, arrays, 'F32')

  write(lambda x: x.pop('model.layers.4.eh_proj.weight'))
  with pytest.raises(ValueError, match='must have model.layers.4.eh_proj'):
    open_it()
  copies = [
    f'model.layers.4.{x}.weight' for x in ('embed_tokens', 'shared_head.head')
  ]
  write(lambda x: [x.pop(name) for name in copies])
  open_it()
  for name in copies:
    write(lambda x: x.update({name: x[name] + 1}))  # noqa: B023
    with pytest.raises(ValueError, match=f'{name} in .* must be equal to'):
      open_it()
  config = {'model_type': 'deepseek_v3', 'num_hidden_layers': 2}
  with pytest.raises(ValueError, match='num_nextn_predict_layers .* at least'):
    families.read_model(config, has_mtp=True)
  for count in (-1, '1', 1.0):
    config['num_nextn_predict_layers'] = count
    with pytest.raises(ValueError, match='must be a number of layers, got'):
      families.read_model(config)
