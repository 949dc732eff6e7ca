# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Softmaxes and their cross entropy against numpy in float64."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax.test_util import check_grads

from praxis import base_layer, pax_fiddle
from praxis.layers import activations, losses
from praxis.layers import embedding_softmax as es
from tests.praxis.layers import running
from tests.testing import nightly
from tests.testing.layers import random_variables

_B, _T, _D, _V = 2, 6, 4, 9
_TABLES = [es.SharedEmbeddingSoftmax, es.NClassMajorSharedEmbeddingSoftmax]


def _data(dtype=jnp.float32):
  numbers = np.random.default_rng(3)
  x = running.normal(_B, _T, _D).astype(dtype)
  ids = jnp.asarray(numbers.integers(_V, size=(_B, _T, 1)))
  weights = jnp.asarray(numbers.random((_B, _T, 1)) > 0.3, jnp.float32)
  return x, weights, ids


def _config(cls, **fields):
  return cls.config(name='softmax', input_dims=_D, num_classes=_V, **fields)


def _init(layer, *args):
  return random_variables(layer, *args, scale=1.0)


def _run(layer, variables, *args, method=None, **kwargs):
  run = running.jit(functools.partial(layer.apply, method=method))
  return run(variables, *args, **kwargs)


def _apply(layer, variables, *args, do_eval=False, **kwargs):
  """Returns outputs and auxiliary losses."""
  context = base_layer.JaxContext.HParams(do_eval=do_eval)
  run = running.jit(
    functools.partial(layer.apply, mutable=[base_layer.AUX_LOSS])
  )
  with base_layer.JaxContext.new_context(hparams=context):
    return run(variables, *args, **kwargs)


def _logits(cls, variables, x):
  params = jax.tree.map(lambda v: np.asarray(v, np.float64), variables)
  params = params['params']
  x = np.asarray(x, np.float64)
  if cls is es.GShardSharedEmbeddingSoftmax:
    return x * _D**-0.5 @ params['embedding']['w'].T
  if cls is es.NClassMajorSharedEmbeddingSoftmax:
    return x @ params['w'].T + params['bias']['b']
  ffn = params['logits_ffn']
  return x @ ffn['linear']['w'] + ffn['bias']['b']


def _log_softmax(logits):
  shifted = logits - logits.max(-1, keepdims=True)
  return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _xent(logits, ids, on=1.0, off=0.0):
  target = np.full(logits.shape, off)
  np.put_along_axis(target, np.asarray(ids), on, axis=-1)
  return -(target * _log_softmax(logits)).sum(-1)


@pytest.mark.parametrize(
  ('cls', 'cap'),
  nightly.except_for(
    [(es.FullSoftmax, None), *((cls, 2.0) for cls in _TABLES)],
    itertools.product((es.FullSoftmax, *_TABLES), (None, 2.0)),
  ),
)
def test_outputs(cls, cap):
  layer = _config(cls, soft_cap_logits=cap).Instantiate()
  x, weights, ids = _data()
  variables = _init(layer, x, weights, ids)
  out, aux = _apply(layer, variables, x, weights, ids)
  logits = _logits(cls, variables, x)
  if cap:
    logits = cap * np.tanh(logits / cap)
  w = np.asarray(weights)[..., 0]
  xent = _xent(logits, ids)
  right = logits.argmax(-1) == np.asarray(ids)[..., 0]
  np.testing.assert_allclose(out.logits, logits, atol=1e-5)
  np.testing.assert_allclose(out.log_probs, _log_softmax(logits), atol=1e-5)
  np.testing.assert_allclose(out.per_example_xent, xent, atol=1e-5)
  np.testing.assert_array_equal(out.per_example_argmax, logits.argmax(-1))
  np.testing.assert_allclose(out.total_xent, (xent * w).sum(), rtol=1e-5)
  np.testing.assert_allclose(out.total_weight, w.sum())
  np.testing.assert_allclose(
    out.avg_xent, (xent * w).sum() / (w.sum() + 1e-6), rtol=1e-5
  )
  np.testing.assert_allclose(out.accuracy, right[w > 0].mean(), rtol=1e-5)
  assert 'z_loss' not in out and not jax.tree.leaves(aux)


