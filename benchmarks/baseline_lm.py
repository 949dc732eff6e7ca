# SPDX-License-Identifier: Apache-2.0
"""The training step of `experiments.Lm4x256`, written in JAX and Optax only.

It has the same variables and computes the same numbers. Shapes: B batch, T
time, D model, N heads, H head, F hidden, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks import measure

Params = dict[str, Any]
Batch = dict[str, jax.Array]
Step = Callable[[Params, Any, Batch], tuple[Params, Any, jax.Array]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Style:
  """How the layers run; all styles compute the same numbers."""

  # Scans over stacked layers instead of unrolling them.
  scan: bool = False
  # Rematerializes layers in the backward pass.
  remat: bool = False
  # Shards matrices over devices instead of replicating them.
  split: bool = False
  # Parts of each row whose logits are in memory one after the other, and
  # computed again in the backward pass; 1 keeps the logits of all tokens.
  loss_chunks: int = 1
  # Mesh axes that shard the batch; empty on a single device.
  rows: tuple[str, ...] = ()

  def __str__(self) -> str:
    words = ['scan' if self.scan else 'unrolled']
    words += ['remat'] * self.remat + ['split weights'] * self.split
    if self.loss_chunks > 1:
      words.append(f'loss in {self.loss_chunks} chunks')
    return ', '.join(words)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
  """Linear warm-up, constant, exponential decay of the learning rate."""

  peak: float
  warmup: int
  decay_start: int
  decay_end: int
  min_ratio: float

  def __call__(self, step: jax.Array) -> jax.Array:
    t = step.astype(jnp.float32)
    up = jnp.minimum(t / self.warmup, 1.0)
    length = self.decay_end - self.decay_start
    u = jnp.clip((t - self.decay_start) / length, 0.0, 1.0)
    return self.peak * up * jnp.exp(u * math.log(self.min_ratio))


def params_of(variables: Any) -> Params:
  """Returns the parameters of this program from those of the experiment."""
  lm = variables['params']['lm']
  stack = layer_of(lm['transformer']['repeat']['sub']['x_layers_0'])
  count = stack['scale'].shape[0]
  layers = [jax.tree.map(lambda x, i=i: x[i], stack) for i in range(count)]
  return {
    'table': lm['softmax']['logits_ffn']['linear']['w'],
    'table_bias': lm['softmax']['logits_ffn']['bias']['b'],
    'final_ln': dict(lm['final_ln']),
    'layers': layers,
  }


def optimizer(schedule: Schedule) -> optax.GradientTransformation:
  """Returns Adam as the experiment configures it."""
  return optax.chain(
    optax.clip_by_global_norm(5.0),
    optax.scale_by_adam(b1=0.9, b2=0.99, eps=1e-6),
    optax.clip_by_block_rms(1.0),
    optax.add_decayed_weights(1e-3),
    optax.scale_by_schedule(lambda step: -schedule(step)),
  )


def make_step(tx: optax.GradientTransformation, style: Style) -> Step:
  """Returns (params, optimizer state, batch) -> (..., loss), not yet jitted."""

  def step(
    params: Params, state: Any, batch: Batch
  ) -> tuple[Params, Any, jax.Array]:
    loss, grads = jax.value_and_grad(loss_fn)(params, batch, style)
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss

  return step


def stacked(params: Params) -> Params:
  """Returns the parameters with layers stacked for a scan."""
  layers = jax.tree.map(lambda *x: jnp.stack(x), *params['layers'])
  return {**params, 'layers': layers}


def loss_fn(params: Params, batch: Batch, style: Style) -> jax.Array:
  """Returns the mean cross entropy in nats per token."""
  ids, positions = batch['ids'], batch['segment_pos']
  dims = params['table'].shape[0]
  x = params['table'].T[ids] * math.sqrt(dims) + sinusoids(positions, dims)
  mask = causal_segments(batch['segment_ids'])

  def run(x: jax.Array, layer: Params) -> tuple[jax.Array, None]:
    return _by_rows(transformer(layer, x, mask), style), None

  x = _by_rows(x, style)

  if style.remat:
    run = jax.checkpoint(run)
  if style.scan:
    x, _ = jax.lax.scan(run, x, params['layers'])
  else:
    for layer in params['layers']:
      x, _ = run(x, layer)
  x = layer_norm(params['final_ln'], x)
  xent = chunked_cross_entropies(params, x, batch['labels'], style.loss_chunks)
  weights = batch['weights']
  return jnp.sum(xent * weights) / (jnp.sum(weights) + 1e-6)


def chunked_cross_entropies(
  params: Params, x: jax.Array, labels: jax.Array, num_chunks: int
) -> jax.Array:
  """Returns the cross entropy of each token, [B, T], chunk by chunk."""
  if num_chunks == 1:
    return cross_entropies(params, x, labels)

  def split(array: jax.Array) -> jax.Array:
    rows, length, *rest = array.shape
    chunks = array.reshape(rows, num_chunks, length // num_chunks, *rest)
    return jnp.moveaxis(chunks, 1, 0)

  # Saves no logits for the backward pass.
  run = jax.checkpoint(lambda chunk: cross_entropies(params, *chunk))
  xent = jax.lax.map(run, (split(x), split(labels)))
  return jnp.moveaxis(xent, 0, 1).reshape(labels.shape)


def cross_entropies(
  params: Params, x: jax.Array, labels: jax.Array
) -> jax.Array:
  """Returns the cross entropy of each token in nats, [B, T]."""
  logits = x @ params['table'] + params['table_bias']
  logits = 30.0 * jnp.tanh(logits / 30.0)
  is_label = jnp.arange(logits.shape[-1]) == labels[..., None]
  # Faster than a gather, whose gradient is a scatter.
  label_logits = jnp.sum(jnp.where(is_label, logits, 0.0), axis=-1)
  return jax.nn.logsumexp(logits, axis=-1) - label_logits


def _by_rows(x: jax.Array, style: Style) -> jax.Array:
  """Constrains `x` to be sharded over rows of the batch."""
  if not style.rows:
    return x
  return jax.lax.with_sharding_constraint(
    x, jax.sharding.PartitionSpec(style.rows)
  )


def attention(layer: Params, x: jax.Array, mask: jax.Array) -> jax.Array:
  """Returns the output of self-attention, [B, T, D]."""
  heads = jnp.einsum('BTD,KDNH->BTKNH', x, layer['qkv'])
  query, key, value = (part[:, :, 0] for part in jnp.split(heads, 3, axis=2))
  head = query.shape[-1]
  scale = jax.nn.softplus(layer['scale']) * (1.442695041 / math.sqrt(head))
  logits = jnp.einsum('BTNH,BSNH->BNTS', query * scale, key)
  logits = 50.0 * jnp.tanh(logits / 50.0)
  probs = jax.nn.softmax(jnp.where(mask, logits, -1e30))
  context = jnp.einsum('BNTS,BSNH->BTNH', probs, value)
  return jnp.einsum('BTNH,DNH->BTD', context, layer['post'])


def transformer(layer: Params, x: jax.Array, mask: jax.Array) -> jax.Array:
  """Returns the output of one layer, [B, T, D]."""
  x = x + attention(layer, layer_norm(layer['ln'], x), mask)
  return x + feed_forward(layer, x)


def feed_forward(layer: Params, x: jax.Array) -> jax.Array:
  """Returns the residual of the feed-forward block, [..., D]."""
  hidden = layer_norm(layer['ff_ln'], x) @ layer['w1'] + layer['b1']
  return jax.nn.gelu(hidden) @ layer['w2'] + layer['b2']


def layer_norm(weights: Params, x: jax.Array) -> jax.Array:
  """Returns `x` normalized over its last dimension."""
  centered = x - jnp.mean(x, axis=-1, keepdims=True)
  variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
  normed = centered * jax.lax.rsqrt(variance + 1e-6)
  return normed * (1.0 + weights['scale']) + weights['bias']


def causal_segments(segments: jax.Array) -> jax.Array:
  """Returns the causal mask within segments, [B, 1, T, T]."""
  length = segments.shape[1]
  causal = jnp.tril(jnp.ones((length, length), bool))
  same = segments[:, :, None] == segments[:, None, :]
  return (causal & same)[:, None]


def sinusoids(positions: jax.Array, dims: int) -> jax.Array:
  """Returns sinusoidal position embeddings."""
  half = dims // 2
  step = math.log(10_000) / (half - 1)
  angles = positions[..., None] * jnp.exp(-step * jnp.arange(half))
  return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def layer_of(layer: Any) -> Params:
  """Returns the parameters of one layer of the experiment, or of a stack."""
  attention, ff = layer['self_attention'], layer['ff_layer']
  return {
    'ln': dict(layer['layer_norm']),
    'qkv': attention['combined_qkv']['w'],
    'scale': attention['per_dim_scale']['per_dim_scale'],
    'post': attention['post']['w'],
    'ff_ln': dict(ff['layer_norm']),
    'w1': ff['ffn_layer1']['linear']['w'],
    'b1': ff['ffn_layer1']['bias']['b'],
    'w2': ff['ffn_layer2']['linear']['w'],
    'b2': ff['ffn_layer2']['bias']['b'],
  }


def random_params(key: jax.Array) -> Params:
  """Returns random parameters of 4 stacked layers."""
  layers, dims, heads, head, hidden, vocab = 4, 256, 4, 64, 1024, 8192

  def matrix(key: jax.Array, *shape: int) -> jax.Array:
    return jax.random.normal(key, shape) * dims**-0.5

  keys = jax.random.split(key, 5)
  norm = {'scale': jnp.zeros([layers, dims]), 'bias': jnp.zeros([layers, dims])}
  return {
    'table': matrix(keys[0], dims, vocab),
    'table_bias': jnp.zeros([vocab]),
    'final_ln': {'scale': jnp.zeros([dims]), 'bias': jnp.zeros([dims])},
    'layers': {
      'ln': norm,
      'qkv': matrix(keys[1], layers, 3, dims, heads, head),
      'scale': jnp.zeros([layers, head]),
      'post': matrix(keys[2], layers, dims, heads, head),
      'ff_ln': norm,
      'w1': matrix(keys[3], layers, dims, hidden),
      'b1': jnp.zeros([layers, hidden]),
      'w2': matrix(keys[4], layers, hidden, dims),
      'b2': jnp.zeros([layers, dims]),
    },
  }


def main() -> None:
  """Trains for a few steps and prints their losses."""
  steps = int(sys.argv[1]) if len(sys.argv) > 1 else 3
  tx = optimizer(
    Schedule(
      peak=2.5e-4,
      warmup=4000,
      decay_start=4001,
      decay_end=300_000,
      min_ratio=0.1,
    )
  )
  style = Style(scan=True, remat=True)
  step = jax.jit(make_step(tx, style), donate_argnums=(0, 1))

  def init(key: jax.Array) -> tuple[Params, Any]:
    params = random_params(key)
    return params, tx.init(params)

  params, state = jax.jit(init)(jax.random.key(0))
  batch = jax.device_put(measure.random_lm_batch(8, 256, 8192))
  for i in range(steps):
    params, state, loss = step(params, state, batch)
    print(f'step {i + 1} loss {float(loss):.4f}', flush=True)


if __name__ == '__main__':
  main()
