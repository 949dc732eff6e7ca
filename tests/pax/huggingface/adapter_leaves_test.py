# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Low-rank updates of models are read from adapters as they were written."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest

from pax.huggingface import (
  adapter_leaves,
  families,
  low_rank_leaves,
  peft_adapters,
  safetensors,
  stacked_variables,
  weight_layouts,
)
from pax.tasks.lm import low_rank_tasks
from praxis import py_utils
from tests.pax.huggingface import loaded_models, reference_models
from tests.testing import nightly

_RANK, _ALPHA = 2, 5.0
_EXPERTS = {
  name
  for name, reference in reference_models.load().items()
  if any('expert' in key for key in reference['config'])
}


class _Adapted:
  """A model with random updates, and its folder."""

  def __init__(
    self, name, tmp_path, *, repeats_layers=False, rank=_RANK, use_dora=False
  ):
    self.config = reference_models.load()[name]['config']
    self.path = tmp_path / 'model'
    self.path.mkdir(exist_ok=True)
    (self.path / 'config.json').write_text(json.dumps(self.config))
    self.family = families.find_family(self.config)
    model = families.read_model(self.config)
    model_p = model.model().set(name='model')
    if repeats_layers:
      stacked_variables.repeat_layers(model_p)
    targets = 'attention' if name in _EXPERTS else 'all'
    low_rank_tasks.LowRankSettings(
      rank=rank, alpha=_ALPHA, targets=targets, use_dora=use_dora
    ).add_to_model(model_p)
    declared = dict(
      py_utils.tree_paths(loaded_models.declared_variables(model_p))
    )
    random = np.random.default_rng(len(name))
    self.state = {}
    for path, hparams in declared.items():
      shape = (*(hparams.repeat_prefix or ()), *hparams.shape)
      value = random.normal(size=shape)
      if path.endswith('lora_scale'):
        value = np.full(shape, _ALPHA / rank)
      leaf = f'mdl_vars.{path.replace("/", ".")}'
      self.state[leaf] = jnp.asarray(value, jnp.float32)
    self.layouts = weight_layouts.by_tensor(model.weights())
    self._variables = stacked_variables.of_layouts(
      self.layouts, stacked_variables.find_repetition(list(self.state))
    )

  def factors(self):
    """Returns the leaves of updates."""
    return {x: v for x, v in self.state.items() if 'lora_' in x}

  def modules(self):
    """Returns the updates by the names of modules."""
    updates = low_rank_leaves.find(self.state)
    parts = []
    for variable in self._variables:
      leaf = f'mdl_vars.{variable.path.replace("/", ".")}'
      if leaf in updates:
        factors = updates[leaf].factors(variable, self.state)
        parts += zip(variable.tensors, variable.layouts, factors, strict=True)
    return peft_adapters.of_modules(parts, self.family)

  def write_weights(self, prefix='model.'):
    """Writes the weights into the folder of the model.

    Args:
      prefix: Of the names of layers, that of a part in a model with images.
    """
    partial = weight_layouts.PartialTensors(self.layouts)
    tensors = {}
    for variable in self._variables:
      leaf = f'mdl_vars.{variable.path.replace("/", ".")}'
      for name, layout, part in variable.unstack(np.asarray(self.state[leaf])):
        tensor = partial.add(name, layout, part)
        if tensor is not None:
          tensors[name.replace('model.', prefix, 1)] = np.ascontiguousarray(
            tensor.reshape(layout.tensor_shape)
          )
    header = safetensors.make_header(
      {name: (x.shape, x.dtype) for name, x in tensors.items()},
      {'format': 'pt'},
    )
    safetensors.write(self.path / 'model.safetensors', header, tensors.values())

  def merged(self, leaves=None):
    """Returns the updated weights with their layouts."""
    state = {**self.state, **(leaves or {})}
    updates = low_rank_leaves.find(state)
    weights = []
    for variable in self._variables:
      leaf = f'mdl_vars.{variable.path.replace("/", ".")}'
      if leaf not in updates:
        continue
      parts = variable.unstack(np.asarray(state[leaf]))
      factors = updates[leaf].factors(variable, state)
      for (_, layout, part), x in zip(parts, factors, strict=True):
        weights.append((layout, x.add_to(part, layout)))
    return weights

  def write(self, folder):
    """Writes the updates as PEFT does."""
    modules = self.modules()
    config = peft_adapters.make_config(
      modules, self.layouts, self.family, self.config
    )
    folder.mkdir()
    peft_adapters.write(folder, modules, config)

  def read(self, folder):
    """Returns the leaves of an adapter."""
    return adapter_leaves.AdapterLeaves.open(
      folder, self.path, self.state, self.state.__getitem__
    ).arrays


