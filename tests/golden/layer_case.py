# SPDX-License-Identifier: Apache-2.0
"""A layer and its input, whose declared variables are written down."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from praxis import base_layer, pax_fiddle


@dataclasses.dataclass(frozen=True)
class Case:
  """What is called: `config` built, then `method` on the arguments."""

  config: pax_fiddle.Config[base_layer.BaseLayer]
  args: tuple[Any, ...]
  kwargs: dict[str, Any]
  method: str | None


def case(
  config: pax_fiddle.Config[base_layer.BaseLayer],
  *args: Any,
  method: str | None = None,
  **kwargs: Any,
) -> Case:
  """Returns a case; arrays may be given by shape and dtype alone."""
  return Case(config, args, kwargs, method)


def f32(*shape: int) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, jnp.int32)
