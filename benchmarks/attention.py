# SPDX-License-Identifier: Apache-2.0
"""Time of attention by our kernels, relative to XLA's lowering of einsum.

    python -m benchmarks.attention --rounds=7

Rows are causal, of `--tokens` in all or one row; `--segments` packs them.
`kernel` is C++ on CPUs, Triton on GPUs; `einsum` is that of
DotProductAttention, with all logits in memory; `chunked` is jnp on 128 queries
at a time, whose backward pass computes logits again; `cudnn` is JAX's, on GPUs
and for rows of one segment. A round
runs each once. `ratio` is the median over rounds of the time relative to
einsum's, `cpu_ratio` that of the CPU time of all threads. `temp_bytes` is XLA's
buffer assignment without arguments and results.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import measure
from praxis.kernels import attention
from praxis.layers.attentions import attention_core, segments

_CHUNK = 128
_SPEC = attention.Spec()

_Attend = Callable[..., jax.Array]


def main() -> None:
  args = _parser().parse_args()
  for length in args.lengths:
    for head_dim in args.head_dims:
      for dtype in args.dtypes:
        for step in args.steps:
          shape = (max(1, args.tokens // length), length, args.heads, head_dim)
          ids = _segment_ids(shape, args.segments)
          for line in _measure(shape, dtype, step, ids, args.rounds):
            measure.report('attention', line)


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  lengths = (256, 1024, 2048, 4096)
  parser.add_argument('--lengths', type=int, nargs='+', default=lengths)
  parser.add_argument('--head_dims', type=int, nargs='+', default=(64, 128))
  parser.add_argument('--dtypes', nargs='+', default=('float32',))
  parser.add_argument('--tokens', type=int, default=2048, help='of all rows')
  parser.add_argument('--heads', type=int, default=4)
  parser.add_argument('--segments', type=int, default=1, help='of a row')
  parser.add_argument('--steps', nargs='+', default=('forward', 'gradient'))
  parser.add_argument('--rounds', type=int, default=7)
  return parser


def _segment_ids(shape: tuple[int, ...], segments: int) -> jax.Array:
  ids = jnp.arange(shape[1], dtype=jnp.int32) * segments // shape[1]
  return jnp.tile(ids, (shape[0], 1))


def _measure(
  shape: tuple[int, ...],
  dtype: str,
  step: str,
  segment_ids: jax.Array,
  rounds: int,
) -> list[dict[str, object]]:
  keys = jax.random.split(jax.random.key(0), 3)
  heads = [jax.random.normal(k, shape).astype(dtype) for k in keys]
  heads[0] *= shape[-1] ** -0.5
  operands = (*heads, segment_ids)
  functions = {
    name: _step(attend, step)
    for name, attend in _attends(dtype, int(segment_ids[0, -1]) + 1).items()
  }
  programs, times = measure.alternate_programs(functions, operands, rounds)
  einsum = times['einsum']
  return [
    dict(
      implementation=name,
      step=step,
      shape=shape,
      dtype=dtype,
      segments=int(segment_ids[0, -1]) + 1,
      ratio=measure.ratio(times[name].wall, einsum.wall),
      cpu_ratio=measure.ratio(times[name].cpu, einsum.cpu),
      cpu=measure.summary(times[name].cpu),
      temp_bytes=measure.temp_bytes(program),
      **measure.summary(times[name].wall),
    )
    for name, program in programs.items()
  ]


def _step(attend: _Attend, step: str) -> Callable[..., object]:
  """Returns the attention, or that and the gradients of a loss of it."""
  if step == 'forward':
    return attend

  def loss(query, key, value, ids):
    return jnp.sum(jnp.square(attend(query, key, value, ids)))

  return jax.value_and_grad(loss, argnums=(0, 1, 2))


def _kernel(
  query: jax.Array, key: jax.Array, value: jax.Array, ids: jax.Array
) -> jax.Array:
  return attention.attention(query, key, value, ids, _SPEC)


def _einsum(
  query: jax.Array, key: jax.Array, value: jax.Array, ids: jax.Array
) -> jax.Array:
  mask = segments.SegmentMask(ids, True, np.dtype(np.float32)).additive()
  logits = attention_core.dot_product_logits(jnp.einsum, query, key)
  transform = attention_core.LogitTransform()
  probs = attention_core.attention_probs(logits, mask, None, transform)
  return attention_core.attend_to_values(
    jnp.einsum, probs.astype(value.dtype), value
  )


def _cudnn(
  query: jax.Array, key: jax.Array, value: jax.Array, ids: jax.Array
) -> jax.Array:
  del ids
  return jax.nn.dot_product_attention(
    query, key, value, scale=1.0, is_causal=True, implementation='cudnn'
  )


def _chunked(
  query: jax.Array, key: jax.Array, value: jax.Array, ids: jax.Array
) -> jax.Array:
  batch, length, *heads = query.shape
  size = min(_CHUNK, length)

  @jax.checkpoint
  def attend(chunk: tuple[jax.Array, ...]) -> jax.Array:
    query, query_ids, first = chunk
    position = first + jnp.arange(size)
    visible = query_ids[:, :, None] == ids[:, None]
    visible &= position[:, None] >= jnp.arange(length)
    logits = jnp.einsum('BTNH,BSNH->BNTS', query, key)
    logits = jnp.where(visible[:, None], logits, -1e30)
    probs = jax.nn.softmax(logits.astype(jnp.float32)).astype(value.dtype)
    return jnp.einsum('BNTS,BSNH->BTNH', probs, value)

  def split(x: jax.Array) -> jax.Array:
    return jnp.moveaxis(x.reshape(batch, -1, size, *x.shape[2:]), 1, 0)

  firsts = jnp.arange(0, length, size)
  out = jax.lax.map(attend, (split(query), split(ids), firsts))
  return jnp.moveaxis(out, 0, 1).reshape(batch, length, *heads)


def _attends(dtype: str, segments: int) -> dict[str, _Attend]:
  attends = {'einsum': _einsum, 'kernel': _kernel, 'chunked': _chunked}
  if jax.default_backend() == 'gpu' and segments == 1 and dtype != 'float32':
    attends['cudnn'] = _cudnn
  return attends


if __name__ == '__main__':
  main()