def test_variable_names_and_shapes():
  args = _data()
  shapes = lambda cls, **fields: jax.tree.map(
    lambda w: w.full_shape,
    _config(cls, **fields).Instantiate().abstract_init_with_metadata(*args),
  )['params']
  ffn = {'logits_ffn': {'linear': {'w': (_D, _V)}, 'bias': {'b': (_V,)}}}
  assert shapes(es.FullSoftmax) == ffn
  assert shapes(es.SharedEmbeddingSoftmax) == ffn
  major = es.NClassMajorSharedEmbeddingSoftmax
  assert shapes(major) == {'w': (_V, _D), 'bias': {'b': (_V,)}}
  assert shapes(major, use_bias=False) == {'w': (_V, _D)}
  assert shapes(es.GShardSharedEmbeddingSoftmax) == {
    'embedding': {'w': (_V, _D)}
  }


def test_argmax_is_the_first_of_equals():
  layer = _config(es.FullSoftmax, feed_forward_tpl=None).Instantiate()
  logits = jnp.asarray([[[0.0, 5, 1, 5, 2, 2, 2, 2, 2]]])
  out = _run(layer, {}, logits, jnp.ones((1, 1, 1)), jnp.asarray([[[3]]]))
  np.testing.assert_array_equal(out.per_example_argmax, [[1]])
  np.testing.assert_array_equal(out.accuracy, 0.0)


def test_labels_that_are_no_class_cost_nothing():
  layer = _config(es.FullSoftmax).Instantiate()
  x, weights, _ = _data()
  ids = jnp.full((_B, _T, 1), -1)
  variables = _init(layer, x, weights, ids)
  out = _run(layer, variables, x, weights, ids)
  np.testing.assert_array_equal(out.per_example_xent, 0.0)


@pytest.mark.parametrize('do_eval, in_eval', [(False, True), (True, False)])
def test_label_smoothing(do_eval, in_eval):
  layer = _config(
    es.FullSoftmax,
    label_smoothing_prob=0.2,
    label_smoothing_apply_for_eval=in_eval,
  ).Instantiate()
  x, weights, ids = _data()
  variables = _init(layer, x, weights, ids)
  out, _ = _apply(layer, variables, x, weights, ids, do_eval=do_eval)
  logits = _logits(es.FullSoftmax, variables, x)
  smooth = {} if do_eval else {'on': 0.8, 'off': 0.2 / (_V - 1)}
  np.testing.assert_allclose(
    out.per_example_xent, _xent(logits, ids, **smooth), atol=1e-5
  )


def test_distributions_as_labels():
  layer = _config(es.FullSoftmax, label_smoothing_prob=0.2).Instantiate()
  x, weights, ids = _data()
  variables = _init(layer, x, weights, ids)
  probs = np.exp(running.normal(_B, _T, _V))
  probs = jnp.asarray(probs / probs.sum(-1, keepdims=True))
  out, _ = _apply(layer, variables, x, weights, class_probabilities=probs)
  log_probs = _log_softmax(_logits(es.FullSoftmax, variables, x))
  np.testing.assert_allclose(
    out.per_example_xent, -(np.asarray(probs) * log_probs).sum(-1), atol=1e-5
  )
  assert 'accuracy' not in out
  with pytest.raises(ValueError, match='got neither'):
    _run(layer, variables, x, weights)


def test_z_loss_is_a_mean_square_and_an_aux_loss():
  layer = _config(es.FullSoftmax, z_loss_weight=0.1).Instantiate()
  x, weights, ids = _data()
  variables = _init(layer, x, weights, ids)
  out, aux = _apply(layer, variables, x, weights, ids)
  logits = _logits(es.FullSoftmax, variables, x)
  log_z = np.log(np.exp(logits).sum(-1))
  w = np.asarray(weights)[..., 0]
  want = 0.1 * (log_z**2 * w).sum() / w.sum()
  np.testing.assert_allclose(out.z_loss, want, rtol=1e-5)
  (loss,) = jax.tree.leaves(
    aux, is_leaf=lambda x: isinstance(x, base_layer.AuxLossStruct)
  )
  np.testing.assert_allclose(loss.value, want, rtol=1e-5)


