# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Feed-forward and transformer blocks: residuals, norms, gates, padding."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import (
  activations,
  attentions,
  normalizations,
  transformers,
)
from tests.praxis.layers import running
from tests.testing import nightly, numpy_layers

_B, _T, _D, _F, _N = 2, 4, 6, 8, 2
_POLICIES = ['pre', 'post', 'post_skip', 'primer_hybrid']


def _feed_forward(**kwargs):
  return transformers.TransformerFeedForward.config(
    input_dims=_D, hidden_dims=_F, **kwargs
  )


def _linear(x, p):
  y = x @ p['linear']['w']
  return y + p['bias']['b'] if 'bias' in p else y


def _around(policy, f, x, p, prefix=''):
  """x + f(x) with the norms where the policy has them."""
  name = f'{prefix}layer_norm'
  if policy == 'pre':
    return x + f(numpy_layers.layer_norm(x, p[name]))
  if policy == 'post':
    return x + numpy_layers.layer_norm(f(x), p[name])
  if policy == 'post_skip':
    return numpy_layers.layer_norm(x + f(x), p[name])
  return x + numpy_layers.layer_norm(
    f(numpy_layers.layer_norm(x, p[f'pre_{name}'])), p[f'post_{name}']
  )


def _numbers(tree):
  return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


@pytest.mark.parametrize(
  ('policy', 'gated'),
  nightly.except_for(
    [(policy, bool(i % 2)) for i, policy in enumerate(_POLICIES)],
    itertools.product(_POLICIES, (False, True)),
  ),
)
def test_feed_forward(policy, gated):
  config = _feed_forward(
    norm_policy=policy,
    use_gated_activation=gated,
    activation_tpl=pax_fiddle.Config(activations.SiLU),
    has_bias=not gated,
  )
  x = running.normal(_B, _T, _D)
  layer, variables = running.build(config, x)
  p = _numbers(variables['params'])

  def block(x):
    hidden = _linear(x, p['ffn_layer1'])
    gate = _linear(x, p['ffn_layer1_gate']) if gated else hidden
    hidden = gate / (1 + np.exp(-gate)) * (hidden if gated else 1)
    return _linear(hidden, p['ffn_layer2'])

  want = _around(policy, block, np.asarray(x, np.float64), p)
  got = running.run(layer, variables, x)
  np.testing.assert_allclose(got, want, atol=1e-5)
  step = running.run(layer, variables, x[:, 1], method='extend_step')
  np.testing.assert_allclose(step, want[:, 1], atol=1e-5)


def test_outputs_of_feed_forward_layers_have_a_gate():
  config = _feed_forward(
    use_output_gate=True,
    add_skip_connection=False,
    activation_tpl=pax_fiddle.Config(activations.Identity),
    ln_tpl=pax_fiddle.Config(normalizations.IdentityNorm),
  )
  x = running.normal(_B, _T, _D)
  layer, variables = running.build(config, x)
  p = _numbers(variables['params'])
  gate = p['output_gate']['linear']['w']
  assert gate.shape == (_D, 1) and 'bias' not in p['output_gate']
  numbers = np.asarray(x, np.float64)
  want = _linear(_linear(numbers, p['ffn_layer1']), p['ffn_layer2'])
  want /= 1 + np.exp(-numbers @ gate)
  got = running.run(layer, variables, x)
  np.testing.assert_allclose(got, want, atol=1e-5)


class _DoubledFeedForward(transformers.TransformerFeedForward):
  """Doubles the transformation; paddings have the axis of the model."""

  def _compute_ffns(self, inputs, paddings, ap_ff0=None):
    assert self._is_ffn1_gated and paddings.shape == (_B, _T, 1)
    return 2 * super()._compute_ffns(inputs, paddings, ap_ff0)


def test_subclasses_override_the_transformation_of_the_feed_forward():
  fields = {'input_dims': _D, 'hidden_dims': _F, 'use_gated_activation': True}
  x, paddings = running.normal(_B, _T, _D), jnp.zeros((_B, _T))
  config = transformers.TransformerFeedForward.config(**fields)
  layer, variables = running.build(config, x, paddings)
  doubled = _DoubledFeedForward.config(**fields).Instantiate()
  want = x + 2 * (running.run(layer, variables, x, paddings) - x)
  got = running.run(doubled, variables, x, paddings)
  np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize('first', [False, True])
