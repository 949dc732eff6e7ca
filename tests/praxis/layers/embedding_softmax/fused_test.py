# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The fused cross entropy is the ordinary one, without logits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.kernels import softmax_xent
from praxis.layers import activations, linears, models
from praxis.layers import embedding_softmax as es
from praxis.nested_map import NestedMap
from tests.praxis.layers import running
from tests.testing.layers import random_variables

_B, _T, _D, _V = 2, 5, 8, 19
_CLASSES = [es.FullSoftmax, es.NClassMajorSharedEmbeddingSoftmax]


def _data():
  numbers = np.random.default_rng(3)
  x = running.normal(_B, _T, _D)
  ids = jnp.asarray(numbers.integers(_V, size=(_B, _T, 1)))
  weights = jnp.asarray(numbers.random((_B, _T, 1)) > 0.3, jnp.float32)
  return x, weights, ids


def _config(cls, **fields):
  return cls.config(
    name='softmax',
    input_dims=_D,
    num_classes=_V,
    soft_cap_logits=5.0,
    label_smoothing_prob=0.1,
    z_loss_weight=0.05,
    scale_before_logits=True,
  ).set(**fields)


def _loss_and_outputs(cfg, variables, x, weights, ids):
  layer = cfg.Instantiate()

  def loss(variables, x):
    out, aux = layer.apply(
      variables, x, weights, ids, mutable=[base_layer.AUX_LOSS]
    )
    (struct,) = jax.tree.leaves(
      aux, is_leaf=lambda x: isinstance(x, base_layer.AuxLossStruct)
    )
    return out.avg_xent + struct.value, out

  run = running.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
  (value, out), grads = run(variables, x)
  return value, grads, out


@pytest.mark.parametrize('cls', _CLASSES)
def test_losses_and_gradients(cls):
  x, weights, ids = _data()
  cfg = _config(cls)
  variables = random_variables(cfg.Instantiate(), x, weights, ids, scale=1.0)
  want = _loss_and_outputs(cfg, variables, x, weights, ids)
  fused = cfg.clone().set(xent_implementation='reference')
  got = _loss_and_outputs(fused, variables, x, weights, ids)
  close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
  jax.tree.map(close, got[:2], want[:2])
  assert 'logits' not in got[2] and 'log_probs' not in got[2]
  assert set(want[2]) - set(got[2]) == {'logits', 'log_probs'}
  for name in got[2]:
    close(got[2][name], want[2][name])


def test_ids_outside_the_classes_add_nothing_to_the_loss():
  x, weights, ids = _data()
  ids = ids.at[0, 0].set(-1).at[0, 1].set(_V).at[1, 0].set(-100)
  weights = jnp.ones_like(weights)
  cfg = _config(es.FullSoftmax, xent_implementation='reference')
  layer = cfg.Instantiate()
  variables = random_variables(layer, x, weights, ids, scale=1.0)
  run = running.compiled(layer)
  out = run(variables, x, weights, ids)
  total = jnp.sum(out.per_example_xent)
  np.testing.assert_allclose(out.total_xent, total, rtol=1e-5)
  np.testing.assert_allclose(out.avg_xent, total / _B / _T, rtol=1e-5)
  is_class = (ids >= 0) & (ids < _V)
  expected = run(variables, x, weights * is_class, ids)
  np.testing.assert_allclose(out.total_xent, expected.total_xent, rtol=1e-5)
  # With logits they add the smoothing, as upstream, unless their weight is 0.
  xla = cfg.clone().set(xent_implementation='xla').Instantiate()
  run = running.compiled(xla)
  smoothed = run(variables, x, weights, ids)
  assert (smoothed.per_example_xent[~is_class[..., 0]] > 0).all()
  same = run(variables, x, weights * is_class, ids)
  np.testing.assert_allclose(same.total_xent, out.total_xent, rtol=1e-5)


def test_losses_by_token_have_gradients():
  x, weights, ids = _data()
  cfg = _config(es.FullSoftmax)
  variables = random_variables(cfg.Instantiate(), x, weights, ids, scale=1.0)
  weight = running.normal(_B, _T)

  def grad(implementation):
    layer = cfg.clone().set(xent_implementation=implementation).Instantiate()
    loss = lambda variables: jnp.sum(
      weight * layer.apply(variables, x, weights, ids).per_example_xent
    )
    return running.jit(jax.grad(loss))(variables)

  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
    grad('reference'),
    grad('xla'),
  )


@pytest.mark.parametrize('is_fast, mdl', [(True, 1), (True, 2), (False, 1)])
def test_auto_is_fused_where_that_is_faster(monkeypatch, is_fast, mdl):
  monkeypatch.setattr(softmax_xent, 'prefers_native', lambda _: is_fast)
  cfg = _config(
    es.FullSoftmax,
    xent_implementation='auto',
    ici_mesh_shape=[2, mdl],
    mesh_axis_names=['data', 'mdl'],
  )
  cfg.weight_split_dims_mapping.wt = ['data', 'mdl']
  layer = cfg.Instantiate()
  variables = random_variables(layer, *_data())
  out = jax.eval_shape(layer.apply, variables, *_data())
  assert ('logits' not in out) == (is_fast and mdl == 1)


