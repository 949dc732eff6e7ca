# SPDX-License-Identifier: Apache-2.0
"""Models of transformers: the same logits and tokens, and conversion both ways.

Models are small, their weights random: nothing is fetched.
"""

from __future__ import annotations

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers.integrations import mxfp4

from pax.huggingface import conversion, model_folder, stacked_variables
from tests.compare import huggingface_references as references
from tests.compare import model_settings
from tests.pax.huggingface import loaded_models, reference_models

_TOLERANCE = 1e-4


@pytest.fixture(scope='module', params=model_settings.MODELS)
def saved(request, tmp_path_factory):
  """A model of transformers, and the folder that it is saved to."""
  model = references.make_model(request.param)
  folder = tmp_path_factory.mktemp(request.param) / 'model'
  model.save_pretrained(folder, max_shard_size='60KB')
  return model, folder


def test_logits_and_greedy_tokens_are_the_same(saved):
  model, folder = saved
  opened = model_folder.ModelFolder.open(folder)
  ours = loaded_models.LoadedModel(opened, references.NUM_NEW_TOKENS)
  want = references.outputs(model)
  ids = reference_models.input_ids(model.config.vocab_size)
  targets = None
  if not ours.is_decoder:
    targets = reference_models.decoder_ids(model.config.vocab_size)
  logits = np.asarray(ours.logits(ids, targets))[:, -1]
  np.testing.assert_allclose(logits, want['logits'], rtol=0, atol=_TOLERANCE)
  # A model that ignores its input would pass with too little variance.
  assert np.std(logits) > 100 * _TOLERANCE
  np.testing.assert_array_equal(ours.greedy(ids), want['greedy'])


def test_round_trip_gives_the_same_files_and_model(saved, tmp_path):
  model, folder = saved
  conversion.to_pax(folder, tmp_path / 'job')
  conversion.to_huggingface(tmp_path / 'job', tmp_path / 'output')
  for file in folder.iterdir():
    assert (tmp_path / 'output' / file.name).read_bytes() == file.read_bytes()
  loaded = references.load_model(tmp_path / 'output')
  for name, value in model.state_dict().items():
    assert torch.equal(value, loaded.state_dict()[name]), name


def test_mxfp4_has_the_values_of_transformers(tmp_path):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  arrays = reference_models.write_mxfp4(source)
  conversion.to_pax(source, job)
  conversion.to_huggingface(job, output)
  exported = references.load_model(output).state_dict()
  for name, blocks in arrays.items():
    tensor = name.removesuffix('_blocks')
    if name.endswith('_blocks'):
      scales = torch.tensor(arrays[f'{tensor}_scales'])
      want = mxfp4.convert_moe_packed_tensors(torch.tensor(blocks), scales)
      assert torch.equal(exported[tensor], want.to(torch.float32)), tensor


# Names of the projections of an expert in files.
_QWEN_EXPERTS = ('gate_proj', 'up_proj', 'down_proj')
_MIXTRAL_EXPERTS = ('w1', 'w3', 'w2')
# Names in files by those of parameters.
_GRANITE_EXPERTS = {
  '.router.weight': '.router.layer.weight',
  '.experts.gate_up_proj': '.input_linear.weight',
  '.experts.down_proj': '.output_linear.weight',
}


def _gradients(model, tensors):
  """Returns the gradients of a model, of experts by the names in its file."""
  gradients = {}
  is_mixtral = any(tensor.endswith('.w1.weight') for tensor in tensors)
  gate_name, up_name, down_name = (
    _MIXTRAL_EXPERTS if is_mixtral else _QWEN_EXPERTS
  )
  for name, parameter in model.named_parameters():
    gradient = parameter.grad.numpy()
    if is_mixtral:
      name = name.replace('.mlp.', '.block_sparse_moe.')
    for of_model, in_file in _GRANITE_EXPERTS.items():
      if (renamed := name.replace(of_model, in_file)) in tensors:
        name = renamed
    if 'backbone.embeddings.weight' in tensors:
      name = name.replace('model.', 'backbone.')
    if name in tensors:
      gradients[name] = gradient
      continue
    prefix, _, projection = name.rpartition('.')
    for i, expert in enumerate(gradient):
      if projection == 'gate_up_proj':
        gate, up = np.split(expert, 2)
        gradients[f'{prefix}.{i}.{gate_name}.weight'] = gate
        gradients[f'{prefix}.{i}.{up_name}.weight'] = up
      else:
        in_file = down_name if projection == 'down_proj' else projection
        gradients[f'{prefix}.{i}.{in_file}.weight'] = expert
  return gradients


