# SPDX-License-Identifier: Apache-2.0
"""Outputs and gradients of a stack, one by one and scanned."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from praxis.layers import attentions
from tests.praxis.layers import running
from tests.praxis.layers.transformers import kinds

SEGMENTS = np.array([[1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 2, 2]])
POSITIONS = np.array([[0, 1, 2, 0, 1, 0], [0, 0, 1, 2, 3, 4]])
PADDINGS = jnp.asarray(SEGMENTS == 0, jnp.float32)
# What gradients are taken of: everything, each segment, and the positions up to
# the fourth.
COTANGENTS = np.stack(
  [SEGMENTS > 0, SEGMENTS == 1, SEGMENTS == 2, [np.arange(kinds.T) <= 3] * 2]
)[..., None] * np.array(running.normal(kinds.B, kinds.T, kinds.D, seed=3))


def results(layer: Any, params: Any, x: Any, dtype: Any = jnp.float32) -> Any:
  """Returns the output, and the gradients of x and of the parameters."""

  def apply(params: Any, x: Any) -> Any:
    mask = attentions.segment_mask(jnp.asarray(SEGMENTS), dtype=dtype)
    positions = jnp.asarray(POSITIONS)
    paddings = PADDINGS.astype(dtype)
    return layer.apply(
      {'params': params}, x, paddings, mask, segment_pos=positions
    )

  outputs, pull = jax.vjp(apply, params, x)
  by_params, by_inputs = jax.vmap(pull)(jnp.asarray(COTANGENTS, dtype))
  return outputs, by_inputs, jax.tree.map(lambda x: x[0], by_params)


def inputs() -> Any:
  return running.normal(kinds.B, kinds.T, kinds.D)


@functools.cache
def unrolled(name: str, num_layers: int = kinds.L) -> tuple[Any, Any]:
  mask = attentions.segment_mask(jnp.asarray(SEGMENTS))
  args = inputs(), PADDINGS, mask
  return running.build(
    kinds.stack(name, num_layers), *args, segment_pos=jnp.asarray(POSITIONS)
  )


@functools.cache
def compiled(name: str, num_layers: int) -> Any:
  layer, _ = unrolled(name, num_layers)
  return running.jit(functools.partial(results, layer))


@functools.cache
def reference(name: str, num_layers: int = kinds.L) -> Any:
  _, variables = unrolled(name, num_layers)
  return compiled(name, num_layers)(variables['params'], inputs())


def reference_of_rounded(name: str, dtype: Any) -> Any:
  """Returns what the reference makes of arguments rounded to `dtype`."""
  _, variables = unrolled(name)
  arguments = jax.tree.map(
    lambda x: x.astype(dtype).astype(x.dtype), (variables['params'], inputs())
  )
  return compiled(name, kinds.L)(*arguments)


def stacked(params: Any) -> Any:
  """Returns parameters of the layers as those of a scan over them."""
  layers = [params[f'x_layers_{i}'] for i in range(kinds.L)]
  sub = jax.tree.map(lambda *x: jnp.stack(x), *layers)
  return {'repeat': {'sub': {'x_layers_0': sub}}}


def scanned(name: str, dtype: Any = jnp.float32) -> Any:
  """Returns the results of the repeated stack, by the layout of the other."""
  cfg = kinds.repeated(name).set(name='layer', fprop_dtype=dtype)
  run = running.jit(functools.partial(results, cfg.Instantiate(), dtype=dtype))
  params = stacked(unrolled(name)[1]['params'])
  return run(params, inputs().astype(dtype))


def assert_close(got: Any, want: Any, tolerance: float) -> None:
  """Compares each of the three results, to a fraction of its largest number.

  The largest of all gradients, for some are zero but for rounding: a bias of
  keys changes no softmax.
  """
  for a, b in zip(got, want, strict=True):
    largest = max(np.abs(x).max() for x in jax.tree.leaves(b))
    jax.tree.map(
      lambda x, y, atol=tolerance * largest: np.testing.assert_allclose(
        np.asarray(x, np.float32), y, 0, atol
      ),
      a,
      b,
    )


def errors(got: Any, want: Any) -> np.ndarray:
  """Returns how far each of the three results is off, as a fraction."""
  flat = lambda tree: np.concatenate(
    [np.asarray(x, np.float32).ravel() for x in jax.tree.leaves(tree)]
  )
  pairs = [(flat(a), flat(b)) for a, b in zip(got, want, strict=True)]
  return np.array([np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs])
