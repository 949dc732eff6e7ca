# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""The encoder-decoder against a twin in numpy; its masks, and its steps.

Shapes: B examples, S inputs, T targets, D model, V classes, N heads of H.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import embedding_softmax as es
from praxis.layers import ngrammer, transformer_models, transformers
from praxis.layers.transformer_models import stack_configs
from praxis.nested_map import NestedMap
from tests.praxis.layers import running
from tests.testing import nightly, numpy_layers
from tests.testing.layers import random_variables

_B, _S, _T, _D, _V, _H = 2, 5, 4, 8, 11, 4


def _stack(**fields):
  return transformers.StackedTransformer.config(
    num_layers=1, hidden_dims=12, num_heads=2, **fields
  )


def _model(**fields):
  decoder = _stack(mask_self_attention=True, use_cross_attention=True)
  cfg = transformer_models.TransformerEncoderDecoder.config(
    name='model',
    model_dims=_D,
    encoder_stacked_transformer_tpl=_stack(),
    decoder_stacked_transformer_tpl=decoder,
  )
  cfg.softmax_tpl.num_classes = _V
  return cfg.set(**fields)


def _repeated(stack):
  return transformers.StackedTransformerRepeated.config(block=stack, x_times=2)


def _own_tables(cfg):
  """Each side has an embedding and positions of its own."""
  embedding = es.Embedding.config(num_classes=_V)
  positions = es.TrainablePositionalEmbedding.config(max_seq_length=6)
  return cfg.set(
    softmax_tpl=es.FullSoftmax.config(num_classes=_V),
    position_emb_tpl=None,
    encoder_embedding_tpl=embedding,
    decoder_embedding_tpl=embedding.clone(),
    encoder_position_emb_tpl=positions,
    decoder_position_emb_tpl=positions.clone(),
    decoder_ln_tpl=None,
  )


def _batch():
  numbers = np.random.default_rng(0)
  ids = lambda length: jnp.asarray(numbers.integers(_V, size=(_B, length)))
  return NestedMap(
    inputs=ids(_S),
    input_paddings=jnp.asarray([[0.0] * 5, [0, 0, 0, 1, 1]]),
    targets=ids(_T),
    target_paddings=jnp.asarray([[0.0] * 4, [0, 0, 0, 1]]),
    labels=NestedMap(
      class_ids=ids(_T),
      class_weights=jnp.asarray([[1.0] * 4, [1, 0.5, 1, 0]]),
    ),
  )


class _Run:
  """A model with random variables, compiled once a kind of argument."""

  def __init__(self, cfg):
    self.layer = cfg.Instantiate()
    self.variables = random_variables(self.layer, **_batch())
    self.apply = running.jit(self.layer.apply)

  def __call__(self, batch, **kwargs):
    return self.apply(self.variables, **batch, **kwargs)


@functools.cache
def _shared():
  return _Run(_model())


@functools.cache
def _own():
  return _Run(_own_tables(_model()))


# The twin, of one layer a side.


def _attention(x, others, visible, p):
  project = lambda x, p: np.einsum('btd,dnh->btnh', x, p['w']) + p['b']
  per_dim = np.log1p(np.exp(p['per_dim_scale']['per_dim_scale']))
  query = project(x, p['query']) * per_dim / np.log(2) / np.sqrt(_H)
  logits = np.einsum('btnh,bsnh->bnts', query, project(others, p['key']))
  weights = np.exp(logits) * visible[:, None]
  weights /= weights.sum(-1, keepdims=True) + 1e-30
  out = np.einsum('bnts,bsnh->btnh', weights, project(others, p['value']))
  return np.einsum('btnh,dnh->btd', out, p['post']['w']) + p['post']['b']


def _layer(x, visible, own, p, others=None, others_visible=None):
  normed = numpy_layers.layer_norm(x, p['layer_norm'])
  x = x + _attention(normed, normed, visible, p['self_attention'])
  if others is not None:
    normed = numpy_layers.layer_norm(x, p['cross_layer_norm'])
    p_cross = p['cross_attention']
    x = x + _attention(normed, others, others_visible, p_cross)
  p = p['ff_layer']
  linear = lambda x, p: x @ p['linear']['w'] + p['bias']['b']
  hidden = np.maximum(
    linear(numpy_layers.layer_norm(x, p['layer_norm']), p['ffn_layer1']), 0
  )
  return x + linear(hidden, p['ffn_layer2']) * own[..., None]


