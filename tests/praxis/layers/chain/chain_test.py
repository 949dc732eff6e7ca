# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Chains: the stack of arguments, names, and the layers made for them."""

from __future__ import annotations

import logging

import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import activations, chain
from tests.praxis.layers import running


class Swap(base_layer.BaseLayer):
  def __call__(self, x, y):
    return y, x


class Scale(base_layer.BaseLayer):
  def __call__(self, x, *, factor=1.0):
    return x * factor


def built(cfg):
  return cfg.Instantiate()


def test_a_layer_takes_and_gives_the_leading_arguments():
  layer = built(chain.chain(Scale.config(), Swap.config(), None))
  assert layer.apply({}, 2.0, 3.0, 4.0, factor=10.0) == (3.0, 20.0, 4.0)
  stacks = layer.apply({}, 2.0, 3.0, method=layer.call_chain)
  assert stacks == [(2.0, 3.0), (3.0, 2.0)]
  assert built(chain.Chain.config()).apply({}, 2.0) == 2.0
  assert chain.call_chain([lambda *args: sum(args)], 1, 2) == [(3, 2)]
  assert chain.call_chained_layer(lambda x: None, 1, 2) == (1, 2)


def test_too_few_arguments_are_refused_by_the_layers_place():
  layer = built(chain.chain(Scale.config(), Swap.config(name='swap')))
  with pytest.raises(
    ValueError, match="layer 'swap' wants 2 arguments"
  ) as info:
    layer.apply({}, 2.0)
  assert 'in layer 1 of the chain' in info.value.__notes__[0]


def test_a_perceptron_of_chains():
  act = activations.ReLU.config()
  cfg = chain.chain(
    chain.feed_forward(2, 4, act),
    chain.copy_n_times(2, chain.feed_forward(4, 4, act)),
    chain.feed_forward(4, 3),
  )
  x = running.normal(5, 2)
  layer, variables = running.build(cfg, x)
  assert running.shapes(variables) == {
    'feedforward0/bias/b': (4,),
    'feedforward0/linear/w': (2, 4),
    'chain_copy_n_times/feedforward0/bias/b': (4,),
    'chain_copy_n_times/feedforward0/linear/w': (4, 4),
    'chain_copy_n_times/feedforward1/bias/b': (4,),
    'chain_copy_n_times/feedforward1/linear/w': (4, 4),
    'feedforward1/bias/b': (3,),
    'feedforward1/linear/w': (4, 3),
  }
  p = variables['params']
  copies = p['chain_copy_n_times']
  y = np.asarray(x)
  for part in (p['feedforward0'], *(copies[f'feedforward{i}'] for i in (0, 1))):
    y = np.maximum(y @ part['linear']['w'] + part['bias']['b'], 0)
  last = p['feedforward1']
  y = y @ last['linear']['w'] + last['bias']['b']
  np.testing.assert_allclose(
    running.run(layer, variables, x), y, rtol=1e-4, atol=1e-5
  )


def test_repeat_scans_a_chain():
  x = running.normal(5, 2)
  layer, variables = running.build(chain.repeat(3, chain.feed_forward(2, 2)), x)
  sub = variables['params']['sub']['feedforward']
  y = np.asarray(x)
  for w, b in zip(sub['linear']['w'], sub['bias']['b'], strict=True):
    y = y @ w + b
  (out,) = running.run(layer, variables, x)
  np.testing.assert_allclose(out, y, rtol=1e-4, atol=1e-5)


def test_residual_and_padding():
  x = running.normal(2, 3, 2)
  paddings = jnp.asarray([[0.0, 1, 1], [0, 0, 1]])
  cfg = chain.chain(
    chain.add_residual(chain.full_like(2.0)), chain.apply_padding(axis=0)
  )
  out = built(cfg).apply({}, x, paddings)
  want = (np.asarray(x) + 2) * (1 - np.asarray(paddings))[..., None]
  np.testing.assert_allclose(out[0] if isinstance(out, tuple) else out, want)
  many = chain.add_residual(Swap.config())
  assert built(many).apply({}, 2.0, 3.0) == (5.0, 2.0)


def test_dict_to_args():
  batch = {'a': 1.0, 'b': 2.0}
  assert built(chain.dict_to_args('b', 'a')).apply({}, batch) == (2.0, 1.0)
  assert built(chain.dict_to_args('b')).apply({}, batch) == 2.0
  with pytest.raises(ValueError, match=r"Key not found: \['c'\]"):
    built(chain.dict_to_args('a', 'c')).apply({}, batch)


def test_log_args_leaves_them_alone(caplog):
  with caplog.at_level(logging.INFO):
    cfg = chain.chain(chain.log_args('here', log_values=True))
    assert built(cfg).apply({}, 2.0, jnp.ones([2]))[0] == 2.0
  assert 'here' in caplog.text and '(2,) [1. 1.]' in caplog.text