@pytest.mark.parametrize(
  ('cls', 'chunk'),
  nightly.except_for(
    [(es.FullSoftmax, 2), (_TABLES[1], 4)],
    itertools.product((es.FullSoftmax, _TABLES[1]), (2, 4)),
  ),
)
def test_chunks_change_nothing_but_the_memory(cls, chunk):
  cfg = _config(cls, soft_cap_logits=3.0, label_smoothing_prob=0.1)
  whole = cfg.Instantiate()
  chunked = cfg.clone().set(chunk_size=chunk).Instantiate()
  x, weights, ids = _data()
  variables = _init(whole, x, weights, ids)

  def results(layer):
    def loss(variables, x):
      out = layer.apply(variables, x, weights, ids)
      return out.avg_xent, out

    return running.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(
      variables, x
    )

  (gradients, out), (want, same) = results(chunked), results(whole)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), gradients, want
  )
  assert out.pop('logits') is None and out.pop('log_probs') is None
  for name in out:
    np.testing.assert_allclose(out[name], same[name], atol=1e-6)


@pytest.mark.parametrize(
  ('cls', 'prob'),
  nightly.except_for(
    [(es.FullSoftmax, 0.0), (es.GShardSharedEmbeddingSoftmax, 0.1)],
    itertools.product(
      (es.FullSoftmax, es.GShardSharedEmbeddingSoftmax), (0.0, 0.1)
    ),
  ),
)
def test_ids_outside_the_classes_have_the_loss_of_the_smoothing(cls, prob):
  layer = _config(cls, label_smoothing_prob=prob).Instantiate()
  x, weights, ids = _data()
  variables = _init(layer, x, weights, ids)
  out = _run(layer, variables, x, weights, jnp.full_like(ids, _V))
  count = _V if cls is es.GShardSharedEmbeddingSoftmax else _V - 1
  log_probs = jax.nn.log_softmax(_logits(cls, variables, x))
  np.testing.assert_allclose(
    out.per_example_xent, -log_probs.sum(-1) * prob / count, atol=1e-5
  )


def test_gshard_weighs_its_mean_loss():
  config = _config(es.GShardSharedEmbeddingSoftmax, label_smoothing_prob=0.1)
  layer = config.Instantiate()
  x, weights, ids = _data()
  variables = _init(layer, x, weights, ids)
  out, updated = layer.apply(
    variables, x, weights, ids, mutable=[base_layer.SUMMARIES]
  )
  np.testing.assert_allclose(out.avg_xent_weight, weights.size)
  plain = config.clone().set(label_smoothing_prob=0.0).Instantiate()
  np.testing.assert_allclose(
    updated[base_layer.SUMMARIES]['avg_xent_prior_to_label_smoothing_scalar'],
    plain.apply(variables, x, weights, ids).avg_xent,
    rtol=1e-6,
  )


def test_gshard_smooths_distributions_and_gives_them_no_gradient():
  cls = es.GShardSharedEmbeddingSoftmax
  layer = _config(cls, label_smoothing_prob=0.1).Instantiate()
  x, weights, ids = _data()
  variables = _init(layer, x, weights, ids)
  probs = jax.nn.one_hot(ids[..., 0], _V)

  def run(probs):
    return layer.apply(
      variables,
      x,
      weights,
      class_probabilities=probs,
      mutable=[base_layer.SUMMARIES],
    )

  smoothed, updated = run(probs)
  of_ids, updated_of_ids = layer.apply(
    variables, x, weights, ids, mutable=[base_layer.SUMMARIES]
  )
  np.testing.assert_allclose(
    smoothed.per_example_xent, of_ids.per_example_xent, rtol=1e-5
  )
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-5),
    updated,
    updated_of_ids,
  )
  gradient = jax.grad(lambda probs: run(probs)[0].avg_xent)(probs)
  np.testing.assert_array_equal(gradient, 0.0)


