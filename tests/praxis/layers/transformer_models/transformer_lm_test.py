# SPDX-License-Identifier: Apache-2.0
"""The language model: what it sees, what it loses, and how it decodes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import embedding_softmax as es
from praxis.layers import normalizations, transformer_models, transformers
from praxis.layers.transformer_models import LanguageModelType
from praxis.nested_map import NestedMap

_B, _T, _D, _V = 2, 6, 8, 13


def _lm(**fields):
  lm = transformer_models.TransformerLm.config(
    name='lm', model_dims=_D, vocab_size=_V
  )
  block = transformers.StackedTransformer.config(
    num_layers=2, hidden_dims=16, num_heads=2
  )
  return lm.set(stacked_transformer_tpl=block).set(**fields)


def _repeated(**fields):
  lm = _lm(**fields)
  block = lm.stacked_transformer_tpl.set(num_layers=1)
  lm.stacked_transformer_tpl = transformers.StackedTransformerRepeated.config(
    block=block, x_times=2
  )
  return lm


def _ids(seed=0, shape=(_B, _T)):
  return jax.random.randint(jax.random.key(seed), shape, 0, _V)


def _no_paddings(ids):
  return jnp.zeros(ids.shape)


def _labels(ids, weights=None):
  weights = jnp.ones(ids.shape) if weights is None else weights
  return NestedMap(class_ids=ids, class_weights=weights)


def _init(lm, ids=None):
  """Returns the layer and variables, none of which is zero."""
  layer = lm.Instantiate()
  ids = _ids() if ids is None else ids
  variables = layer.init(jax.random.key(0), ids, _no_paddings(ids))
  leaves, treedef = jax.tree.flatten(variables)
  keys = jax.random.split(jax.random.key(5), len(leaves))
  noise = [
    x + 0.2 * jax.random.normal(k, x.shape)
    for k, x in zip(keys, leaves, strict=True)
  ]
  return layer, jax.tree.unflatten(treedef, noise)


def _logits(layer, variables, ids, **kwargs):
  paddings = kwargs.pop('paddings', _no_paddings(ids))
  return layer.apply(variables, ids, paddings, **kwargs).logits


def test_variable_tree():
  lm = _lm(
    separate_embedding_tpl=es.Embedding.config(),
    softmax_tpl=es.FullSoftmax.config(),
    position_emb_tpl=es.TrainablePositionalEmbedding.config(max_seq_length=9),
  )
  tree = lm.Instantiate().abstract_init_with_metadata(
    _ids(), _no_paddings(_ids())
  )['params']
  assert set(tree) == {
    'embedding_lookup',
    'position_emb',
    'transformer',
    'final_ln',
    'softmax',
  }
  assert tree['embedding_lookup']['emb_var'].shape == (_V, _D)
  assert tree['softmax']['logits_ffn']['linear']['w'].shape == (_D, _V)
  assert set(tree['transformer']) == {'x_layers_0', 'x_layers_1'}


def test_repeated_variable_tree():
  tree = _repeated().Instantiate().abstract_init_with_metadata(
    _ids(), _no_paddings(_ids())
  )['params']
  layer = tree['transformer']['repeat']['sub']['x_layers_0']
  w = layer['ff_layer']['ffn_layer1']['linear']['w']
  assert w.full_shape == (2, _D, 16)


def test_losses():
  lm = _lm()
  layer, variables = _init(lm)
  ids, labels = _ids(), _ids(1)
  weights = jnp.asarray([[1.0, 1, 1, 1, 1, 1], [1, 1, 0.5, 0, 0, 0]])
  out = layer.apply(
    variables, ids, _no_paddings(ids), _labels(labels, weights)
  )
  logits = np.asarray(_logits(layer, variables, ids), np.float64)
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  xent = -np.take_along_axis(log_probs, np.asarray(labels)[..., None], -1)
  weighted = xent[..., 0] * np.asarray(weights)
  np.testing.assert_allclose(out.per_token_xent, weighted, atol=1e-5)
  np.testing.assert_allclose(out.per_sequence_xent, weighted.sum(1), rtol=1e-5)
  np.testing.assert_allclose(out.total_loss, weighted.sum() / 8.5, rtol=1e-5)
  np.testing.assert_allclose(out.total_weight, 8.5)
  assert out.aux_loss == out.aux_loss_weight == 0


def test_without_labels_there_are_probabilities():
  layer, variables = _init(_lm())
  out = layer.apply(variables, _ids(), _no_paddings(_ids()))
  assert set(out) == {'logits', 'log_probs', 'probs'}
  np.testing.assert_allclose(out.probs.sum(-1), 1, rtol=1e-5)
  np.testing.assert_allclose(out.probs, np.exp(out.log_probs), rtol=1e-5)


def test_a_causal_model_sees_no_later_token():
  layer, variables = _init(_lm())
  ids = _ids()
  changed = ids.at[:, 3].add(1) % _V
  before = _logits(layer, variables, ids)
  after = _logits(layer, variables, changed)
  np.testing.assert_array_equal(before[:, :3], after[:, :3])
  assert (before[:, 3:] != after[:, 3:]).any(-1).all()


def test_a_bidirectional_model_sees_all():
  layer, variables = _init(_lm(model_type=LanguageModelType.BIDIRECTIONAL))
  ids = _ids()
  before = _logits(layer, variables, ids)
  after = _logits(layer, variables, ids.at[:, 3].add(1) % _V)
  assert (before != after).any(-1).all()


def test_a_prefix_model_sees_its_prefix():
  layer, variables = _init(_lm(model_type=LanguageModelType.PREFIX))
  ids = _ids()
  causal = jnp.asarray([[0, 0, 0, 1, 1, 1]] * _B)
  run = lambda ids: _logits(
    layer, variables, ids, causal_attention_mask=causal
  )
  before = run(ids)
  in_prefix = run(ids.at[:, 2].add(1) % _V)
  assert (before != in_prefix).any(-1).all()
  after = run(ids.at[:, 4].add(1) % _V)
  np.testing.assert_array_equal(before[:, :4], after[:, :4])


def test_packed_texts_are_as_alone():
  layer, variables = _init(_lm(packed_input=True))
  first, second = _ids(0, (1, 4)), _ids(1, (1, 2))
  packed = jnp.concatenate([first, second], axis=1)
  got = _logits(
    layer,
    variables,
    packed,
    segment_ids=jnp.asarray([[1, 1, 1, 1, 2, 2]]),
    segment_pos=jnp.asarray([[0, 1, 2, 3, 0, 1]]),
  )
  for text, logits in ((first, got[:, :4]), (second, got[:, 4:])):
    length = text.shape[1]
    alone = _logits(
      layer,
      variables,
      text,
      segment_ids=jnp.ones((1, length), jnp.int32),
      segment_pos=jnp.arange(length)[None],
    )
    np.testing.assert_allclose(logits, alone, atol=1e-5)


def test_padding_changes_nothing():
  layer, variables = _init(_lm())
  ids = _ids()
  paddings = jnp.asarray([[0.0, 0, 0, 0, 1, 1]] * _B)
  padded = _logits(layer, variables, ids, paddings=paddings)
  short = _logits(layer, variables, ids[:, :4])
  np.testing.assert_allclose(padded[:, :4], short, atol=1e-5)


def test_skip_compute_loss_gives_what_the_softmax_would_get():
  lm = _lm(record_activations_in_xent_output=True)
  layer, variables = _init(lm)
  out = layer.apply(variables, _ids(), _no_paddings(_ids()), _labels(_ids(1)))
  skipped = lm.clone().set(skip_compute_loss=True).Instantiate()
  activations = skipped.apply(variables, _ids(), _no_paddings(_ids()))
  np.testing.assert_array_equal(out.activations, activations)


def test_aux_losses_and_entropy_join_the_total():
  lm = _lm(entropy_loss_weight=0.3)
  lm.softmax_tpl.z_loss_weight = 0.1
  layer, variables = _init(lm)
  args = (_ids(), _no_paddings(_ids()), _labels(_ids(1)))
  out, _ = layer.apply(variables, *args, mutable=[base_layer.AUX_LOSS])
  log_probs = np.asarray(out.log_probs, np.float64)
  entropy = -(np.exp(log_probs) * log_probs).sum(-1).mean()
  assert out.aux_loss == out.z_loss > 0
  assert out.aux_loss_weight == 1
  np.testing.assert_allclose(
    out.total_loss, out.avg_xent + 0.3 * entropy + out.z_loss, rtol=1e-5
  )
  skipping = lm.clone().set(skip_aux_loss=True).Instantiate()
  out, _ = skipping.apply(variables, *args, mutable=[base_layer.AUX_LOSS])
  np.testing.assert_allclose(
    out.total_loss, out.avg_xent + 0.3 * entropy, rtol=1e-5
  )


def test_summaries_count_tokens():
  layer, variables = _init(_lm())
  paddings = jnp.asarray([[0.0, 0, 0, 0, 1, 1]] * _B)
  _, collected = layer.apply(
    variables, _ids(), paddings, mutable=[base_layer.SUMMARIES]
  )
  summaries = collected[base_layer.SUMMARIES]
  assert summaries['num_unpadded_tokens_scalar'] == 8
  np.testing.assert_allclose(summaries['ratio_unpadded_tokens_scalar'], 4 / 6)


def _rotary(lm):
  lm.position_emb_tpl = None
  block = next(transformer_models.sharding.blocks(lm.stacked_transformer_tpl))
  layer = block.transformer_layer_params_tpl
  layer.tr_atten_tpl.set(use_rotary_position_emb=True, combine_qkv=True)
  return lm


@pytest.mark.parametrize(
  'lm',
  [
    _lm(),
    _repeated(),
    _rotary(_repeated()),
    _lm(position_emb_tpl=es.TrainablePositionalEmbedding.config()),
  ],
  ids=['stacked', 'repeated', 'rotary', 'trainable'],
)
def test_steps_equal_the_whole(lm):
  layer, variables = _init(lm)
  ids = _ids()
  want = _logits(layer, variables, ids)
  cache = [base_layer.DECODE_CACHE]
  # Two tokens at once, then the others one by one.
  _, state = layer.apply(
    variables,
    ids[:, :2],
    _no_paddings(ids[:, :2]),
    start_time_step=2,
    mutable=cache,
  )
  pad = lambda x, batch_dim, time_dim: (
    x
    if time_dim < 0
    else jnp.pad(
      x, [(0, _T - 2 if d == time_dim else 0) for d in range(x.ndim)]
    )
  )
  _, state = layer.apply(
    variables | state, pad, method='transform_decode_state', mutable=cache
  )

  @jax.jit
  def step(state, ids):
    return layer.apply(
      variables | state, ids, method='extend_step', mutable=cache
    )

  for t in range(2, _T):
    out, state = step(state, ids[:, t])
    np.testing.assert_allclose(out.logits, want[:, t], atol=1e-5)


def test_several_steps_at_once():
  layer, variables = _init(_lm())
  ids = _ids()
  cache = [base_layer.DECODE_CACHE]
  _, state = layer.apply(variables, ids, _no_paddings(ids), mutable=cache)
  out, state = layer.apply(
    variables | state, ids[:, :4], method='extend_step', mutable=cache
  )
  want = _logits(layer, variables, ids)
  np.testing.assert_allclose(out.logits, want[:, :4], atol=1e-5)
  assert state[base_layer.DECODE_CACHE]['time_step'] == 4


def test_bfloat16_is_near_float32():
  lm = _lm()
  layer, variables = _init(lm)
  half = lm.clone().set(fprop_dtype=jnp.bfloat16).Instantiate()
  args = (_ids(), _no_paddings(_ids()), _labels(_ids(1)))
  out = half.apply(variables, *args)
  assert out.total_loss.dtype == jnp.float32
  want = layer.apply(variables, *args).total_loss
  np.testing.assert_allclose(out.total_loss, want, rtol=0.03)


def test_without_final_norm():
  lm = _lm(final_ln_tpl=None)
  layer, variables = _init(lm)
  assert 'final_ln' not in variables['params']
  lm.final_ln_tpl = pax_fiddle.Config(normalizations.IdentityNorm)
  np.testing.assert_array_equal(
    _logits(layer, variables, _ids()),
    _logits(lm.Instantiate(), variables, _ids()),
  )


def test_errors():
  with pytest.raises(ValueError, match='model_dims must be > 0'):
    _init(_lm(model_dims=0))
  lm = _lm()
  lm.stacked_transformer_tpl.model_dims = 4
  with pytest.raises(ValueError, match='must be 0 or 8 .* got 4'):
    _init(lm)
  lm = _lm(skip_aux_loss=True)
  lm.softmax_tpl.set(xent_implementation='auto', z_loss_weight=0.1)
  with pytest.raises(ValueError, match='leaves out the z-loss'):
    _init(lm)
  lm = _lm(entropy_loss_weight=0.1)
  lm.softmax_tpl.set(chunk_size=2)
  with pytest.raises(ValueError, match='needs the logits of all tokens'):
    _init(lm)
