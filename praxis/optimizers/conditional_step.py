# SPDX-License-Identifier: Apache-2.0
"""Computations that run on some steps only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

# A pytree of arrays.
_TreeT = TypeVar('_TreeT')


def run_if(
  is_due: Bool[Array, ''],
  compute: Callable[[], _TreeT],
  otherwise: _TreeT,
) -> _TreeT:
  """Returns compute() if `is_due`, else `otherwise` without computing.

  Optimizers are vmapped over stacked layers, where `jax.lax.cond` becomes a
  select that computes both branches. A while loop of at most one iteration
  computes nothing if no layer is due.
  """
  return jax.lax.while_loop(
    lambda state: state[0],
    lambda state: (jnp.zeros_like(state[0]), compute()),
    (is_due, otherwise),
  )[1]
