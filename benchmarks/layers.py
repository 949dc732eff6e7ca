# SPDX-License-Identifier: Apache-2.0
"""Attention and a decoder layer, forward and backward, relative to plain JAX.

    python -m benchmarks.layers --rounds=30

Both programs alternate. Their outputs and gradients must agree to 1e-5. Prints
the ratios of the times and of XLA's cost analyses.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import baseline_lm, measure
from praxis import base_layer, pax_fiddle
from praxis.layers import activations, attentions, transformers

Config = pax_fiddle.Config
_BATCH, _LENGTH, _DIMS, _HIDDEN, _HEADS = 8, 256, 256, 1024, 4


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--rounds', type=int, default=30)
  parser.add_argument('--kinds', nargs='+', default=list(_SIDES))
  parser.add_argument('--dtypes', nargs='+', default=['float32'])
  args = parser.parse_args()
  for kind in args.kinds:
    for dtype in args.dtypes:
      measure.report('layers', _measure(kind, dtype, args.rounds))


def decoder_layer() -> Config[transformers.Transformer]:
  """Returns the Config of the layer of `baseline_lm.transformer`."""
  return Config(
    transformers.Transformer,
    name='layer',
    input_dims=_DIMS,
    hidden_dims=_HIDDEN,
    num_heads=_HEADS,
    tr_atten_tpl=Config(
      attentions.DotProductAttention,
      combine_qkv=True,
      use_bias=False,
      atten_logit_cap=50.0,
    ),
    tr_fflayer_tpl=Config(
      transformers.TransformerFeedForward,
      activation_tpl=Config(activations.GELU),
    ),
  )


def _our_layer(params: Any, x: jax.Array, segments: jax.Array) -> jax.Array:
  mask = attentions.causal_segment_mask(segments, x.dtype)
  layer = decoder_layer().set(fprop_dtype=x.dtype).Instantiate()
  paddings = jnp.zeros(segments.shape, x.dtype)
  return layer.apply({'params': params}, x, paddings, mask)[0]


def _our_attention(params: Any, x: jax.Array, segments: jax.Array) -> jax.Array:
  mask = attentions.causal_segment_mask(segments, x.dtype)
  attention = (
    decoder_layer()
    .tr_atten_tpl.clone()
    .set(
      name='attention',
      input_dim=_DIMS,
      hidden_dim=_DIMS,
      num_heads=_HEADS,
      fprop_dtype=x.dtype,
    )
  ).Instantiate()
  variables = {'params': params['self_attention']}
  return attention.apply(variables, x, x, x, mask)[0]


def _twin(
  part: Callable[..., jax.Array],
  params: Any,
  x: jax.Array,
  segments: jax.Array,
) -> jax.Array:
  params = jax.tree.map(lambda w: w.astype(x.dtype), params)
  return part(
    baseline_lm.layer_of(params), x, baseline_lm.causal_segments(segments)
  )


# {name: (pax, plain JAX)}.
_SIDES: dict[str, tuple[Callable[..., jax.Array], Callable[..., jax.Array]]] = {
  'attention': (
    _our_attention,
    functools.partial(_twin, baseline_lm.attention),
  ),
  'decoder_layer': (
    _our_layer,
    functools.partial(_twin, baseline_lm.transformer),
  ),
}


def _measure(kind: str, dtype: str, rounds: int) -> dict[str, Any]:
  operands = _operands(dtype)
  sides = dict(zip(('ours', 'twin'), _SIDES[kind], strict=True))
  steps = {name: _compile(f, operands) for name, f in sides.items()}
  _check(steps['ours'](*operands), steps['twin'](*operands), dtype)
  run = lambda step: lambda: jax.block_until_ready(step(*operands))
  runs = {name: run(step) for name, step in steps.items()}
  measure.alternate(runs, 2)
  times = measure.alternate(runs, rounds)
  ours, theirs = times['ours'], times['twin']
  cost = {name: step.cost_analysis() for name, step in steps.items()}
  of_cost = lambda key: round(cost['ours'][key] / cost['twin'][key], 4)
  return {
    'kind': kind,
    'dtype': dtype,
    'ratio': measure.ratio(ours.wall, theirs.wall),
    'cpu_ratio': measure.ratio(ours.cpu, theirs.cpu),
    'flops_ratio': of_cost('flops'),
    'bytes_ratio': of_cost('bytes accessed'),
    'ours': measure.summary(ours.wall),
    'twin': measure.summary(theirs.wall),
  }


def _operands(dtype: str) -> tuple[Any, ...]:
  layer = decoder_layer().Instantiate()
  shape = (_BATCH, _LENGTH, _DIMS)
  batch = measure.random_lm_batch(_BATCH, _LENGTH, 2)
  segments = jnp.asarray(batch['segment_ids'])
  x, cotangent = (
    jax.random.normal(jax.random.key(i), shape).astype(dtype) for i in (1, 2)
  )
  mask = attentions.causal_segment_mask(segments)
  paddings = jnp.zeros(segments.shape)
  init = jax.jit(lambda key: layer.init(key, x, paddings, mask))
  params = init(jax.random.key(0))[base_layer.PARAMS]
  return params, x, segments, cotangent


def _compile(f: Callable[..., jax.Array], operands: tuple[Any, ...]) -> Any:
  """Returns a compiled function of the output and the gradients."""

  def step(params: Any, x: Any, segments: Any, cotangent: Any) -> Any:
    outputs, pull = jax.vjp(lambda p, x: f(p, x, segments), params, x)
    return outputs, pull(cotangent)

  return jax.jit(step).lower(*operands).compile()


def _check(ours: Any, theirs: Any, dtype: str) -> None:
  tolerance = 1e-5 if dtype == 'float32' else 0.05

  def check(a: jax.Array, b: jax.Array) -> None:
    actual, desired = (np.asarray(x, np.float32) for x in (a, b))
    limit = tolerance * (np.abs(desired).max() + 1e-3)
    np.testing.assert_allclose(actual, desired, 0, limit)

  jax.tree.map(check, ours, theirs)


if __name__ == '__main__':
  main()
