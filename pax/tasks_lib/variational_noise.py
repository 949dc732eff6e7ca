# SPDX-License-Identifier: Apache-2.0
"""Variational noise: Gaussian noise on variables selected by a regex."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from praxis import pax_fiddle, pytypes

JTensor = pytypes.JTensor
# A pytree of the variables.
_VarsT = TypeVar('_VarsT')


def add_noise(
  vn: pax_fiddle.Config,
  step: JTensor,
  mdl_vars: _VarsT,
  prng_key: jax.Array,
) -> _VarsT:
  """Adds noise to the variables whose path `vn.vn_regex` matches.

  Args:
    vn: The Config of `tasks_lib.SingleTask.VariationalNoise`.
    step: The step; noise is zero before `vn.vn_start_step`.
    mdl_vars: The variables.
    prng_key: Key of the noise.

  Raises:
    RuntimeError: no variable matches.
  """
  pattern = re.compile(vn.vn_regex)
  scale = jnp.where(step >= vn.vn_start_step, vn.vn_scale, 0.0)
  leaves, treedef = jax.tree_util.tree_flatten_with_path(mdl_vars)
  paths = [slash_path(path) for path, _ in leaves]
  if not any(map(pattern.match, paths)):
    raise RuntimeError(
      f'vn_regex {vn.vn_regex!r} matches none of the variables {paths}'
    )
  noisy = []
  for i, (path, (_, value)) in enumerate(zip(paths, leaves, strict=True)):
    if pattern.match(path):
      key = jax.random.fold_in(prng_key, i)
      noise = jax.random.normal(key, value.shape, value.dtype)
      value = value + scale.astype(value.dtype) * noise
    noisy.append(value)
  return jax.tree.unflatten(treedef, noisy)


def slash_path(path: Any) -> str:
  """Returns a key path as `params/lm/softmax/w`."""
  return jax.tree_util.keystr(path, simple=True, separator='/')
