# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of layers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from praxis import base_layer


def random_variables(
  layer: base_layer.BaseLayer, *args: Any, scale: float = 0.3, **kwargs: Any
) -> dict[str, Any]:
  """Returns variables of a layer, all normal with deviation `scale`.

  Nothing is compiled, and no weight starts at zero, where a test would not
  notice that it is left out.
  """
  tree = layer.abstract_init_with_metadata(*args, **kwargs)
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda w: jnp.asarray(scale * rng.standard_normal(w.full_shape), w.dtype),
    tree,
    is_leaf=lambda x: isinstance(x, base_layer.WeightHParams),
  )