def test_chunks_keep_the_logits_small():
  layer = _config(es.FullSoftmax, chunk_size=2).Instantiate()
  x, weights, ids = _data()
  variables = _init(layer, x, weights, ids)
  jaxpr = jax.make_jaxpr(
    jax.grad(lambda v: layer.apply(v, x, weights, ids).avg_xent)
  )(variables)
  assert f'[{_B},2,{_V}]' in str(jaxpr)
  assert f'[{_B},{_T},{_V}]' not in str(jaxpr)


def test_scale_before_logits():
  cfg = _config(es.FullSoftmax)
  x, weights, ids = _data()
  layer = cfg.Instantiate()
  variables = _init(layer, x, weights, ids)
  scaled = cfg.clone().set(scale_before_logits=True).Instantiate()
  np.testing.assert_allclose(
    _run(scaled, variables, 2 * x, method='get_logits'),
    _run(layer, variables, x, method='get_logits'),
    atol=1e-5,
  )


@pytest.mark.parametrize(
  ('cls', 'implementation'),
  nightly.except_for(
    [
      (es.FullSoftmax, 'reference'),
      (es.NClassMajorSharedEmbeddingSoftmax, 'xla'),
    ],
    itertools.product(
      (es.FullSoftmax, es.NClassMajorSharedEmbeddingSoftmax),
      ('xla', 'reference'),
    ),
  ),
)
def test_input_scale(cls, implementation):
  cfg = _config(cls, xent_implementation=implementation)
  x, weights, ids = _data()
  layer = cfg.Instantiate()
  variables = _init(layer, x, weights, ids)
  scaled = cfg.clone().set(input_scale=0.25).Instantiate()
  np.testing.assert_allclose(
    _run(scaled, variables, x, weights, ids).per_example_xent,
    _run(layer, variables, 0.25 * x, weights, ids).per_example_xent,
    atol=1e-5,
  )
  got = _run(scaled, variables, x, method='get_logits')
  want = _run(layer, variables, 0.25 * x, method='get_logits')
  np.testing.assert_allclose(got, want, atol=1e-5)


def test_bfloat16_inputs_have_float32_losses():
  x, weights, ids = _data(jnp.bfloat16)
  layer = _config(es.FullSoftmax, fprop_dtype=jnp.bfloat16).Instantiate()
  variables = _init(layer, x, weights, ids)
  out = _run(layer, variables, x, weights.astype(jnp.bfloat16), ids)
  for name in ('logits', 'log_probs', 'per_example_xent', 'avg_xent'):
    assert out[name].dtype == jnp.float32, name
  rounded = jax.tree.map(lambda v: v.astype(jnp.bfloat16), variables)
  logits = _logits(es.FullSoftmax, rounded, x)
  np.testing.assert_allclose(out.logits, logits, atol=0.05)
  np.testing.assert_allclose(
    out.per_example_xent, _xent(np.asarray(out.logits), ids), atol=1e-5
  )


@pytest.mark.parametrize('style', ['index', 'matmul'])
@pytest.mark.parametrize('cls', _TABLES)
def test_shared_tables_embed(cls, style):
  layer = _config(
    cls, lookup_style=style, scale_sqrt_depth=True, embedding_scale=1.5
  ).Instantiate()
  x, weights, ids = _data()
  variables = _init(layer, x, weights, ids)
  y = _run(layer, variables, ids[..., 0], method='emb_lookup')
  params = variables['params']
  if cls is es.SharedEmbeddingSoftmax:
    table = np.asarray(params['logits_ffn']['linear']['w']).T
  else:
    table = np.asarray(params['w'])
  np.testing.assert_allclose(
    y, table[np.asarray(ids)[..., 0]] * 1.5 * _D**0.5, atol=1e-5
  )
  step = _run(
    layer,
    variables,
    ids[:, 0, 0],
    time_step=jnp.asarray(0),
    method='extend_step',
  )
  np.testing.assert_allclose(step, y[:, 0], atol=1e-6)


