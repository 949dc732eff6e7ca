# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Norms of layers equal those of vmap over examples."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax import ghostnorm
from pax.ghostnorm import linears as ghost_linears
from praxis import base_layer, pax_fiddle
from praxis.layers import (
  attentions,
  embedding_softmax,
  linears,
  normalizations,
)
from tests.pax.ghostnorm import examples

Config = pax_fiddle.Config


def _normal(*shape):
  rng = np.random.default_rng(1)
  return jnp.asarray(rng.normal(size=shape), jnp.float32)


@pytest.mark.parametrize(
  # A short sequence multiplies inputs and gradients each by themselves.
  'shape',
  [(3, 4), (3, 2, 4), (3, 6, 4), (2, 2, 3, 4)],
)
def test_linear(shape):
  fields = dict(name='linear', input_dims=4, output_dims=5)
  examples.check(
    Config(ghostnorm.LinearGhostNorm, **fields),
    (_normal(*shape),),
    Config(linears.Linear, **fields),
  )


@pytest.mark.parametrize('shape', [(3, 4), (3, 2, 4)])
def test_bias(shape):
  fields = dict(name='bias', dims=4)
  examples.check(
    Config(ghostnorm.BiasGhostNorm, **fields),
    (_normal(*shape),),
    Config(linears.Bias, **fields),
  )
  np.testing.assert_array_equal(
    ghost_linears.bias_add(jnp.ones([2, 3]), jnp.arange(3.0)),
    [[1.0, 2.0, 3.0]] * 2,
  )


@pytest.mark.parametrize('scales', [None, [1.0, 0.5]])
def test_the_two_passes_of_a_bias(scales):
  inputs, bias, g = _normal(2, 3, 4), _normal(4), _normal(2, 3, 4)
  given = bias
  if scales is not None:
    given = ghostnorm.ParamWithAux(bias, jnp.array(scales))
  outputs, res = ghost_linears.bias_add_fwd(inputs, given)
  np.testing.assert_array_equal(outputs, inputs + bias)
  to_inputs, to_bias = ghost_linears.bias_add_bwd(res, g)
  np.testing.assert_array_equal(to_inputs, g)
  by_example = np.asarray(g).sum(axis=1) * np.array(scales or [1, 1])[:, None]
  if scales is None:
    np.testing.assert_allclose(to_bias, by_example.sum(axis=0), rtol=1e-5)
    return
  np.testing.assert_allclose(to_bias.param, by_example.sum(axis=0), rtol=1e-5)
  squares = np.square(2 * by_example).sum(axis=1)
  np.testing.assert_allclose(to_bias.aux, squares, rtol=1e-5)


@pytest.mark.parametrize('style', ['index', 'matmul'])
@pytest.mark.parametrize(
  # Negative ids are rows from the end or, below -5, none, as 6 is.
  'ids',
  [[[1, 1, 4], [0, 2, 1]], [[4, -1, 4], [0, -4, 1]], [[1, -6, 6], [0, 2, 2]]],
)
def test_embedding(style, ids):
  ids = jnp.array(ids)
  fields = dict(name='emb', num_classes=5, input_dims=3, lookup_style=style)
  examples.check(
    Config(ghostnorm.EmbeddingGhostNorm, scale_sqrt_depth=True, **fields),
    (ids,),
    Config(embedding_softmax.Embedding, scale_sqrt_depth=True, **fields),
  )


def test_embedding_in_the_shape_of_a_softmax():
  ids = jnp.array([[1, 1, 4], [0, 2, 1]])
  config = Config(
    ghostnorm.EmbeddingGhostNorm,
    name='emb',
    num_classes=5,
    input_dims=3,
    use_softmax_shared_embedding_shape_weights=True,
  )
  table = _normal(3, 5)
  got = config.Instantiate().apply({'params': {'emb_var': table}}, ids)
  np.testing.assert_array_equal(got, table.T[ids])
  examples.check(config, (ids,))


def test_a_wrapped_layer():
  norm = Config(normalizations.LayerNorm, name='ln', dim=4)
  wrapped = ghostnorm.generate_wrapped_template(norm.clone())
  assert isinstance(wrapped, ghostnorm.GhostNormPaxConfig)
  assert wrapped.dim == 4
  examples.check(wrapped, (_normal(3, 2, 4),), norm)


@pytest.mark.parametrize('frozen', ['bias', 'scale'])
def test_a_partly_frozen_layer(frozen):
  norm = Config(normalizations.LayerNorm, name='ln', dim=4)
  layer = ghostnorm.generate_wrapped_template(norm).Instantiate()
  inputs, scales = _normal(4, 2, 4), jnp.linspace(0.5, 1.5, 4)
  params = layer.init(jax.random.key(0), inputs)['params']

  def gradient(params, learned):
    def loss(learned):
      (name,) = params
      variables = {'params': {name: params[name] | learned}}
      return jnp.mean(jnp.sin(layer.apply(variables, inputs)))

    return jax.jit(jax.grad(loss))(learned)

  (weights,) = params.values()
  whole = jax.tree.map(lambda w: ghostnorm.ParamWithAux(w, scales), weights)
  learned = {name: w for name, w in whole.items() if name != frozen}
  ((name, got),) = gradient(params, learned).items()
  want = gradient(params, whole)[name]
  np.testing.assert_allclose(got.param, want.param, rtol=1e-6)
  np.testing.assert_allclose(got.aux, want.aux, rtol=1e-6)


class _Convolved(base_layer.BaseLayer):
  """Calls its layer with an axis, which is no array, and by keywords."""

  conv_tpl: Config = pax_fiddle.template_field(attentions.CausalDepthwiseConv1D)

  def setup(self):
    self.create_child(
      'conv', self.conv_tpl.clone().set(kernel_size=2, hidden_dims=4)
    )

  def __call__(self, inputs, positions):
    return self.conv(inputs, segment_pos=positions, axis=1)


