# SPDX-License-Identifier: Apache-2.0
"""Model FLOPs utilization (PaLM, arXiv:2204.02311); see docs/mfu.md."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pax.summaries import chips
from praxis import base_layer, py_utils

_MEASURED_SIZE = 1024
_MEASURED_REPEATS = 8

# Embedding tables: lookups take no FLOPs.
_EMBEDDING = re.compile(r'(^|/)emb_var$')
# The output projection of an attention layer, of shape [D, N, H].
_ATTENTION_OUT = re.compile(r'(^|/)self_attention/post/w$')


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFlops:
  """FLOPs of one training step, without rematerialization."""

  # Number of trainable scalars, and of those that multiply a token.
  num_params: int
  num_active_params: float
  flops_per_token: float
  flops_per_step: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peak:
  """Peak FLOP/s of all devices together."""

  # None if unknown.
  flops: float | None
  # Source of the figure, as text.
  source: str


def model_flops(
  var_weight_hparams: Any,
  *,
  batch_size: int,
  seq_len: int,
  learned: Any = None,
) -> ModelFlops:
  """Returns the FLOPs of a training step: 6·N + 6·T·Σ(N·H) per token.

  N is the number of parameters that are active for a token. Frozen ones take
  4·N, in a network without any that learns 2·N and 2·T·Σ(N·H).

  Args:
    var_weight_hparams: WeightHParams of each variable, by collection.
    batch_size: Rows of the global batch.
    seq_len: T, tokens per row.
    learned: Whether each variable learns, by collection; None: all do.
  """
  params = var_weight_hparams.get(base_layer.PARAMS, var_weight_hparams)
  if learned is None:
    learned = jax.tree.map(lambda _: True, var_weight_hparams)
  is_learned = dict(
    py_utils.tree_paths(learned.get(base_layer.PARAMS, learned))
  )
  learning_networks = {_network(path) for path, x in is_learned.items() if x}
  num_params, num_active, per_token = 0, 0.0, 0.0
  for path, weight in py_utils.tree_paths(params):
    shape = [*(weight.repeat_prefix or ()), *weight.shape]
    size = math.prod(shape)
    num_params += size
    learns_through = _network(path) in learning_networks
    if not _EMBEDDING.search(path):
      active = size * weight.active_fraction
      num_active += active
      # Forward, gradient of the inputs, gradient of the weight.
      per_token += 2.0 * (1 + learns_through + is_learned[path]) * active
    if _ATTENTION_OUT.search(path):
      width = size // weight.shape[0]
      per_token += 2.0 * (1 + 2 * learns_through) * seq_len * width
  return ModelFlops(
    num_params=num_params,
    num_active_params=num_active,
    flops_per_token=per_token,
    flops_per_step=per_token * batch_size * seq_len,
  )


def _network(path: str) -> str:
  """Returns the network of a model that has a variable."""
  return path.partition('/')[0]


def peak_flops(devices: Sequence[jax.Device]) -> Peak:
  """Returns the peak of the devices from the table; measures a CPU.

  The measurement takes 0.1 s, once per process, on otherwise idle cores.
  """
  kind = devices[0].device_kind
  if devices[0].platform == 'cpu':
    return Peak(
      flops=_measured_cpu(), source='measured on this CPU by a matmul'
    )
  if chip := chips.find(kind):
    return Peak(
      flops=chip.flops * len(devices),
      source=f'{len(devices)} x {kind}, dense bfloat16',
    )
  return Peak(flops=None, source=f'unknown for {kind!r}')


def mfu(
  flops_per_step: float, steps_per_sec: float, peak: Peak
) -> float | None:
  """Returns the utilization; None if the peak is unknown."""
  if peak.flops is None:
    return None
  return flops_per_step * steps_per_sec / peak.flops


@functools.cache
def _measured_cpu() -> float:
  """Returns the FLOP/s of a float32 matmul on all cores, best of several."""
  n = _MEASURED_SIZE
  device = jax.local_devices(backend='cpu')[0]
  square = jax.device_put(jnp.ones((n, n), jnp.float32), device)
  product = jax.jit(lambda x: x @ x)
  seconds = []
  for _ in range(_MEASURED_REPEATS):
    start = time.perf_counter()
    product(square).block_until_ready()
    seconds.append(time.perf_counter() - start)
  return 2 * n**3 / min(seconds)