def test_class_major_activation():
  cfg = _config(
    es.NClassMajorSharedEmbeddingSoftmax,
    activation_tpl=pax_fiddle.Config(activations.Tanh),
  )
  layer = cfg.Instantiate()
  x, weights, ids = _data()
  variables = _init(layer, x, weights, ids)
  np.testing.assert_allclose(
    _run(layer, variables, x, method='get_logits'),
    np.tanh(_logits(es.NClassMajorSharedEmbeddingSoftmax, variables, x)),
    atol=1e-5,
  )


@pytest.mark.parametrize('by_size', [True, False])
def test_gshard(by_size):
  cls = es.GShardSharedEmbeddingSoftmax
  layer = _config(
    cls,
    use_tgt_labels_size_as_loss_denominator=by_size,
    logits_abs_max=1.5,
    label_smoothing_prob=0.2,
    z_loss_weight=0.1,
  ).Instantiate()
  x, weights, ids = _data()
  variables = _init(layer, x, weights, ids)
  out, aux = _apply(layer, variables, x, weights, ids)
  logits = np.clip(_logits(cls, variables, x), -1.5, 1.5)
  off = 0.2 / _V
  xent = _xent(logits, ids, on=0.8 + off, off=off)
  w = np.asarray(weights)[..., 0]
  denominator = w.size if by_size else w.sum()
  log_z = np.log(np.exp(logits).sum(-1))
  np.testing.assert_allclose(out.logits, logits, atol=1e-5)
  np.testing.assert_allclose(out.per_example_xent, xent, atol=1e-5)
  np.testing.assert_allclose(
    out.avg_xent, (xent * w).sum() / denominator, rtol=1e-5
  )
  np.testing.assert_allclose(
    out.z_loss, 0.1 * (log_z**2 * w).sum() / denominator, rtol=1e-5
  )
  assert len(jax.tree.leaves(aux)) == 2
  evaluated, _ = _apply(layer, variables, x, weights, ids, do_eval=True)
  np.testing.assert_allclose(
    evaluated.per_example_xent, _xent(logits, ids), atol=1e-5
  )
  y = _run(layer, variables, ids[..., 0], method='emb_lookup')
  table = np.asarray(variables['params']['embedding']['w'])
  np.testing.assert_allclose(y, table[np.asarray(ids)[..., 0]], atol=1e-5)


def test_sigmoid_cross_entropy():
  layer = _config(es.SigmoidCrossEntropy).Instantiate()
  x, weights, ids = _data()
  variables = _init(layer, x, weights, ids)
  probs = jnp.asarray(
    np.random.default_rng(8).random((_B, _T, _V)), jnp.float32
  )
  out = _run(layer, variables, x, weights, class_probabilities=probs)
  logits = _logits(es.FullSoftmax, variables, x)
  p, q = np.asarray(probs, np.float64), 1 / (1 + np.exp(-logits))
  xent = -(p * np.log(q) + (1 - p) * np.log(1 - q))
  w = np.asarray(weights)
  np.testing.assert_allclose(out.log_probs, np.log(q), atol=1e-5)
  np.testing.assert_allclose(out.per_example_xent, xent.sum(-1), atol=1e-4)
  np.testing.assert_allclose(
    out.avg_xent, (xent * w).sum() / w.sum(), rtol=1e-5
  )
  by_class = jnp.broadcast_to(weights, (_B, _T, _V))
  out = _run(layer, variables, x, by_class, ids)
  assert 'accuracy' in out
  np.testing.assert_allclose(out.total_weight, w.sum() * _V)


def test_sigmoid_errors():
  x, weights, ids = _data()
  one = es.SigmoidCrossEntropy.config(input_dims=_D, num_classes=1)
  with pytest.raises(ValueError, match='class_ids must be None'):
    one.Instantiate().init(jax.random.key(0), x, weights, ids)
  no_ffn = _config(es.SigmoidCrossEntropy, feed_forward_tpl=None)
  with pytest.raises(ValueError, match='must be num_classes 9, got 4'):
    no_ffn.Instantiate().init(jax.random.key(0), x, weights, ids)


