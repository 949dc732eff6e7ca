# SPDX-License-Identifier: Apache-2.0
"""Model FLOPs utilisation: what a run achieves of what its devices could.

The formula is in docs/mfu.md.
"""

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

# Weights that are looked up instead of multiplied with.
_LOOKED_UP = re.compile(r'(^|/)emb_var$')
# The output projection of an attention layer, of shape [D, N, H].
_ATTENTION_OUT = re.compile(r'(^|/)self_attention/post/w$')


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFlops:
  """What one training step of a model takes, recomputation not counted."""

  # Trainable weights.
  num_params: int
  flops_per_token: float
  flops_per_step: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peak:
  """The FLOP/s of all devices together."""

  # None: unknown.
  flops: float | None
  # Where the figure is from, for people.
  source: str


def model_flops(
  var_weight_hparams: Any, *, batch_size: int, seq_len: int
) -> ModelFlops:
  """Counts the FLOPs of a training step: 6·N + 6·T·Σ(N·H) for each token.

  Args:
    var_weight_hparams: a WeightHParams for each variable, by collection.
    batch_size: examples per step, of all hosts.
    seq_len: T, positions per example.
  """
  params = var_weight_hparams.get(base_layer.PARAMS, var_weight_hparams)
  num_params, multiplied, attention_width = 0, 0, 0
  for path, weight in py_utils.tree_paths(params):
    shape = [*(weight.repeat_prefix or ()), *weight.shape]
    size = math.prod(shape)
    num_params += size
    multiplied += 0 if _LOOKED_UP.search(path) else size
    if _ATTENTION_OUT.search(path):
      attention_width += size // weight.shape[0]
  per_token = 6.0 * multiplied + 6.0 * seq_len * attention_width
  return ModelFlops(
    num_params=num_params,
    flops_per_token=per_token,
    flops_per_step=per_token * batch_size * seq_len,
  )


def peak_flops(devices: Sequence[jax.Device]) -> Peak:
  """The peak of `devices` together, from the table; a CPU is measured.

  Measuring takes a tenth of a second, once per process; do it while nothing
  else runs.
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
  """The share of the peak that is achieved; None if the peak is unknown."""
  if peak.flops is None:
    return None
  return flops_per_step * steps_per_sec / peak.flops


@functools.cache
def _measured_cpu() -> float:
  """FLOP/s of a float32 product, the best of several, on all cores."""
  n = _MEASURED_SIZE
  device = jax.local_devices(backend='cpu')[0]
  square = jax.device_put(jnp.ones((n, n), jnp.float32), device)
  product = jax.jit(lambda x: x @ x).lower(square).compile()
  seconds = []
  for _ in range(_MEASURED_REPEATS):
    start = time.perf_counter()
    product(square).block_until_ready()
    seconds.append(time.perf_counter() - start)
  return 2 * n**3 / min(seconds)
