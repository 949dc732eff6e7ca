# SPDX-License-Identifier: Apache-2.0
"""The module that predicts a second token, beside PyTorch.

transformers ignores it. The reference is its layer of the model's architecture,
in the equations 21 to 24 of arXiv:2412.19437, in the order of eh_proj.
"""

from __future__ import annotations

import functools
import json
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from pax.huggingface import model_folder, stacked_variables
from praxis import base_layer
from praxis.nested_map import NestedMap
from tests.compare import huggingface_references as references
from tests.pax.huggingface import loaded_models, reference_models


def _model(name):
  """Returns a model, whose layers end with the module."""
  model = references.make_model(name, num_nextn_predict_layers=1)
  dims, index = model.config.hidden_size, model.config.num_hidden_layers
  module = type(model.model.layers[-1])(model.config, index)
  norm = lambda: type(model.model.norm)(dims, model.config.rms_norm_eps)
  module.enorm, module.hnorm = norm(), norm()
  module.eh_proj = torch.nn.Linear(2 * dims, dims, bias=False)
  module.shared_head = torch.nn.ModuleDict({'norm': norm()})
  with torch.no_grad():
    for parameter in module.parameters():
      parameter.copy_(0.2 * torch.randn_like(parameter))
  model.model.layers.append(module)
  return model


def _loss(model, ids):
  """Returns the cross entropy of the tokens after the next ones."""
  *_, module = model.model.layers
  hidden = model.model(ids).last_hidden_state[:, :-1]
  embedded = model.model.embed_tokens(ids[:, 1:])
  inputs = torch.cat([module.enorm(embedded), module.hnorm(hidden)], -1)
  inputs = module.eh_proj(inputs)
  length = inputs.shape[1]
  positions = torch.arange(length)[None]
  mask = torch.full((length, length), -torch.inf).triu(1)[None, None]
  outputs = module(
    inputs,
    attention_mask=mask,
    position_ids=positions,
    position_embeddings=model.model.rotary_emb(inputs, positions),
  )
  logits = model.lm_head(module.shared_head['norm'](outputs))[:, :-1]
  return torch.nn.functional.cross_entropy(
    logits.flatten(0, 1), ids[:, 2:].flatten()
  )


def _batch(ids):
  weights = np.ones(ids.shape, np.float32)
  weights[:, -1] = 0
  return NestedMap(
    ids=jnp.asarray(ids),
    labels=jnp.roll(ids, -1, axis=1),
    weights=jnp.asarray(weights),
    paddings=jnp.zeros(ids.shape),
  )


@pytest.mark.parametrize('name', ['deepseek_v3', 'glm4_moe'])
def test_loss_and_gradients_are_the_same(name, tmp_path):
  model = _model(name)
  model.save_pretrained(tmp_path)
  config = json.loads((tmp_path / 'config.json').read_text())
  assert config['num_nextn_predict_layers'] == 1
  folder = model_folder.ModelFolder.open(tmp_path, has_mtp=True)
  ours = loaded_models.LoadedModel(folder)
  ids = reference_models.input_ids(model.config.vocab_size)
  want_loss = _loss(model, torch.tensor(ids).long())
  want_loss.backward()

  @jax.jit
  @jax.value_and_grad
  def loss(variables):
    with base_layer.JaxContext.new_context():
      metrics, _ = ours.model.apply(variables, _batch(ids))
    return metrics.mtp_loss[0]

  got_loss, got = loss(ours.variables)
  np.testing.assert_allclose(got_loss, want_loss.item(), rtol=1e-5)
  gradients = {
    name: x.grad.numpy()
    for name, x in model.named_parameters()
    if x.grad is not None
  }
  compared = set()
  for variable in stacked_variables.of_layouts(folder.layouts, None):
    # Experts are one parameter each in memory.
    if not gradients.keys() >= set(variable.tensors):
      continue
    found = functools.reduce(operator.getitem, variable.path.split('/'), got)
    want = variable.from_tensors(gradients.__getitem__)
    np.testing.assert_allclose(
      found, want, rtol=0, atol=1e-4 * np.abs(want).max(), err_msg=variable.path
    )
    compared |= {*variable.tensors}
  names = ('enorm', 'eh_proj', 'shared_head.norm', 'self_attn.o_proj')
  assert compared >= {f'model.layers.2.{name}.weight' for name in names}
  assert compared >= {'model.embed_tokens.weight', 'lm_head.weight'}
  assert 'model.layers.0.self_attn.o_proj.weight' in compared
