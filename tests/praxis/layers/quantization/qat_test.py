# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Training that knows of quantization: what it learned is what is served."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from praxis import base_layer
from praxis.layers import transformer_models, transformers
from praxis.layers.quantization import quantize
from praxis.layers.quantization.quantization_hparams import (
  QuantizationMode,
  QuantizationType,
)
from tests.praxis.layers import running
from tests.testing import nightly

# More than the model can learn by heart: every bit of a weight counts.
_IDS = np.random.default_rng(5).integers(0, 32, (32, 9))
_STEPS = 150


def _lm(kind=None, mode=None):
  block = transformers.StackedTransformer.config(
    num_layers=1, model_dims=16, hidden_dims=32, num_heads=2, dim_per_head=8
  )
  atten = block.transformer_layer_params_tpl.tr_atten_tpl
  atten.set(combine_qkv=True, use_bias=False)
  lm = transformer_models.TransformerLm.config(
    name='lm', model_dims=16, vocab_size=32, fprop_dtype=jnp.float32
  )
  lm.stacked_transformer_tpl = transformers.StackedTransformerRepeated.config(
    block=block, x_times=2
  )
  if kind is not None:
    quantize.set_transformer_quantization(lm, kind, mode, num_bits=4)
  return lm.Instantiate()


def _loss(lm, variables):
  inputs, labels = jnp.asarray(_IDS[:, :-1]), jnp.asarray(_IDS[:, 1:])
  logits = lm.apply(variables, inputs, jnp.zeros(inputs.shape)).logits
  losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
  return jnp.mean(losses)


@functools.cache
def _initial():
  """Returns the variables that all trainings start from."""
  ids = jnp.zeros((1, 8), jnp.int32)
  init = functools.partial(_lm().init, jax.random.key(0))
  return running.jit(init)(ids, jnp.zeros(ids.shape))


@functools.cache
def _trained(kind):
  """Returns the losses of training, and the variables afterwards."""
  lm = _lm(kind, QuantizationMode.TRAINING)
  optimizer = optax.adam(0.01)

  @running.jit
  def train(variables):
    def step(carry, _):
      variables, state = carry
      loss, grads = jax.value_and_grad(functools.partial(_loss, lm))(variables)
      updates, state = optimizer.update(grads, state)
      return (optax.apply_updates(variables, updates), state), (loss, variables)

    carry = variables, optimizer.init(variables)
    _, (losses, variables) = jax.lax.scan(step, carry, length=_STEPS)
    return losses, jax.tree.map(lambda x: x[-1], variables)

  return train(_initial())


@functools.cache
def _server(kind):
  """Returns what gives the integers of variables, and the loss with them."""
  materialize = _lm(kind, QuantizationMode.MATERIALIZE)
  serve = _lm(kind, QuantizationMode.INFERENCE)

  @running.jit
  def run(variables):
    evaluating = base_layer.JaxContext.HParams(do_eval=True)
    with base_layer.JaxContext.new_context(hparams=evaluating):
      tree = materialize.apply(variables, method=materialize.quantize_weight)
      return tree, _loss(serve, tree)

  return run


@pytest.mark.parametrize(
  'kind', [QuantizationType.FQ, *nightly.cases(QuantizationType.AQT)]
)
def test_what_was_learned_is_what_is_served(kind):
  losses, variables = _trained(kind)
  tree, served = _server(kind)(variables)
  assert losses[-1] < 0.1 * losses[0]
  # To the same integers: all that differs is the order of sums.
  np.testing.assert_allclose(served, losses[-1], rtol=1e-4)
  sub = tree['params']['transformer']['repeat']['sub']['x_layers_0']
  assert sub['self_attention']['combined_qkv']['w'].dtype == jnp.int32


def test_learning_with_four_bits_is_better_than_rounding_to_them():
  learned, _ = _trained(QuantizationType.FQ)
  exact, variables = _trained(None)
  # Weights are rounded alike, however they were trained.
  _, rounded = _server(QuantizationType.FQ)(variables)
  assert exact[-1] < learned[-1] < rounded / 2
