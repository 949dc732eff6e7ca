# SPDX-License-Identifier: Apache-2.0
"""Building and running layers in tests, compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from praxis import base_layer

# Tests run a program once: what counts is the time to compile it.
jit = functools.partial(
  jax.jit, compiler_options={'xla_backend_optimization_level': 0}
)


def build(cfg: Any, *args: Any, seed: int = 0, **kwargs: Any) -> Any:
  """Returns the layer of a Config, and variables none of which is special.

  Initial values would be many zeros and ones, which hide faults.
  """
  layer = cfg.clone().set(name='layer').Instantiate()
  key = jax.random.key(seed)
  init = jax.eval_shape(lambda key: layer.init(key, *args, **kwargs), key)
  numbers = np.random.default_rng(seed)
  # Drawn here, not by the layer: nothing to compile.
  draw = lambda x: jnp.asarray(
    numbers.normal(size=x.shape) * (0.1 + 0.5 / (*x.shape, 1)[0] ** 0.5),
    x.dtype,
  )
  return layer, jax.tree.map(draw, init)


def run(layer: Any, variables: Any, *args: Any, **kwargs: Any) -> Any:
  """Returns what the layer gives, in one compilation."""
  names = ('method', 'mutable', 'do_eval')
  fixed = {name: kwargs.pop(name) for name in names if name in kwargs}
  return compiled(layer, **fixed)(variables, *args, **kwargs)


def compiled(
  layer: Any, *, do_eval: bool = False, **fixed: Any
) -> Callable[..., Any]:
  """Returns `(variables, *args, **kwargs)`, for calls that share a program.

  `fixed` are the method and the mutable collections.
  """

  @jit
  def apply(variables: Any, *args: Any, **kwargs: Any) -> Any:
    context = base_layer.JaxContext.HParams(do_eval=do_eval)
    with base_layer.JaxContext.new_context(hparams=context):
      return layer.apply(variables, *args, **fixed, **kwargs)

  return apply


def attention_step(layer: Any, variables: Any) -> Callable[..., Any]:
  """Returns one step of `extend_step` as a body for `jax.lax.scan`."""

  def step(cache: Any, inputs: Any) -> tuple[Any, jax.Array]:
    x, time_step, mask = inputs
    out, cache = layer.apply(
      {**variables, **cache},
      x,
      atten_mask=mask,
      time_step=time_step,
      segment_pos=None,
      method='extend_step',
      mutable=[base_layer.DECODE_CACHE],
    )
    return cache, out

  return step


def normal(*shape: int, seed: int = 7) -> jax.Array:
  numbers = np.random.default_rng(seed).normal(size=shape)
  return jnp.asarray(numbers, jnp.float32)


def shapes(variables: Any) -> dict[str, tuple[int, ...]]:
  """Returns the shape of each parameter by its path."""
  pairs, _ = jax.tree_util.tree_flatten_with_path(variables['params'])
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): x.shape
    for path, x in pairs
  }