def test_padding_of_a_feed_forward(first):
  x = running.normal(_B, _T, _D)
  paddings = jnp.array([[0.0, 0, 1, 1], [0, 0, 0, 0]])
  config = _feed_forward(apply_padding_first=first)
  layer, variables = running.build(config, x)
  got = running.run(layer, variables, x, paddings)
  visible = 1 - np.asarray(paddings)[..., None]
  if first:
    want = running.run(layer, variables, x * visible)
  else:
    want = x + (running.run(layer, variables, x) - x) * visible
  np.testing.assert_allclose(got, want, atol=1e-5)


def test_activation_rms_with_apply_padding_first_includes_the_padding():
  """Activations are masked with the outputs, or not at all."""
  x = running.normal(_B, _T, _D)
  paddings = jnp.array([[0.0, 0, 1, 1], [0, 0, 0, 0]])
  context = base_layer.JaxContext.HParams(summary_verbosity=4)

  def activation_rms(layer, variables, *args):
    with base_layer.JaxContext.new_context(hparams=context):
      _, updated = layer.apply(variables, *args, mutable=['summaries'])
    return updated['summaries']['activation_rms_scalar']

  first, variables = running.build(_feed_forward(apply_padding_first=True), x)
  last = _feed_forward(name='last').Instantiate()
  masked = x * (1 - paddings[..., None])
  want = activation_rms(last, variables, masked)
  assert activation_rms(first, variables, x, paddings) == want
  assert activation_rms(last, variables, x, paddings) < want


def test_residual_weight_and_no_skip():
  x = running.normal(_B, _T, _D)
  layer, variables = running.build(_feed_forward(), x)
  branch = running.run(layer, variables, x) - x
  for kwargs, want in [
    ({'residual_weight': 0.5}, x + 0.5 * branch),
    ({'add_skip_connection': False}, branch),
  ]:
    other = _feed_forward(name='other', **kwargs).Instantiate()
    got = running.run(other, variables, x)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_sizes_of_weights_and_their_start():
  config = _feed_forward(
    output_dims=5,
    add_skip_connection=False,
    internal_gshard_variance_scaling_fan_in_init=True,
    name='layer',
  )
  config.weight_split_dims_mapping.ffn0 = ['data', 'mdl']
  config.weight_split_dims_mapping.ffn1 = ['mdl', 'data']
  layer = config.Instantiate()
  params = layer.abstract_init_with_metadata(jnp.zeros((1, 2, _D)))['params']
  first = params['ffn_layer1']['linear']['w']
  second = params['ffn_layer2']['linear']['w']
  assert first.full_shape == (_D, _F) and second.full_shape == (_F, 5)
  assert list(first.tensor_split_dims_mapping) == ['data', 'mdl']
  assert list(second.tensor_split_dims_mapping) == ['mdl', 'data']
  assert first.init.method == second.init.method == 'uniform'
  np.testing.assert_allclose(first.init.scale, (3 / _D) ** 0.5)
  np.testing.assert_allclose(second.init.scale, (3 / _F) ** 0.5)


def test_dropouts_and_drop_path_are_for_training():
  x = running.normal(8, _T, _D)
  config = _feed_forward(
    relu_dropout_prob=0.5, residual_dropout_prob=0.5, residual_droppath_prob=0.5
  )
  layer, variables = running.build(config, x)
  rngs = {'random': jax.random.key(0)}
  trained = running.jit(lambda x: layer.apply(variables, x, rngs=rngs))(x)
  evaluated = running.run(layer, variables, x, do_eval=True)
  plain = running.run(_feed_forward(name='plain').Instantiate(), variables, x)
  np.testing.assert_allclose(evaluated, plain, atol=1e-6)
  skipped = np.all(np.asarray(trained == x), axis=(1, 2))
  assert 0 < skipped.sum() < 8


