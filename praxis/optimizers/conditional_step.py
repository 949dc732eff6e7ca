# SPDX-License-Identifier: Apache-2.0
"""Work that is done on some steps only."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from praxis.pytypes import JTensor, Nested


def run_if(
  due: Bool[Array, ''],
  compute: Callable[[], Nested[JTensor]],
  otherwise: Nested[JTensor],
) -> Nested[JTensor]:
  """Returns compute() if it is due, else `otherwise` at no cost.

  Optimizers are vmapped over stacked layers, under which `jax.lax.cond` does
  both branches and then chooses. A loop of at most one round does not: nothing
  is computed when it is due for no layer.
  """
  return jax.lax.while_loop(
    lambda state: state[0],
    lambda state: (jnp.zeros_like(state[0]), compute()),
    (due, otherwise),
  )[1]
