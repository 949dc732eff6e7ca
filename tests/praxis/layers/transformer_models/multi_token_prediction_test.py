# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""The loss of several tokens ahead, against a reference of its paper."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import models, transformer_models, transformers
from praxis.layers.transformer_models import (
  LanguageModelType,
  MultiTokenPrediction,
  multi_token_prediction,
  stack_configs,
)
from praxis.nested_map import NestedMap
from tests.praxis.layers import running
from tests.testing import nightly, numpy_layers
from tests.testing.layers import random_variables

_DIMS, _VOCAB, _LENGTH, _LOSS_WEIGHT = 8, 14, 9, 0.25
# Two texts and padding; one text. The second row has weights of responses.
_SEGMENT_IDS = np.array([[1, 1, 1, 1, 2, 2, 2, 0, 0], [1] * _LENGTH])
_SEGMENT_POS = np.array([[0, 1, 2, 3, 0, 1, 2, 0, 0], [*range(_LENGTH)]])
_WEIGHTS = np.array(
  [[1, 1, 1, 1, 1, 1, 0.5, 0, 0], [0, 0, 0, 1, 1, 0, 0, 1, 1.0]], np.float32
)


def _stack(num_layers=1):
  return transformers.StackedTransformer.config(
    num_layers=num_layers, hidden_dims=16, num_heads=2
  )


def _lm(num_modules=2, **fields):
  lm = transformer_models.TransformerLm.config(
    name='lm',
    model_dims=_DIMS,
    vocab_size=_VOCAB,
    packed_input=True,
    stacked_transformer_tpl=_stack(),
    record_activations_in_xent_output=True,
  )
  if num_modules:
    lm.mtp_tpl = MultiTokenPrediction.config(
      num_modules=num_modules, loss_weight=_LOSS_WEIGHT
    )
  return lm.set(**fields)


def _inputs():
  numbers = np.random.default_rng(0)
  ids, labels = numbers.integers(_VOCAB, size=(2, 2, _LENGTH))
  return {
    'inputs': jnp.asarray(ids),
    'paddings': jnp.asarray(_SEGMENT_IDS == 0, jnp.float32),
    'labels': NestedMap(
      class_ids=jnp.asarray(labels), class_weights=jnp.asarray(_WEIGHTS)
    ),
    'segment_ids': jnp.asarray(_SEGMENT_IDS),
    'segment_pos': jnp.asarray(_SEGMENT_POS),
  }


def _built(lm):
  layer = lm.Instantiate()
  inputs = _inputs()
  return layer, random_variables(layer, **inputs), inputs


@functools.cache
def _result():
  """Returns the variables and the output of a model with two modules."""
  layer, variables, inputs = _built(_lm())
  return variables, running.run(layer, variables, **inputs)


def _rms_norm(x, weights):
  mean_square = np.mean(x**2, -1, keepdims=True)
  return x / np.sqrt(mean_square + 1e-6) * weights['scale']


def _transformer_layer(x, weights):
  """Returns the default transformer layer on one text, x[T, D]."""
  attention = weights['self_attention']
  normed = numpy_layers.layer_norm(x, weights['layer_norm'])
  query, key, value = (
    np.einsum('td,dnh->tnh', normed, attention[name]['w'])
    + attention[name]['b']
    for name in ('query', 'key', 'value')
  )
  dims = query.shape[-1]
  scale = attention['per_dim_scale']['per_dim_scale']
  query *= np.log1p(np.exp(scale)) / np.log(2) / np.sqrt(dims)
  logits = np.einsum('tnh,snh->nts', query, key)
  logits = np.where(np.tri(len(x), dtype=bool), logits, -np.inf)
  encoded = np.einsum('nts,snh->tnh', numpy_layers.softmax(logits), value)
  x = x + np.einsum('tnh,dnh->td', encoded, attention['post']['w'])
  x = x + attention['post']['b']
  block = weights['ff_layer']
  hidden = numpy_layers.layer_norm(x, block['layer_norm'])
  for name, is_last in (('ffn_layer1', False), ('ffn_layer2', True)):
    layer = block[name]
    hidden = hidden @ layer['linear']['w'] + layer['bias']['b']
    hidden = hidden if is_last else np.maximum(hidden, 0)
  return x + hidden