@pytest.mark.parametrize(
  'cls',
  [
    es.FullSoftmax,
    es.GShardSharedEmbeddingSoftmax,
    es.SigmoidCrossEntropy,
  ],
)
def test_labels_that_would_be_broadcast_are_refused(cls, monkeypatch):
  # The annotations are checked in tests only.
  monkeypatch.setattr(jaxtyping.config, 'jaxtyping_disable', True)
  layer = _config(cls).Instantiate()
  x, weights, ids = (array[:, 0] for array in _data())
  variables = _init(layer, x, weights, ids)
  bad = {
    'class_weights': weights[:, 0],
    'class_ids': ids[:, 0],
    'class_probabilities': jnp.ones([_B, 1]),
  }
  for name, value in bad.items():
    labels = {'class_weights': weights, 'class_ids': ids, name: value}
    with pytest.raises(ValueError, match=f'{name} must have shape \\(2, '):
      layer.apply(variables, x, **labels)


@pytest.mark.parametrize(
  'cls, fields',
  [
    (es.FullSoftmax, {'label_smoothing_prob': -0.1}),
    (es.FullSoftmax, {'label_smoothing_prob': 1.5}),
    (es.FullSoftmax, {'label_smoothing_prob': 0.1, 'num_classes': 1}),
    (es.FullSoftmax, {'chunk_size': -2}),
    (_TABLES[0], {'z_loss_weight': -1.0}),
    (_TABLES[1], {'label_smoothing_prob': 1.0}),
    (es.GShardSharedEmbeddingSoftmax, {'label_smoothing_prob': -0.1}),
    (es.GShardSharedEmbeddingSoftmax, {'logits_abs_max': -1.0}),
  ],
)
def test_options_that_give_a_wrong_loss_are_refused(cls, fields):
  layer = _config(cls).set(**fields).Instantiate()
  message = f'{next(iter(fields))} of {cls.__name__} .* must'
  with pytest.raises(ValueError, match=message):
    layer.init(jax.random.key(0), *_data())


def test_bi_tempered_loss_at_temperature_one_is_the_cross_entropy():
  loss = pax_fiddle.Config(losses.BiTemperedLoss)
  layer = _config(es.FullSoftmax, bi_tempered_loss_tpl=loss).Instantiate()
  plain = _config(es.FullSoftmax).Instantiate()
  x, weights, ids = _data()
  variables = _init(layer, x, weights, ids)
  got = _run(layer, variables, x, weights, ids)
  want = _run(plain, {'params': variables['params']}, x, weights, ids)
  np.testing.assert_allclose(
    got.per_example_xent, want.per_example_xent, atol=1e-5
  )


def test_bi_tempered_loss_replaces_the_cross_entropy():
  class Hinge(base_layer.BaseLayer):
    def __call__(self, logits, labels):
      return jnp.max(logits, -1) - jnp.sum(logits * labels, -1)

  layer = _config(
    es.FullSoftmax,
    bi_tempered_loss_tpl=pax_fiddle.Config(Hinge),
    label_smoothing_prob=0.1,
  ).Instantiate()
  x, weights, ids = _data()
  variables = _init(layer, x, weights, ids)
  out = _run(layer, variables, x, weights, ids)
  logits = _logits(es.FullSoftmax, variables, x)
  target = np.full(logits.shape, 0.1 / (_V - 1))
  np.put_along_axis(target, np.asarray(ids), 0.9, axis=-1)
  want = logits.max(-1) - (logits * target).sum(-1)
  np.testing.assert_allclose(out.per_example_xent, want, atol=1e-5)


def test_gradients():
  layer = _config(
    es.FullSoftmax,
    soft_cap_logits=4.0,
    label_smoothing_prob=0.1,
    z_loss_weight=0.05,
  ).Instantiate()
  x, weights, ids = _data()
  variables = _init(layer, x, weights, ids)

  @jax.jit
  def loss(variables, x):
    out = layer.apply(variables, x, weights, ids)
    return out.avg_xent + out.z_loss

  check_grads(loss, (variables, x), order=1, modes=['rev'], rtol=2e-2)