@pytest.mark.parametrize(
  'kwargs, message',
  [
    ({'norm_policy': 'both'}, "one of pre, post.*got 'both'"),
    ({'output_dims': 5}, 'output_dims must be input_dims=6'),
    ({'hidden_dims': 0}, 'needs hidden_dims > 0'),
  ],
)
def test_impossible_feed_forwards_are_refused(kwargs, message):
  config = _feed_forward().set(**kwargs)
  with pytest.raises(ValueError, match=message):
    running.build(config, running.normal(_B, _T, _D))


def _transformer(**kwargs):
  return transformers.Transformer.config(
    input_dims=_D, hidden_dims=_F, num_heads=_N, **kwargs
  )


@pytest.mark.parametrize('policy', _POLICIES)
def test_transformer_is_attention_then_feed_forward(policy):
  x = running.normal(_B, _T, _D)
  mask, paddings = attentions.causal_mask(x), jnp.zeros((_B, _T))
  config = _transformer(norm_policy=policy)
  layer, variables = running.build(config, x, paddings, mask)
  p = _numbers(variables['params'])
  attention = attentions.DotProductAttention.config(
    input_dim=_D, hidden_dim=_D, num_heads=_N, name='attention'
  ).Instantiate()

  def attend(x):
    x = jnp.asarray(x, jnp.float32)
    params = {'params': variables['params']['self_attention']}
    out, _ = running.run(attention, params, x, x, x, mask)
    return np.asarray(out, np.float64)

  def feed(x):
    hidden = np.maximum(_linear(x, p['ff_layer']['ffn_layer1']), 0)
    return _linear(hidden, p['ff_layer']['ffn_layer2'])

  attended = _around(policy, attend, np.asarray(x, np.float64), p)
  want = _around(policy, feed, attended, p['ff_layer'])
  got, probs = running.run(layer, variables, x, paddings, mask)
  np.testing.assert_allclose(got, want, atol=2e-5)
  assert probs.self_atten.shape == (_B, _N, _T, _T)


@pytest.mark.parametrize('prob', [0.5, *nightly.cases(0.0)])
def test_a_factor_of_the_attention_outputs(prob):
  x = running.normal(_B, _T, _D)
  mask, paddings = attentions.causal_mask(x), jnp.zeros((_B, _T))
  feed_forward = pax_fiddle.Config(
    transformers.TransformerFeedForward, residual_weight=0.0
  )
  config = _transformer(tr_fflayer_tpl=feed_forward)
  layer, variables = running.build(config, x, paddings, mask)
  branch = running.run(layer, variables, x, paddings, mask)[0] - x
  scaled = config.set(
    name='scaled', atten_residual_weight=0.5, residual_droppath_prob=prob
  ).Instantiate()
  got, _ = running.run(scaled, variables, x, paddings, mask, do_eval=True)
  np.testing.assert_allclose(got, x + 0.5 * branch, atol=1e-5)
  assert np.abs(branch).max() > 0.01


def test_outputs_are_scaled_by_a_variable_without_a_gradient():
  x = running.normal(_B, _T, _D)
  mask, paddings = attentions.causal_mask(x), jnp.zeros((_B, _T))
  config = _transformer(use_output_scale=True)
  layer, variables = running.build(config, x, paddings, mask)
  assert set(variables['non_trainable']) == {'output_scale'}
  plain = _transformer().set(name='plain').Instantiate()
  params = {'params': variables['params']}
  scale = variables['non_trainable']['output_scale']

  def whole_and_step(layer, variables):
    apply = functools.partial(layer.apply, mutable=[base_layer.DECODE_CACHE])

    @running.jit
    def run(variables):
      (whole, _), cache = apply(variables, x, paddings, mask)
      step, _ = apply(
        {**variables, **cache},
        x[:, 2],
        time_step=2,
        attention_mask=mask[:, :, 2],
        method='extend_step',
      )
      return whole, step

    return run(variables)

  for got, want in zip(
    whole_and_step(layer, variables), whole_and_step(plain, params), strict=True
  ):
    np.testing.assert_allclose(got, want * scale, rtol=1e-6)