def _sinusoids(length):
  scales = 1e4 ** (-np.arange(_D // 2) / (_D // 2 - 1))
  angles = np.arange(length)[:, None] * scales
  return np.concatenate([np.sin(angles), np.cos(angles)], -1)


def _embed(p, side, ids):
  if 'decoder_embedding_lookup' not in p:
    table = p['softmax']['logits_ffn']['linear']['w'].T
    return table[ids] + _sinusoids(ids.shape[1])
  table = p[f'{side}_embedding_lookup']['emb_var']
  positions = p[f'{side}_position_emb']['emb_var']
  return table[ids] + positions[: ids.shape[1]]


def _twin(p, batch):
  """Returns logits and the mean cross entropy."""
  read = 1 - batch['input_paddings']
  written = 1 - batch['target_paddings']
  x = _embed(p, 'encoder', batch['inputs'])
  same = read[:, :, None] == read[:, None]
  seen = same * read[:, None]
  x = numpy_layers.layer_norm(
    _layer(x, seen, read, p['encoder']['x_layers_0']), p['encoder_ln']
  )
  y = _embed(p, 'decoder', batch['targets'])
  earlier = written[:, None] * np.tri(_T)
  y = _layer(
    y,
    earlier,
    written,
    p['decoder']['x_layers_0'],
    x,
    np.broadcast_to(read[:, None], (_B, _T, _S)),
  )
  if 'decoder_ln' in p:
    y = numpy_layers.layer_norm(y, p['decoder_ln'])
  p = p['softmax']['logits_ffn']
  logits = y @ p['linear']['w'] + p['bias']['b']
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  labels = batch['labels']
  xent = -np.take_along_axis(log_probs, labels['class_ids'][..., None], -1)
  weights = labels['class_weights']
  return logits, (xent[..., 0] * weights).sum() / weights.sum()


def _numbers(tree):
  def number(x):
    is_float = np.issubdtype(x.dtype, np.floating)
    return np.asarray(x, np.float64 if is_float else np.int64)

  return jax.tree.map(number, dict(tree))


@pytest.mark.parametrize('run', [_shared, _own], ids=['shared', 'own'])
def test_outputs_and_gradients_are_the_twins(run):
  run, batch = run(), _batch()
  params, numbers = run.variables['params'], _numbers(batch)

  def loss(params):
    out = run.layer.apply({'params': params}, **batch)
    return out.total_loss, out.logits

  (got, logits), gradient = running.jit(jax.value_and_grad(loss, has_aux=True))(
    params
  )
  want_logits, want = _twin(_numbers(params), numbers)
  visible = np.asarray(batch.target_paddings) == 0
  np.testing.assert_allclose(logits[visible], want_logits[visible], atol=2e-5)
  np.testing.assert_allclose(got, want, rtol=1e-5)
  # Along a random direction, the twin's loss changes as the gradient says.
  rng = np.random.default_rng(1)
  way = jax.tree.map(lambda x: rng.standard_normal(x.shape), params)
  at = lambda step: _twin(
    jax.tree.map(lambda x, v: x + step * v, _numbers(params), way), numbers
  )[1]
  slope = jax.tree.map(lambda g, v: np.sum(np.float64(g) * v), gradient, way)
  np.testing.assert_allclose(
    sum(jax.tree.leaves(slope)), (at(1e-5) - at(-1e-5)) / 2e-5, rtol=1e-3
  )


def test_losses_by_token_and_sequence():
  out, batch = _shared()(_batch()), _batch()
  weights = np.asarray(batch.labels.class_weights)
  log_probs = np.asarray(out.log_probs)
  ids = np.asarray(batch.labels.class_ids)[..., None]
  xent = -np.take_along_axis(log_probs, ids, -1)[..., 0] * weights
  np.testing.assert_allclose(out.per_token_xent, xent, rtol=1e-5)
  np.testing.assert_allclose(out.per_sequence_xent, xent.sum(1), rtol=1e-5)
  np.testing.assert_allclose(out.avg_xent, xent.sum() / 6.5, rtol=1e-5)
  assert out.aux_loss == out.aux_loss_weight == 0


def test_without_labels_there_are_probabilities():
  out = _shared()(_batch() | {'labels': None})
  assert set(out) == {'logits', 'log_probs', 'probs'}
  np.testing.assert_allclose(out.probs.sum(-1), 1, rtol=1e-5)


def test_packed_examples_are_as_alone():
  run = _Run(_model(packed_input=True))
  batch = _batch()
  first = NestedMap(inputs=batch.inputs[0, :3], targets=batch.targets[0, :2])
  second = NestedMap(inputs=batch.inputs[1, :2], targets=batch.targets[1, :2])
  pad = lambda x, length: jnp.pad(x, (0, length - x.size))
  both = NestedMap({
    name: jnp.stack([
      jnp.concatenate([first[name], second[name]]),
      pad(first[name], length),
      pad(second[name], length),
    ])
    for name, length in (('inputs', _S), ('targets', _T))
  })  # fmt: skip
  out = run(
    both,
    input_paddings=jnp.zeros((3, _S)),
    target_paddings=jnp.zeros((3, _T)),
    input_segment_ids=jnp.asarray(
      [[1, 1, 1, 2, 2], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]]
    ),
    input_segment_pos=jnp.asarray(
      [[0, 1, 2, 0, 1], [0, 1, 2, 0, 0], [0, 1, 0, 0, 0]]
    ),
    target_segment_ids=jnp.asarray([[1, 1, 2, 2], [1, 1, 0, 0], [1, 1, 0, 0]]),
    target_segment_pos=jnp.asarray([[0, 1, 0, 1], [0, 1, 0, 0], [0, 1, 0, 0]]),
  )
  np.testing.assert_allclose(out.logits[0, :2], out.logits[1, :2], atol=1e-5)
  np.testing.assert_allclose(out.logits[0, 2:], out.logits[2, :2], atol=1e-5)


def _repeated_both():
  cfg = _model()
  return cfg.set(
    encoder_stacked_transformer_tpl=_repeated(
      cfg.encoder_stacked_transformer_tpl
    ),
    decoder_stacked_transformer_tpl=_repeated(
      cfg.decoder_stacked_transformer_tpl
    ),
  )


@pytest.mark.parametrize(
  'kind, samples',
  [('own', 1), ('repeated', 2), *nightly.cases(('repeated', 1), ('shared', 2))],
)
def test_steps_equal_the_whole(kind, samples):
  """From what the forward pass left, each step scores as the whole does."""
  run = {
    'shared': _shared, 'own': _own, 'repeated': lambda: _Run(_repeated_both())
  }[kind]()  # fmt: skip
  batch = _batch() | {'labels': None}
  batch['target_paddings'] = jnp.zeros((_B, _T))
  want = np.repeat(np.asarray(run(batch).logits), samples, axis=0)
  apply = functools.partial(run.layer.apply, mutable=[base_layer.DECODE_CACHE])

  def for_samples(x, batch_dim, time_dim):
    return jnp.repeat(x, samples, axis=0) if time_dim >= 0 else x

  def begin(model, **batch):
    model(**batch)
    model.transform_decode_state(for_samples)

  _, state = running.jit(functools.partial(apply, method=begin))(
    run.variables, **batch
  )
  step = running.jit(functools.partial(apply, method='extend_step'))
  targets = jnp.repeat(batch['targets'], samples, axis=0)
  for t in range(_T):
    out, state = step(run.variables | state, targets[:, t])
    np.testing.assert_allclose(out.logits, want[:, t], atol=1e-5)
  state = state[base_layer.DECODE_CACHE]
  assert state['time_step'] == _T and 'encoder' not in state


def test_bfloat16_is_near_float32():
  got = _Run(_model(fprop_dtype=jnp.bfloat16))(_batch())
  assert got.total_loss.dtype == jnp.float32
  want = _shared()(_batch()).total_loss
  np.testing.assert_allclose(got.total_loss, want, rtol=0.03)


@pytest.mark.parametrize('experts', [False, True])
def test_both_sides_are_split(experts):
  model = transformer_models.TransformerEncoderDecoder
  cfg = _own_tables(_model())
  axes = {'replica_axis': 'replica', 'data_axis': 'data', 'mdl_axis': 'mdl'}
  mesh = {
    'ici_mesh_shape': [1, 2, 2],
    'mesh_axis_names': ['replica', 'data', 'mdl'],
  }
  set_params = model.set_sharding_params_v1
  data = 'data'
  if experts:
    set_params = functools.partial(
      model.set_sharding_params_with_expert_parallelism,
      data_expert_axis='data_expert',
    )
    data = ('data', 'data_expert')
    mesh['ici_mesh_shape'] = [1, 2, 1, 2]
    mesh['mesh_axis_names'] = ['replica', 'data', 'data_expert', 'mdl']
  cfg = set_params(cfg, training_optimized=True, **axes, **mesh)
  tree = cfg.Instantiate().abstract_init_with_metadata(**_batch())['params']
  split = lambda w: tuple(w.tensor_split_dims_mapping)
  for side in ('encoder', 'decoder'):
    layer = tree[side]['x_layers_0']
    assert split(layer['ff_layer']['ffn_layer1']['linear']['w']) == (
      data, 'mdl'
    )  # fmt: skip
    assert split(tree[f'{side}_embedding_lookup']['emb_var']) == ('mdl', data)
    assert split(tree[f'{side}_position_emb']['emb_var']) == (data, 'mdl')


def test_where_layers_of_n_grammers_arrive():
  tpl = transformers.Transformer.config()
  stack = stack_configs.for_model(_stack(), _D, [tpl], packed_input=True)
  assert stack.ngrammer_tpls == [tpl] and stack.packed_input


@pytest.mark.parametrize('side', ['encoder', 'decoder'])
def test_post_attention_n_grammers_are_ignored_with_a_warning(side, caplog):
  def variables(cfg):
    tree = cfg.Instantiate().abstract_init_with_metadata(**_batch())
    return jax.tree.structure(tree)

  plain = variables(_model())
  field = f'{side}_post_attention_ngrammer_tpls'
  assert field not in caplog.text
  for n_grammer in (ngrammer.Ngrammer, ngrammer.VQNgrammer):
    caplog.clear()
    assert variables(_model().set(**{field: [n_grammer.config()]})) == plain
    assert f'{field} of TransformerEncoderDecoder is ignored' in caplog.text


@pytest.mark.parametrize(
  'fields, message',
  [
    (
      {'decoder_post_attention_ngrammer_tpls': [None, None]},
      'decoder_post_attention_ngrammer_tpls must have an .* 1 layers .* got 2',
    ),
    ({'model_dims': 0}, 'needs model_dims > 0'),
    ({'encoder_stacked_transformer_tpl': None}, 'encoder_stacked_tr.* None'),
    (
      {'encoder_stacked_transformer_tpl': _stack(mask_self_attention=True)},
      'mask_self_attention of the encoder must be False',
    ),
    (
      {'decoder_stacked_transformer_tpl': _stack()},
      'mask_self_attention of the decoder must be True',
    ),
    (
      {'decoder_position_emb_tpl': es.PositionalEmbedding.config()},
      'decoder_position_emb_tpl must be None with position_emb_tpl',
    ),
    (
      {'encoder_stacked_transformer_tpl': _stack(model_dims=4)},
      'model_dims of the stack must be 0 or 8 .* got 4',
    ),
    (
      {'encoder_embedding_tpl': es.Embedding.config(input_dims=4)},
      'input_dims of encoder_embedding_lookup must be 0 or 8 .* got 4',
    ),
  ],
)
def test_impossible_models_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    layer = _model(**fields).Instantiate()
    layer.abstract_init_with_metadata(**_batch())