def _xent_of_text(params, hidden, ids, labels):
  """Yields the cross entropy of each module on one text.

  Module k has T - k positions: it predicts labels[k:], [T - k].
  """
  softmax = params['softmax']['logits_ffn']
  table = softmax['linear']['w']
  for k in range(1, len(params['mtp']) + 1):
    weights = params['mtp'][f'modules_{k - 1}']
    embedded = _rms_norm(table.T[ids[k:]], weights['embedding_ln'])
    hidden = _rms_norm(hidden[:-1], weights['hidden_ln'])
    x = np.concatenate([embedded, hidden], -1) @ weights['proj']['w']
    x = _transformer_layer(x, weights['transformer']['x_layers_0'])
    hidden = _rms_norm(x, weights['final_ln'])
    probs = numpy_layers.softmax(hidden @ table + softmax['bias']['b'])
    yield -np.log(probs[np.arange(len(probs)), labels[k:]])


def _reference(variables, activations):
  """Returns the loss of the modules, text by text, without packing."""
  params = jax.tree.map(
    lambda x: np.asarray(x, np.float64), variables['params']
  )
  batch = _inputs()
  ids, labels = np.asarray(batch['inputs']), batch['labels']
  totals = np.zeros((len(params['mtp']), 2))
  for row, segment in ((0, 1), (0, 2), (1, 1)):
    text = _SEGMENT_IDS[row] == segment
    losses = _xent_of_text(
      params,
      np.asarray(activations, np.float64)[row, text],
      ids[row, text],
      np.asarray(labels.class_ids)[row, text],
    )
    for k, xent in enumerate(losses):
      weights = _WEIGHTS[row, text][k + 1 :]
      totals[k] += np.sum(xent * weights), np.sum(weights)
  return np.mean(totals[:, 0] / totals[:, 1]), np.mean(totals[:, 1])


def test_the_loss_is_that_of_the_texts_alone():
  variables, out = _result()
  loss, weight = _reference(variables, out.activations)
  np.testing.assert_allclose(out.mtp_loss, loss, rtol=1e-5)
  np.testing.assert_allclose(out.mtp_weight, weight)
  total = out.avg_xent + _LOSS_WEIGHT * out.mtp_loss
  np.testing.assert_allclose(out.total_loss, total, rtol=1e-6)


@pytest.mark.parametrize('num_experts', [4, *nightly.cases(0)])
def test_evaluation_has_the_loss_of_the_next_token(num_experts):
  stack = _stack(2)
  if num_experts:
    stack.set(num_experts=num_experts, moe_layers=[1])
  run = functools.partial(running.run, mutable=[base_layer.AUX_LOSS])
  layer, variables, inputs = _built(_lm(1, stacked_transformer_tpl=stack))
  without = _lm(0, stacked_transformer_tpl=stack).Instantiate()
  params = {x: y for x, y in variables['params'].items() if x != 'mtp'}
  want, _ = run(without, {'params': params}, **inputs, do_eval=True)
  evaluated, _ = run(layer, variables, **inputs, do_eval=True)
  trained, _ = run(layer, variables, **inputs)
  assert {'mtp_loss', 'mtp_weight'} == evaluated.keys() - want.keys()
  for name in ('total_loss', 'aux_loss', 'avg_xent', 'per_token_xent'):
    np.testing.assert_array_equal(evaluated[name], want[name], err_msg=name)
  np.testing.assert_allclose(evaluated.mtp_loss, trained.mtp_loss, rtol=1e-6)
  # In training, the experts of the modules are balanced too.
  assert (trained.aux_loss > evaluated.aux_loss) == bool(num_experts)
  total = trained.avg_xent + _LOSS_WEIGHT * trained.mtp_loss + trained.aux_loss
  np.testing.assert_allclose(trained.total_loss, total, rtol=1e-6)