def test_variables_of_a_transformer():
  x = running.normal(_B, _T, _D)
  config = _transformer(use_cross_attention=True)
  _, variables = running.build(
    config, x, None, attentions.causal_mask(x), x, attentions.causal_mask(x)
  )
  assert set(variables['params']) == {
    'layer_norm',
    'self_attention',
    'cross_layer_norm',
    'cross_attention',
    'ff_layer',
  }
  assert set(variables['params']['ff_layer']) == {
    'layer_norm',
    'ffn_layer1',
    'ffn_layer2',
  }


def test_cross_attention_sees_the_other_sequence():
  x, source = running.normal(_B, _T, _D), running.normal(_B, 3, _D, seed=1)
  mask = attentions.causal_mask(x)
  cross = attentions.convert_paddings_to_mask(jnp.array([[0, 0, 1], [0, 0, 0]]))
  config = _transformer(
    use_cross_attention=True,
    tr_atten_tpl=pax_fiddle.Config(
      attentions.DotProductAttention, combine_qkv=True
    ),
  )
  layer, variables = running.build(config, x, None, mask, source, cross)

  def first(source):
    outputs, probs = layer.apply(variables, x, None, mask, source, cross)
    assert probs.cross_atten.shape == (_B, _N, _T, 3)
    return outputs[0].sum()

  gradient = running.jit(jax.grad(first))(source)
  assert np.all(np.asarray(gradient[0, :2]) != 0)
  np.testing.assert_array_equal(gradient[0, 2], 0)
  with pytest.raises(ValueError, match='needs cross_inputs'):
    layer.apply(variables, x, None, mask)


def test_cross_attention_may_be_skipped_where_allowed():
  x = running.normal(_B, _T, _D)
  mask = attentions.causal_mask(x)
  config = _transformer(
    use_cross_attention=True, allow_skip_cross_attention=True
  )
  layer, variables = running.build(config, x, None, mask, x, mask)
  plain = _transformer(name='plain').Instantiate()
  got, _ = running.run(layer, variables, x, None, mask)
  want, _ = running.run(plain, variables, x, None, mask)
  np.testing.assert_allclose(got, want, atol=1e-6)


def _rms(x):
  return np.sqrt(np.mean(np.square(x)))


def _cosine(x, y):
  sizes = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
  return np.mean(np.sum(x * y, -1) / sizes)


def test_summaries_of_a_transformer():
  x = running.normal(_B, _T, _D)
  mask = attentions.causal_mask(x)
  paddings = jnp.array([[0.0, 0, 1, 1], [0, 0, 0, 0]])
  layer, variables = running.build(_transformer(), x, paddings, mask)
  context = base_layer.JaxContext.HParams(summary_verbosity=4)

  @running.jit
  def apply(variables):
    with base_layer.JaxContext.new_context(hparams=context):
      return layer.apply(variables, x, paddings, mask, mutable=['summaries'])

  (outputs, _), updates = apply(variables)
  got = {
    name.removesuffix('_scalar'): value
    for name, value in updates['summaries'].items()
    if not isinstance(value, dict)
  }
  seen = np.asarray(x, np.float64)[np.asarray(paddings) == 0]
  normed = numpy_layers.layer_norm(
    np.asarray(x, np.float64), _numbers(variables['params']['layer_norm'])
  )
  normed = jnp.asarray(normed, jnp.float32)
  attention = attentions.DotProductAttention.config(
    input_dim=_D, hidden_dim=_D, num_heads=_N, name='attention'
  ).Instantiate()
  params = {'params': variables['params']['self_attention']}
  branch, _ = running.run(attention, params, *[normed] * 3, mask)
  attended = np.asarray(x + branch, np.float64)
  want = {
    'xformer_input_mean': seen.mean(),
    'xformer_input_std': seen.std(),
    'xformer_input_abs_max': np.abs(seen).max(),
    'attention_input_rms': _rms(x),
    'attention_output_rms': _rms(branch),
    'attention_output_norm_rms': _rms(branch),
    'attention_output_rel_cos': _cosine(np.asarray(x), attended),
  }
  assert set(got) == set(want)
  for name, value in want.items():
    np.testing.assert_allclose(got[name], value, rtol=1e-5, err_msg=name)
  feed = updates['summaries']['ff_layer']
  np.testing.assert_allclose(
    feed['output_rel_cos_scalar'],
    _cosine(attended, np.asarray(outputs)),
    rtol=1e-5,
  )