@pytest.mark.parametrize(
  # gpt-oss has sinks, biases of experts, and tensors of two variables; GLM-4.5
  # the routing of DeepSeek-V3; Llama 4 gates of inputs.
  'name',
  [
    *('llama4', 'gpt_oss', 'olmo2', 'olmo3', 'phi3'),
    *(
      'qwen3_next',
      'qwen3_5',
      'qwen3_5_moe',
      'smollm3',
      'glm4',
      'glm4_moe',
      'glm4_moe_air',
      'granite',
      'granite_hybrid',
      'granite_hybrid_moe',
      'minimax_m2',
      'nemotron_h',
      'exaone4',
      'gemma4',
      'gemma4_e2b',
      'gemma4_e4b',
      'gemma4_moe',
    ),
  ],
)
def test_losses_and_gradients_are_the_same(name, tmp_path):
  model = references.make_model(name)
  model.save_pretrained(tmp_path)
  folder = model_folder.ModelFolder.open(tmp_path)
  ours = loaded_models.LoadedModel(folder)
  ids = reference_models.input_ids(model.config.vocab_size)
  targets = torch.tensor(ids).long()
  want_loss = model(targets, labels=targets).loss
  want_loss.backward()

  def loss(variables):
    log_probs = jax.nn.log_softmax(ours.logits_of(variables, ids)[:, :-1])
    chosen = jnp.take_along_axis(log_probs, ids[:, 1:, None], axis=-1)
    return -jnp.mean(chosen)

  got_loss, got = jax.value_and_grad(loss)(ours.variables)
  np.testing.assert_allclose(got_loss, want_loss.item(), rtol=1e-5)
  gradients = _gradients(model, folder.layouts)
  for variable in stacked_variables.of_layouts(folder.layouts, None):
    # The bias of the choice of experts has no gradient.
    if variable.path.startswith('non_trainable/'):
      continue
    found = functools.reduce(operator.getitem, variable.path.split('/'), got)
    want = variable.from_tensors(gradients.__getitem__)
    tolerance = _TOLERANCE * np.abs(want).max()
    np.testing.assert_allclose(
      found, want, rtol=0, atol=tolerance, err_msg=variable.path
    )


@pytest.mark.parametrize(
  'name', ['mixtral', 'qwen3_moe', 'qwen3_next', 'gpt_oss']
)
def test_load_balance_losses_are_the_same(name, tmp_path):
  # That of transformers has means over layers before it multiplies them.
  settings = {
    'qwen3_moe': {'mlp_only_layers': []},
    'qwen3_next': {'layer_types': ['full_attention']},
  }
  model = references.make_model(
    name,
    num_hidden_layers=1,
    router_aux_loss_coef=0.25,
    output_router_logits=True,
    **settings.get(name, {}),
  )
  model.save_pretrained(tmp_path)
  ours = loaded_models.LoadedModel(model_folder.ModelFolder.open(tmp_path))
  ids = reference_models.input_ids(model.config.vocab_size)
  with torch.no_grad():
    want = 0.25 * model(torch.tensor(ids).long()).aux_loss.item()
  np.testing.assert_allclose(ours.aux_loss(ids), want, rtol=1e-5)
  assert want > 0.25


def test_each_reference_is_recorded():
  assert tuple(reference_models.load()) == references.NAMES


@pytest.mark.parametrize('name', reference_models.load())
def test_references_are_those_of_transformers(name):
  want = references.reference(name)
  found = reference_models.load()[name]
  for part in ('logits', 'greedy'):
    np.testing.assert_allclose(found[part], want.pop(part), atol=1e-5)
  assert found['tensors'] == want['tensors']


@pytest.mark.parametrize(
  'name',
  ['llama4', 'gpt2', 'qwen3_next', 'qwen3_next_biases', 'qwen3_5', 'exaone4'],
)
def test_texts_are_scored_alike_in_a_packed_row(name, tmp_path):
  model = references.make_model(name)
  model.save_pretrained(tmp_path)
  opened = model_folder.ModelFolder.open(tmp_path)
  ours = loaded_models.LoadedModel(opened, packed_input=True)
  ids = reference_models.input_ids(model.config.vocab_size)[:1]
  first = ids.shape[1] // 3
  positions = np.arange(ids.shape[1])
  segment_ids = jnp.where(positions < first, 1, 2)[None]
  segment_pos = jnp.where(positions < first, positions, positions - first)[None]
  logits = ours.logits(ids, segment_ids=segment_ids, segment_pos=segment_pos)
  with torch.no_grad():
    alone = [
      model(torch.tensor(part).long()).logits.numpy()
      for part in (ids[:, :first], ids[:, first:])
    ]
  np.testing.assert_allclose(
    logits, np.concatenate(alone, 1), rtol=0, atol=_TOLERANCE
  )