def test_positions_without_a_token_ahead_are_padding():
  inputs = _inputs()
  tokens = multi_token_prediction.Tokens(
    ids=inputs.pop('inputs'),
    segment_mask=jnp.zeros((1, 1, 1, _LENGTH)),
    **inputs,
  )
  # By hand: the last k positions of each text, and the padding of the row.
  paddings = {
    1: [[0, 0, 0, 1, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0, 0, 1]],
    2: [[0, 0, 1, 1, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0, 1, 1]],
    4: [[1] * _LENGTH, [0, 0, 0, 0, 0, 1, 1, 1, 1]],
  }
  weights = {
    1: [[1, 1, 1, 0, 1, 0.5, 0, 0, 0], [0, 0, 1, 1, 0, 0, 1, 1, 0]],
    2: [[1, 1, 0, 0, 0.5, 0, 0, 0, 0], [0, 1, 1, 0, 0, 1, 1, 0, 0]],
    4: [[0] * _LENGTH, [1, 0, 0, 1, 1, 0, 0, 0, 0]],
  }
  for k, want in paddings.items():
    ahead = tokens.ahead(k)
    np.testing.assert_array_equal(ahead.paddings, want)
    np.testing.assert_array_equal(ahead.labels.class_weights, weights[k])
    np.testing.assert_array_equal(ahead.ids[:, :-k], tokens.ids[:, k:])


def test_all_weights_have_a_gradient():
  layer, variables, inputs = _built(_lm())
  loss = lambda variables: layer.apply(variables, **inputs).mtp_loss
  gradients = running.jit(jax.grad(loss))(variables)['params']
  for path, gradient in jax.tree.leaves_with_path(gradients):
    # A bias of keys adds the same to all logits of a query.
    if not jax.tree_util.keystr(path).endswith("['key']['b']"):
      assert np.abs(gradient).max() > 1e-6, path


def test_nothing_is_learned_across_texts():
  layer, variables, inputs = _built(_lm(1))
  ids, labels = inputs['inputs'], inputs['labels']
  changed = dict(inputs, inputs=ids.at[0, 4:].add(1) % _VOCAB)
  weights = labels.class_weights.at[0, 4:].set(0).at[1].set(0)
  only_first = NestedMap(labels, class_weights=weights)
  run = running.compiled(layer)
  want = run(variables, **dict(inputs, labels=only_first))
  got = run(variables, **dict(changed, labels=only_first))
  assert got.mtp_loss == want.mtp_loss > 0
  np.testing.assert_allclose(got.mtp_weight, 3)


@pytest.mark.parametrize('kind', ['repeated', 'pipelined'])
def test_the_module_is_the_last_layer_of_any_stack(kind):
  if kind == 'repeated':
    stack = transformers.StackedTransformerRepeated.config(
      block=_stack(1), x_times=2
    )
  else:
    stack = transformers.PipelinedTransformer.config(
      pipeline_stage=_stack(1),
      num_pipeline_stages=2,
      num_pipeline_microbatches=2,
    )
  layer, variables, inputs = _built(_lm(stacked_transformer_tpl=stack))
  out = running.run(layer, variables, **inputs)
  loss, _ = _reference(variables, out.activations)
  np.testing.assert_allclose(out.mtp_loss, loss, rtol=1e-5)
  module = layer.bind(variables).mtp.modules[0]
  assert module.stacked_transformer_tpl.remat


def test_the_last_layer_has_its_own_settings():
  first, second = (
    transformers.Transformer.config(norm_policy=policy)
    for policy in ('pre', 'post')
  )
  stack = _stack(4).set(
    transformer_layer_params_tpl=[first, second],
    local_window_size=[(1, 0), (2, 0), (3, 0), None],
    moe_layers=[1, 3],
    num_experts=2,
  )
  last = stack_configs.last_layer(stack)
  assert last.num_layers == 1
  assert last.transformer_layer_params_tpl == [second]
  assert last.local_window_size == [None]
  assert last.moe_layers == [0]
  middle = stack_configs.layers_of(stack, 1, 3)
  assert middle.transformer_layer_params_tpl == [first, second]
  assert middle.local_window_size == [(2, 0), (3, 0)]
  assert middle.moe_layers == [0]
  stack.local_window_size = (2, 0)
  assert stack_configs.last_layer(stack).local_window_size == (2, 0)