@pytest.mark.parametrize(
  'name', reference_models.names(by_day=reference_models.LAYOUTS)
)
def test_updates_are_read_as_written(name, tmp_path):
  _check_read_as_written(name, tmp_path)


@pytest.mark.parametrize('name', ['phi3', *nightly.cases('qwen3')])
def test_updates_of_repeated_layers_are_read_as_written(name, tmp_path):
  _check_read_as_written(name, tmp_path, repeats_layers=True)


def _check_read_as_written(name, tmp_path, *, repeats_layers=False):
  adapted = _Adapted(name, tmp_path, repeats_layers=repeats_layers)
  adapted.write(tmp_path / 'adapter')
  leaves = adapted.read(tmp_path / 'adapter')
  want = adapted.factors()
  assert leaves.keys() == want.keys()
  for leaf, value in want.items():
    np.testing.assert_array_equal(leaves[leaf], value, err_msg=leaf)


@pytest.mark.parametrize(
  'name, repeats_layers',
  [
    ('gpt2', False),
    *nightly.cases(('llama3', False)),
    ('phi3', True),
    ('t5', False),
  ],
)
def test_magnitudes_are_read_as_written(name, repeats_layers, tmp_path):
  adapted = _Adapted(
    name, tmp_path, repeats_layers=repeats_layers, use_dora=True
  )
  adapted.write_weights()
  folder = tmp_path / 'adapter'
  adapted.write(folder)
  assert peft_adapters.read_config(folder)['use_dora']
  leaves = adapted.read(folder)
  want = adapted.factors()
  assert leaves.keys() == want.keys()
  assert any('magnitude' in leaf for leaf in want)
  for leaf, value in want.items():
    np.testing.assert_allclose(leaves[leaf], value, atol=1e-5, err_msg=leaf)
  # Each row of a module has the norm that the file has.
  modules = peft_adapters.read(folder)
  of_rows = 1 if adapted.family.stores_inputs_first else 0
  for layout, weight in adapted.merged():
    if layout.part:
      continue
    tensor = layout.to_tensor_order(weight).reshape(layout.tensor_shape)
    np.testing.assert_allclose(
      np.linalg.norm(tensor, axis=1 - of_rows),
      np.abs(modules[peft_adapters.module_of(layout.tensor)].magnitude),
      rtol=1e-4,
    )


def test_a_model_with_magnitudes_begins_with_an_adapter_without(tmp_path):
  plain = _Adapted('llama3', tmp_path)
  plain.write(tmp_path / 'adapter')
  other = _Adapted('llama3', tmp_path, use_dora=True)
  shared = {k: v for k, v in plain.state.items() if 'lora_' not in k}
  other.state |= shared
  other.write_weights()
  got = other.merged(other.read(tmp_path / 'adapter'))
  for (_, weight), (_, want) in zip(got, plain.merged(), strict=True):
    np.testing.assert_allclose(weight, want, atol=2e-5)


def test_magnitudes_of_a_part_of_a_model_of_images(tmp_path):
  adapted = _Adapted('gemma3', tmp_path, use_dora=True)
  whole = {'model_type': 'gemma3', 'text_config': adapted.config}
  (adapted.path / 'config.json').write_text(json.dumps(whole))
  adapted.write_weights(prefix='model.language_model.')
  adapted.write(tmp_path / 'adapter')
  leaves = adapted.read(tmp_path / 'adapter')
  for leaf, value in adapted.factors().items():
    np.testing.assert_allclose(leaves[leaf], value, atol=1e-5, err_msg=leaf)


def test_an_adapter_with_magnitudes_needs_a_model_with_them(tmp_path):
  other = _Adapted('llama3', tmp_path, use_dora=True)
  other.write(tmp_path / 'adapter')
  with pytest.raises(ValueError, match='set LORA_USE_DORA=True'):
    _Adapted('llama3', tmp_path).read(tmp_path / 'adapter')


