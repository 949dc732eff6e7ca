# SPDX-License-Identifier: Apache-2.0
"""GPT layers in JAX and Optax only, and in PyTorch only, for `gpu_lm`.

Both have the matrices of `nvidia.NVIDIA1_3B` with tied embeddings, weights in
float32, products in bfloat16, and Adam. Shapes: B rows, T time, D model.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

Params = dict[str, Any]
# Runs a step to its end and returns the loss.
Step = Callable[[], float]

_LEARNING_RATE = 1e-4
_INIT_STD = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
  """Sizes of a model and of its batch."""

  layers: int
  dims: int
  heads: int
  vocab: int
  rows: int
  length: int

  @property
  def hidden(self) -> int:
    return 4 * self.dims

  def batch(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids and labels, [B, T]."""
    rng = np.random.default_rng(0)
    shape = (self.rows, self.length + 1)
    ids = rng.integers(1, self.vocab, shape, dtype=np.int32)
    return ids[:, :-1], ids[:, 1:]


def jax_step(sizes: Sizes) -> Step:
  """Returns a step with cuDNN's attention on GPUs, layers in a scan."""
  tx = optax.adamw(_LEARNING_RATE, b2=0.95)

  @functools.partial(jax.jit, donate_argnums=(0, 1))
  def step(
    params: Params, state: Any, ids: jax.Array, labels: jax.Array
  ) -> tuple[Params, Any, jax.Array]:
    loss, grads = jax.value_and_grad(_loss)(params, ids, labels, sizes.heads)
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss

  params = jax.jit(functools.partial(_init, sizes))(jax.random.key(0))
  held = [params, jax.jit(tx.init)(params)]
  batch = jax.device_put(sizes.batch())

  def run() -> float:
    held[0], held[1], loss = step(held[0], held[1], *batch)
    return float(loss)

  return run


def _init(sizes: Sizes, key: jax.Array) -> Params:
  keys = iter(jax.random.split(key, 6))
  n, d = sizes.layers, sizes.dims

  def matrix(*shape: int) -> jax.Array:
    return _INIT_STD * jax.random.normal(next(keys), shape)

  def norm(*shape: int) -> Params:
    return {'scale': jnp.ones(shape), 'bias': jnp.zeros(shape)}

  return {
    'table': matrix(sizes.vocab, d),
    'positions': matrix(sizes.length, d),
    'final_norm': norm(d),
    'layers': {
      'norm': norm(n, d),
      'qkv': matrix(n, d, 3 * d),
      'post': matrix(n, d, d),
      'hidden_norm': norm(n, d),
      'w1': matrix(n, d, sizes.hidden),
      'b1': jnp.zeros((n, sizes.hidden)),
      'w2': matrix(n, sizes.hidden, d),
      'b2': jnp.zeros((n, d)),
    },
  }


def _loss(
  params: Params, ids: jax.Array, labels: jax.Array, heads: int
) -> jax.Array:
  """Returns the mean cross entropy in nats per token."""
  table = params['table'].astype(jnp.bfloat16)
  x = table[ids] + params['positions'].astype(jnp.bfloat16)

  def layer(x: jax.Array, weights: Params) -> tuple[jax.Array, None]:
    weights = jax.tree.map(lambda w: w.astype(jnp.bfloat16), weights)
    x = x + _attention(weights, _norm(weights['norm'], x), heads)
    hidden = _norm(weights['hidden_norm'], x) @ weights['w1'] + weights['b1']
    return x + jax.nn.gelu(hidden) @ weights['w2'] + weights['b2'], None

  x, _ = jax.lax.scan(layer, x, params['layers'])
  x = _norm(params['final_norm'], x)
  logits = jnp.einsum(
    'BTD,VD->BTV', x, table, preferred_element_type=jnp.float32
  )
  losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
  return jnp.mean(losses)


def _attention(weights: Params, x: jax.Array, heads: int) -> jax.Array:
  *rows, dims = x.shape
  qkv = (x @ weights['qkv']).reshape(*rows, 3, heads, dims // heads)
  out = jax.nn.dot_product_attention(
    *(qkv[:, :, i] for i in range(3)),
    is_causal=True,
    implementation='cudnn' if jax.default_backend() == 'gpu' else None,
  )
  return out.reshape(*rows, dims) @ weights['post']


def _norm(weights: Params, x: jax.Array) -> jax.Array:
  wide = x.astype(jnp.float32)
  centered = wide - jnp.mean(wide, axis=-1, keepdims=True)
  variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
  normed = (centered * jax.lax.rsqrt(variance + 1e-6)).astype(x.dtype)
  return normed * weights['scale'].astype(x.dtype) + weights['bias'].astype(
    x.dtype
  )


def torch_step(sizes: Sizes, device: str) -> Step:
  """Returns a step of torch.compile with scaled_dot_product_attention.

  Raises:
    ImportError: PyTorch is not installed.
  """
  import torch
  from torch import nn
  from torch.nn import functional

  class Layer(nn.Module):
    def __init__(self) -> None:
      super().__init__()
      self.norm = nn.LayerNorm(sizes.dims)
      self.qkv = nn.Linear(sizes.dims, 3 * sizes.dims, bias=False)
      self.post = nn.Linear(sizes.dims, sizes.dims, bias=False)
      self.hidden_norm = nn.LayerNorm(sizes.dims)
      self.w1 = nn.Linear(sizes.dims, sizes.hidden)
      self.w2 = nn.Linear(sizes.hidden, sizes.dims)

    def forward(self, x: Any) -> Any:
      rows, length, dims = x.shape
      qkv = self.qkv(self.norm(x))
      heads = qkv.view(rows, length, 3, sizes.heads, dims // sizes.heads)
      q, k, v = heads.permute(2, 0, 3, 1, 4).unbind()
      out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
      x = x + self.post(out.transpose(1, 2).reshape(rows, length, dims))
      hidden = functional.gelu(self.w1(self.hidden_norm(x)), approximate='tanh')
      return x + self.w2(hidden)

  class Model(nn.Module):
    def __init__(self) -> None:
      super().__init__()
      self.table = nn.Embedding(sizes.vocab, sizes.dims)
      self.positions = nn.Parameter(torch.zeros(sizes.length, sizes.dims))
      self.layers = nn.ModuleList(Layer() for _ in range(sizes.layers))
      self.final_norm = nn.LayerNorm(sizes.dims)
      nn.init.normal_(self.table.weight, std=_INIT_STD)

    def forward(self, ids: Any, labels: Any) -> Any:
      x = self.table(ids) + self.positions
      for layer in self.layers:
        x = layer(x)
      logits = functional.linear(self.final_norm(x), self.table.weight)
      return functional.cross_entropy(
        logits.float().view(-1, sizes.vocab), labels.view(-1)
      )

  torch.manual_seed(0)
  model = Model().to(device)
  optimizer = torch.optim.AdamW(
    model.parameters(), lr=_LEARNING_RATE, betas=(0.9, 0.95), fused=True
  )
  compiled = torch.compile(model)
  ids, labels = (torch.from_numpy(a).long().to(device) for a in sizes.batch())

  def run() -> float:
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device, dtype=torch.bfloat16):
      loss = compiled(ids, labels)
    loss.backward()
    optimizer.step()
    return float(loss.detach())

  return run