@pytest.mark.parametrize(
  'mesh_shape',
  [
    *nightly.cases(((1, 2, 1),), ((1, 1, 2),)),
    (1, 2, 2),
  ],
)
def test_loss_and_gradients_are_the_same_on_a_mesh(mesh_shape):
  lm = _lm(1)
  names = ('replica', 'data', 'mdl')
  sharded = transformer_models.TransformerLm.set_sharding_params_v1(
    lm.clone(),
    replica_axis='replica',
    data_axis='data',
    mdl_axis='mdl',
    ici_mesh_shape=mesh_shape,
    mesh_axis_names=names,
    training_optimized=True,
  )
  _, variables, inputs = _built(lm)

  def value_and_grad(lm):
    loss = lambda v: lm.Instantiate().apply(v, **inputs).total_loss
    return running.jit(jax.value_and_grad(loss))(variables)

  want = value_and_grad(lm)
  mesh = jax.make_mesh(
    mesh_shape,
    names,
    axis_types=(jax.sharding.AxisType.Auto,) * 3,
    devices=jax.devices()[: np.prod(mesh_shape)],
  )
  with jax.set_mesh(mesh):
    got = value_and_grad(sharded)
  close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
  jax.tree.map(close, got, want)


def test_bfloat16_is_near_float32():
  variables, out = _result()
  layer = _lm(fprop_dtype=jnp.bfloat16).Instantiate()
  rounded = running.run(layer, variables, **_inputs())
  assert rounded.mtp_loss.dtype == jnp.float32
  np.testing.assert_allclose(rounded.mtp_loss, out.mtp_loss, rtol=2e-2)


def test_metrics_of_a_language_model():
  model = models.LanguageModel.config(name='model', lm_tpl=_lm())
  inputs = _inputs()
  batch = NestedMap(
    ids=inputs['inputs'],
    labels=inputs['labels'].class_ids,
    weights=inputs['labels'].class_weights,
    **{x: inputs[x] for x in ('paddings', 'segment_ids', 'segment_pos')},
  )
  layer = model.Instantiate()
  variables, out = _result()
  variables = {'params': {'lm': variables['params']}}
  (metrics, _), collected = running.run(
    layer, variables, batch, mutable=[base_layer.SUMMARIES]
  )
  assert metrics.mtp_loss == (out.mtp_loss, out.mtp_weight)
  assert metrics.log_pplx[0] == out.avg_xent
  modules = collected[base_layer.SUMMARIES]['lm']['mtp']
  mean = np.mean([modules[f'loss_of_module_{k}_scalar'] for k in (1, 2)])
  np.testing.assert_allclose(mean, out.mtp_loss, rtol=1e-6)


def test_decoding_leaves_the_modules_out():
  variables, _ = _result()
  trained = {'params': {'lm': variables['params']}}
  # Without the variables of modules, which decoding would miss.
  params = {x: y for x, y in variables['params'].items() if x != 'mtp'}
  batch = NestedMap(ids=_inputs()['inputs'][:, :4], paddings=jnp.zeros((2, 4)))
  ids = []
  for num_modules, of_model in (
    (2, trained),
    (2, {'params': {'lm': params}}),
    (0, {'params': {'lm': params}}),
  ):
    model = models.LanguageModel.config(name='model', lm_tpl=_lm(num_modules))
    model.decoder_tpl.set(seqlen=8, max_decode_steps=4, eos_id=-1)
    (_, decoded, _), _ = running.run(
      model.Instantiate(),
      of_model,
      batch,
      do_eval=True,
      method='decode',
      mutable=[base_layer.DECODE_CACHE],
    )
    ids.append(np.asarray(decoded.output_ids))
  np.testing.assert_array_equal(ids[0], ids[1])
  np.testing.assert_array_equal(ids[0], ids[2])


def test_errors():
  for model_type in (LanguageModelType.PREFIX, LanguageModelType.BIDIRECTIONAL):
    with pytest.raises(ValueError, match='model_type must be causal with mtp'):
      _built(_lm(model_type=model_type))
  lm = _lm()
  lm.softmax_tpl.z_loss_weight = 0.1
  with pytest.raises(ValueError, match='z_loss_weight .* must be 0 with mtp'):
    _built(lm)
  with pytest.raises(ValueError, match='needs num_modules > 0'):
    _built(_lm(-1))
  lm = _lm()
  lm.mtp_tpl.loss_weight = 0.0
  with pytest.raises(ValueError, match='needs loss_weight > 0'):
    _built(lm)
  layer, variables, inputs = _built(_lm())
  inputs['labels'] = NestedMap(
    class_probabilities=jnp.ones((2, _LENGTH, _VOCAB)),
    class_weights=inputs['labels'].class_weights,
  )
  with pytest.raises(ValueError, match='labels of mtp_tpl must have class_ids'):
    jax.eval_shape(lambda: layer.apply(variables, **inputs))
