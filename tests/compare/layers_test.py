# SPDX-License-Identifier: Apache-2.0
"""Our layers give torch's outputs and gradients with the same weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from praxis import pax_fiddle
from praxis.layers import (
  attentions,
  convolutions,
  ctc_objectives,
  frnn,
  normalizations,
  rnn_cell,
)
from praxis.nested_map import NestedMap

Config = pax_fiddle.Config
B, T, D, F, N = 2, 8, 12, 16, 4
TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
  """The same layer twice, of an array channels last."""

  config: Any
  # Torch's layer, and where the weights of ours are in its.
  theirs: torch.nn.Module
  params: Callable[[dict[str, np.ndarray]], Any]
  # How each is called.
  call: Callable[[Any, Any], Any] = lambda layer, x: layer(x)
  call_theirs: Callable[[Any, Any], Any] = lambda layer, x: layer(x)
  shape: tuple[int, ...] = (B, T, D)


def channels_first(layer: Any, x: Any) -> Any:
  return layer(x.movedim(-1, 1)).movedim(1, -1)


def layer_norm() -> Pair:
  return Pair(
    config=Config(
      normalizations.LayerNorm, dim=D, direct_scale=True, epsilon=1e-5
    ),
    theirs=torch.nn.LayerNorm(D),
    params=lambda w: {'scale': w['weight'], 'bias': w['bias']},
  )


def rms_norm() -> Pair:
  return Pair(
    config=Config(normalizations.RmsNorm, dim=D),
    theirs=torch.nn.RMSNorm(D, eps=1e-6),
    params=lambda w: {'scale': w['weight']},
  )


def group_norm() -> Pair:
  return Pair(
    config=Config(
      normalizations.GroupNorm, dim=D, num_groups=3, input_rank=4, epsilon=1e-5
    ),
    theirs=torch.nn.GroupNorm(3, D),
    # Ours are scales less 1, of the inputs' rank.
    params=lambda w: {
      'gamma': w['weight'].reshape(1, 1, 1, D) - 1,
      'beta': w['bias'].reshape(1, 1, 1, D),
    },
    call_theirs=channels_first,
    shape=(B, 4, 6, D),
  )


def batch_norm() -> Pair:
  return Pair(
    config=Config(normalizations.BatchNorm, dim=D),
    theirs=torch.nn.BatchNorm1d(D, eps=1e-3),
    params=lambda w: {'gamma': w['weight'] - 1, 'beta': w['bias']},
    call_theirs=channels_first,
  )


def convolution(groups: int = 1) -> Pair:
  return Pair(
    config=Config(
      convolutions.Conv2D,
      filter_shape=(3, 2, D // groups, F),
      filter_stride=(2, 1),
      dilations=(1, 2),
      padding='VALID',
      bias=True,
    ),
    theirs=torch.nn.Conv2d(
      D, F, (3, 2), (2, 1), dilation=(1, 2), groups=groups
    ),
    params=lambda w: {'w': w['weight'].transpose(2, 3, 1, 0), 'b': w['bias']},
    call_theirs=channels_first,
    shape=(B, 7, 6, D),
  )


def lstm() -> Pair:
  cell = Config(
    rnn_cell.LstmCellSimple,
    num_input_nodes=D,
    num_output_nodes=F,
    cell_value_cap=None,
  )

  def params(w: dict[str, np.ndarray]) -> Any:
    # Theirs: input gate, forget gate, cell, output gate; ours: cell first.
    def reorder(x: np.ndarray) -> np.ndarray:
      i, f, g, o = np.split(x, 4)
      return np.concatenate([g, i, f, o])

    both = np.concatenate([w['weight_ih_l0'], w['weight_hh_l0']], axis=1)
    bias = w['bias_ih_l0'] + w['bias_hh_l0']
    return {'cell': {'wm': reorder(both).T, 'b': reorder(bias)}}

  def call(layer: Any, x: Any) -> Any:
    inputs = NestedMap(act=x, padding=jnp.zeros([B, T, 1]))
    return layer(inputs)[0]

  return Pair(
    config=Config(frnn.LstmFrnn, cell_tpl=cell),
    theirs=torch.nn.LSTM(D, F, batch_first=True),
    params=params,
    call=call,
    call_theirs=lambda layer, x: layer(x)[0],
  )


def attention() -> Pair:
  def params(w: dict[str, np.ndarray]) -> Any:
    weights = np.split(w['in_proj_weight'], 3)
    biases = np.split(w['in_proj_bias'], 3)
    found = {
      name: {'w': x.T.reshape(D, N, D // N), 'b': b.reshape(N, D // N)}
      for name, x, b in zip(
        ('query', 'key', 'value'), weights, biases, strict=True
      )
    }
    post = w['out_proj.weight'].reshape(D, N, D // N)
    return {**found, 'post': {'w': post, 'b': w['out_proj.bias']}}

  later = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
  return Pair(
    config=Config(
      attentions.DotProductAttention,
      input_dim=D,
      hidden_dim=D,
      num_heads=N,
      internal_enable_per_dim_scale=False,
    ),
    theirs=torch.nn.MultiheadAttention(D, N, batch_first=True),
    params=params,
    call=lambda layer, x: layer(x, x, x, attentions.causal_mask(x))[0],
    call_theirs=lambda layer, x: layer(x, x, x, attn_mask=later)[0],
  )


PAIRS = {
  'layer_norm': layer_norm,
  'rms_norm': rms_norm,
  'group_norm': group_norm,
  'batch_norm': batch_norm,
  'convolution': convolution,
  'grouped_convolution': lambda: convolution(groups=4),
  'lstm': lstm,
  'attention': attention,
}


def normal(*shape: int, seed: int) -> np.ndarray:
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def randomized(module: torch.nn.Module) -> dict[str, np.ndarray]:
  """Makes no weight special; returns them all."""
  with torch.no_grad():
    for i, weight in enumerate(module.parameters()):
      weight.copy_(torch.tensor(0.5 * normal(*weight.shape, seed=i)))
  return {k: v.detach().numpy() for k, v in module.named_parameters()}


@pytest.mark.parametrize('name', PAIRS)
def test_layers_give_the_same_numbers(name):
  pair = PAIRS[name]()
  params = pair.params(randomized(pair.theirs))
  x = jnp.asarray(normal(*pair.shape, seed=7))

  their_x = torch.tensor(np.array(x), requires_grad=True)
  want = pair.call_theirs(pair.theirs, their_x)
  cotangent = normal(*want.shape, seed=8)
  want.backward(torch.tensor(cotangent))

  layer = pair.config.clone().set(name='layer').Instantiate()
  method = lambda layer, x: pair.call(layer, x)
  init = layer.init(jax.random.key(0), x, method=method)
  assert_same_shapes(init['params'], params)
  state = {k: v for k, v in init.items() if k != 'params'}

  @jax.jit
  def run(params: Any, x: Any) -> Any:
    apply = lambda x: layer.apply(
      {'params': params, **state}, x, method=method, mutable=list(state)
    )[0]
    outputs, pull = jax.vjp(apply, x)
    return outputs, pull(jnp.asarray(cotangent))[0]

  outputs, gradient = run(params, x)
  scale = TOLERANCE * max(1.0, np.abs(outputs).max())
  np.testing.assert_allclose(outputs, want.detach().numpy(), 0, scale)
  np.testing.assert_allclose(
    gradient, their_x.grad.numpy(), 0, TOLERANCE * np.abs(gradient).max()
  )


def assert_same_shapes(ours: Any, theirs: Any) -> None:
  shapes = lambda tree: jax.tree.map(lambda x: x.shape, tree)
  assert shapes(dict(ours)) == shapes(theirs)


def test_ctc_loss_and_gradient():
  frames, labels, classes = 9, 3, 5
  logits = normal(B, frames, classes, seed=1)
  ids = np.array([[1, 1, 3], [2, 4, 0]], np.int32)
  frame_counts, label_counts = np.array([9, 6]), np.array([3, 2])
  past = lambda counts, size: jnp.asarray(
    np.arange(size)[None] >= counts[:, None], jnp.float32
  )

  def ours(x: Any) -> Any:
    loss, _ = ctc_objectives.ctc_loss_with_alignments(
      x,
      past(frame_counts, frames),
      jnp.asarray(ids),
      past(label_counts, labels),
    )
    return jnp.sum(loss), loss

  (_, loss), gradient = jax.value_and_grad(ours, has_aux=True)(
    jnp.asarray(logits)
  )
  their_logits = torch.tensor(logits, requires_grad=True)
  want = torch.nn.functional.ctc_loss(
    torch.log_softmax(their_logits, -1).movedim(0, 1),
    torch.tensor(ids).long(),
    torch.tensor(frame_counts),
    torch.tensor(label_counts),
    reduction='none',
  )
  want.sum().backward()
  np.testing.assert_allclose(loss, want.detach().numpy(), 1e-5)
  np.testing.assert_allclose(gradient, their_logits.grad.numpy(), 0, 1e-5)