def _change_config(folder, **settings):
  file = folder / 'adapter_config.json'
  file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def test_a_larger_rank_keeps_the_update(tmp_path):
  _Adapted('qwen3', tmp_path).write(tmp_path / 'adapter')
  larger = _Adapted('qwen3', tmp_path, rank=5)
  leaves = larger.read(tmp_path / 'adapter')
  written = peft_adapters.read(tmp_path / 'adapter')
  name = 'model.layers.1.mlp.down_proj'
  layer = 'transformer.x_layers_1.ff_layer.ffn_layer2.linear'
  a, b = (
    leaves[f'mdl_vars.params.lm.{layer}.lora_{letter}'] for letter in 'ab'
  )
  np.testing.assert_allclose(
    a @ b.T, (written[name].b @ written[name].a).T, atol=1e-6
  )
  # The other channels learn: one of the factors is not zero.
  assert (a[:, _RANK:] != 0).all() and not b[:, _RANK:].any()
  scale = leaves[f'mdl_vars.non_trainable.lm.{layer}.lora_scale']
  assert scale == _ALPHA / _RANK


def test_modules_without_an_update_are_fresh(tmp_path):
  adapted = _Adapted('qwen3', tmp_path, repeats_layers=True)
  modules = adapted.modules()
  written = {
    name: update
    for name, update in modules.items()
    if '.layers.0.' not in name and not name.endswith('k_proj')
  }
  config = peft_adapters.make_config(
    written, adapted.layouts, adapted.family, adapted.config
  )
  folder = tmp_path / 'adapter'
  folder.mkdir()
  peft_adapters.write(folder, written, config)
  pattern = {r'layers\.1\.self_attn\.q_proj': 8.0}
  _change_config(folder, alpha_pattern=pattern, use_rslora=True)
  leaves = adapted.read(folder)
  assert not any('.key.' in leaf for leaf in leaves)
  of_query = {
    leaf.rpartition('.')[2]: value
    for leaf, value in leaves.items()
    if '.self_attention.query.' in leaf
  }
  first, second = of_query['lora_b']
  assert not first.any()
  np.testing.assert_array_equal(
    second.reshape(-1, _RANK),
    modules['model.layers.1.self_attn.q_proj'].b,
  )
  np.testing.assert_allclose(
    of_query['lora_scale'], [_ALPHA / _RANK, 8.0 / _RANK**0.5]
  )


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    (
      {'use_dora': True},
      r'and, with use_dora, lora_magnitude_vector \[outputs\], got',
    ),
    ({'bias': 'all'}, "got {'bias': 'all'}"),
    ({'peft_type': 'LOHA'}, "got {'peft_type': 'LOHA'}"),
    (
      {'init_lora_weights': 'pissa_niter_16'},
      "{'init_lora_weights': 'pissa_niter_16'}",
    ),
    ({'modules_to_save': ['lm_head']}, 'modules_to_save'),
  ],
)
def test_adapters_that_are_more_than_updates(settings, message, tmp_path):
  adapted = _Adapted('llama3', tmp_path)
  adapted.write(tmp_path / 'adapter')
  _change_config(tmp_path / 'adapter', **settings)
  with pytest.raises(ValueError, match=message):
    adapted.read(tmp_path / 'adapter')


def test_adapters_that_do_not_fit(tmp_path):
  adapted = _Adapted('llama3', tmp_path)
  with pytest.raises(ValueError, match='must be a folder of PEFT'):
    adapted.read(tmp_path)
  folder = tmp_path / 'adapter'
  adapted.write(folder)
  with pytest.raises(ValueError, match='LORA_RANK must be at least 2, .* 1$'):
    _Adapted('llama3', tmp_path, rank=1).read(folder)
  weights = {x: v for x, v in adapted.state.items() if 'lora_' not in x}
  with pytest.raises(ValueError, match='set LORA_RANK to the rank'):
    adapter_leaves.AdapterLeaves.open(
      folder, adapted.path, weights, weights.__getitem__
    )
  attention = {
    x: v
    for x, v in adapted.state.items()
    if 'lora_' not in x or 'self_attention' in x
  }
  with pytest.raises(ValueError, match='have none, such as .*mlp.down_proj'):
    adapter_leaves.AdapterLeaves.open(
      folder, adapted.path, attention, attention.__getitem__
    )
  modules = adapted.modules()
  name = 'model.layers.0.mlp.up_proj'
  modules[name] = modules[name]._replace(a=np.zeros((_RANK, 3), np.float32))
  peft_adapters.write(folder, modules, {'lora_alpha': 1, 'peft_type': 'LORA'})
  with pytest.raises(ValueError, match=f'update of {name} .* inputs .* got 3'):
    adapted.read(folder)