def test_a_wrapped_layer_with_keywords():
  convolved = Config(_Convolved, name='convolved')
  wrapped = ghostnorm.generate_wrapped_template(convolved.clone())
  positions = jnp.array([[0, 1, 2], [0, 1, 0]])
  examples.check(wrapped, (_normal(2, 3, 4), positions), convolved)


class _Scaled(base_layer.BaseLayer):
  """A product of a weight and the arguments that are given."""

  def setup(self):
    self.create_variable('w', base_layer.WeightHParams([4]))

  def __call__(self, inputs, first=None, second=None):
    outputs = inputs * self.theta.w
    outputs = outputs if first is None else outputs * first
    return outputs if second is None else outputs * second


def test_a_wrapped_layer_without_an_optional_argument():
  scaled = Config(_Scaled, name='scaled')
  wrapped = ghostnorm.generate_wrapped_template(scaled, force_wrap=True)
  layer = wrapped.Instantiate()
  inputs, second = _normal(2, 4), 2.0 + _normal(2, 4)
  variables = layer.init(jax.random.key(0), inputs)
  np.testing.assert_array_equal(
    layer.apply(variables, inputs, second=second),
    layer.apply(variables, inputs) * second,
  )


class _Penalized(_Scaled):
  """Adds its mean output as an auxiliary loss, and a summary."""

  def __call__(self, inputs):
    outputs = super().__call__(inputs)
    self.add_aux_loss('mean', jnp.mean(outputs))
    self.add_summary('mean', jnp.mean(outputs))
    return outputs


def test_auxiliary_losses_of_a_wrapped_layer(caplog):
  layer = ghostnorm.generate_wrapped_template(
    Config(_Penalized, name='penalized'), force_wrap=True
  ).Instantiate()
  inputs = _normal(2, 4)
  params = layer.init(jax.random.key(0), inputs)['params']
  collections = [base_layer.AUX_LOSS, base_layer.SUMMARIES]

  def run(params):
    return layer.apply({'params': params}, inputs, mutable=collections)

  outputs, updated = run(params)
  (loss,) = jax.tree.leaves(updated[base_layer.AUX_LOSS])[:1]
  np.testing.assert_allclose(loss, np.mean(outputs), rtol=1e-6)
  assert jax.tree.leaves(updated[base_layer.SUMMARIES])
  assert 'auxiliary losses' not in caplog.text
  with_scales = jax.tree.map(
    lambda w: ghostnorm.ParamWithAux(w, jnp.ones(2)), params
  )
  same, updated = run(with_scales)
  np.testing.assert_array_equal(same, outputs)
  assert not jax.tree.leaves(updated)
  assert 'leaves out the auxiliary losses of _Penalized' in caplog.text


def test_a_wrapper_needs_a_layer():
  wrapper = Config(ghostnorm.WrappedGhostNorm, name='wrapper').Instantiate()
  with pytest.raises(ValueError, match='layer_tpl must be .* got None'):
    wrapper.init(jax.random.key(0), _normal(2, 3))


def test_templates_are_converted_where_layers_are_known():
  feed_forward = Config(
    linears.FeedForward, name='ff', input_dims=3, output_dims=4
  )
  made = ghostnorm.generate_wrapped_template(feed_forward.clone())
  assert made.linear_tpl.cls is ghostnorm.LinearGhostNorm
  assert made.bias_tpl.cls is ghostnorm.BiasGhostNorm
  assert made.activation_tpl.cls is feed_forward.activation_tpl.cls
  examples.check(made, (_normal(2, 3),), feed_forward)


def test_wrapping_can_be_forced():
  linear = Config(linears.Linear, name='linear', input_dims=4, output_dims=2)
  kept = ghostnorm.generate_wrapped_template(linear.clone(), True, True)
  assert isinstance(kept, ghostnorm.GhostNormPaxConfig)
  examples.check(kept, (_normal(3, 2, 4),), linear)
  again = kept.to_pax_config()
  assert again == linear and not isinstance(again, ghostnorm.GhostNormPaxConfig)


def test_a_layer_without_norms_says_what_to_do():
  param = ghostnorm.ParamWithAux(_normal(2, 3), jnp.ones(4))
  with pytest.raises(TypeError, match=r'shape \(2, 3\) .* force_wrap=True'):
    jnp.einsum('bi,io->bo', _normal(4, 2), param)
  softmax = Config(
    embedding_softmax.SharedEmbeddingSoftmax,
    name='softmax',
    input_dims=2,
    num_classes=3,
  ).Instantiate()
  params = {'params': {'logits_ffn': {'linear': {'w': param}}}}
  with pytest.raises(AttributeError, match='no weights that layers share'):
    softmax.apply(params, jnp.ones((4, 1), jnp.int32), method='emb_lookup')


def test_parameters_change_dtype_with_their_numbers():
  param = ghostnorm.ParamWithAux(jnp.ones([2, 3]), jnp.ones([4]))
  half = param.astype(jnp.bfloat16)
  assert half.dtype == half.aux.dtype == jnp.bfloat16
  assert param.transpose().shape == (3, 2)
  assert param.replace(aux=None).aux is None
  assert ghostnorm.get_aux({'w': param}) is param.aux
  assert ghostnorm.get_aux({'w': jnp.ones(2)}) is None
  plain = ghostnorm.get_param({'w': param, 'b': jnp.zeros(1)})
  assert jax.tree.map(jnp.shape, plain) == {'w': (2, 3), 'b': (1,)}
