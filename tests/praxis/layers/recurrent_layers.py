# SPDX-License-Identifier: Apache-2.0
"""Layers whose state passes from step to step, for their tests."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from praxis import base_layer
from praxis.layers import attentions
from tests.praxis.layers import running

BATCH, LENGTH, DIM = 2, 11, 8
CACHE = [base_layer.DECODE_CACHE]
SEGMENTS = jnp.array(
  [[1, 1, 1, 2, 3, 3, 3, 3, 3, 3, 3], [1, 1, 1, 1, 1, 1, 2, 2, 0, 0, 0]]
)


class BuiltLayer:
  """A layer with variables, and programs that tests share."""

  def __init__(self, config: Any) -> None:
    x = inputs()
    mask = attentions.causal_mask(x)
    self.layer, self.variables = running.build(config, x, x, x, mask)
    self.run = running.compiled(self.layer, method=call, mutable=CACHE)
    self.step = running.compiled(self.layer, method=step, mutable=CACHE)

  def __call__(self, x: Any, mask: Any = None, pos: Any = None) -> Any:
    """Returns the outputs, and the cache."""
    mask = attentions.causal_mask(x) if mask is None else mask
    return self.run(self.variables, x, mask, pos)


def inputs(batch: int = BATCH) -> jax.Array:
  return running.normal(batch, LENGTH, DIM)


def call(layer: Any, x: Any, mask: Any, pos: Any = None) -> Any:
  return layer(x, x, x, mask, pos, pos)[0]


def step(layer: Any, x: Any, time_step: Any, pos: Any = None) -> Any:
  return layer.extend_step(x, time_step=time_step, segment_pos=pos)


def starts_of_segments() -> np.ndarray:
  return np.diff(np.asarray(SEGMENTS), axis=1, prepend=-1) != 0


def first_steps() -> np.ndarray:
  return np.arange(LENGTH)[np.newaxis].repeat(BATCH, 0) == 0


def convolution_by_hand(x: Any, params: Any, is_start: Any) -> np.ndarray:
  """The weighted sum of a step and those before it in its segment."""
  out = np.zeros(x.shape) + params.get('bias', 0.0)
  num_taps = sum(name.startswith('dconv') for name in params)
  for b, t in np.ndindex(*x.shape[:2]):
    for i in range(num_taps):
      if i > t or is_start[b, t - i + 1 : t + 1].any():
        break
      out[b, t] += params[f'dconv_{i}'] * x[b, t - i]
  return out


def silu(x: Any) -> Any:
  return x / (1 + np.exp(-x))