@pytest.mark.parametrize('smoothing, axes', [(0.0, ('mdl',)), (0.1, ())])
def test_sharded_classes_stay_sharded(monkeypatch, smoothing, axes):
  kernel, calls = softmax_xent.softmax_xent, []
  monkeypatch.setattr(
    softmax_xent,
    'softmax_xent',
    lambda *args: calls.append(args[-1].class_axes) or kernel(*args),
  )
  cfg = _config(
    es.FullSoftmax,
    xent_implementation='reference',
    num_classes=20,
    label_smoothing_prob=smoothing,
    ici_mesh_shape=[1, 2],
    mesh_axis_names=['data', 'mdl'],
  )
  cfg.weight_split_dims_mapping.wt = ['data', 'mdl']
  layer = cfg.Instantiate()
  variables = random_variables(layer, *_data())
  want = running.jit(layer.apply)(variables, *_data())
  axis_types = (jax.sharding.AxisType.Auto,) * 2
  with jax.set_mesh(jax.make_mesh((1, 2), ('data', 'mdl'), axis_types)):
    got = running.jit(layer.apply)(variables, *_data())
  assert calls == [(), axes]
  np.testing.assert_allclose(got.total_xent, want.total_xent, rtol=1e-5)


def test_distributions_take_the_ordinary_path():
  x, weights, ids = _data()
  cfg = _config(es.FullSoftmax, xent_implementation='reference')
  layer = cfg.Instantiate()
  variables = random_variables(layer, x, weights, ids)
  probs = jnp.full((_B, _T, _V), 1 / _V)
  out = running.jit(layer.apply)(
    variables, x, weights, class_probabilities=probs
  )
  assert out.logits.shape == (_B, _T, _V)


def test_a_language_model_keeps_its_metrics():
  cfg = models.LanguageModel.config(name='model')
  cfg.lm_tpl.set(model_dims=_D, vocab_size=_V)
  cfg.lm_tpl.stacked_transformer_tpl.set(
    num_layers=1, hidden_dims=16, num_heads=2
  )
  ids = _data()[2][..., 0]
  batch = NestedMap(
    ids=ids,
    labels=ids[:, ::-1],
    weights=jnp.ones((_B, _T)),
    paddings=jnp.zeros((_B, _T)),
  )
  variables = random_variables(cfg.Instantiate(), batch)
  want = running.jit(cfg.Instantiate().apply)(variables, batch)
  cfg.lm_tpl.softmax_tpl.xent_implementation = 'reference'
  cfg.lm_tpl.record_logits_in_xent_output = True
  cfg.return_predictions = True
  metrics, predictions = running.jit(cfg.Instantiate().apply)(variables, batch)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), metrics, want[0]
  )
  assert predictions.logits.shape == (_B, _T, _V)


class _Other(linears.Linear):
  pass


def _other_linear():
  cfg = _config(es.FullSoftmax)
  cfg.feed_forward_tpl.linear_tpl = _Other.config()
  return cfg


def _other_activation():
  tanh = activations.Tanh.config()
  return _config(es.NClassMajorSharedEmbeddingSoftmax, activation_tpl=tanh)


@pytest.mark.parametrize(
  'cfg',
  [
    _other_linear(),
    _other_activation(),
    _config(es.FullSoftmax, feed_forward_tpl=None, input_dims=_V),
  ],
  ids=['linear', 'activation', 'none'],
)
def test_what_is_no_plain_product_is_not_replaced(monkeypatch, cfg):
  monkeypatch.setattr(softmax_xent, 'prefers_native', lambda _: True)
  _, weights, ids = _data()
  x = jnp.ones((_B, _T, cfg.input_dims))
  variables = random_variables(cfg.Instantiate(), x, weights, ids)
  auto = cfg.clone().set(xent_implementation='auto').Instantiate()
  assert 'logits' in jax.eval_shape(auto.apply, variables, x, weights, ids)
  fused = cfg.clone().set(xent_implementation='reference').Instantiate()
  with pytest.raises(ValueError, match='one product with a table'):
    fused.apply(variables, x, weights, ids)


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'xent_implementation': 'fast'}, "must be one of .* got 'fast'"),
    (
      {'bi_tempered_loss_tpl': linears.Bias.config()},
      'does not support bi_tempered_loss_tpl',
    ),
  ],
)
def test_settings_that_do_not_go_together(fields, message):
  cfg = _config(es.FullSoftmax, **{'xent_implementation': 'native'} | fields)
  with pytest.raises(ValueError, match=message):
    cfg.Instantiate().abstract_init_with_metadata(*_data())
