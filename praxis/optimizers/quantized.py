# SPDX-License-Identifier: Apache-2.0
"""Moments in fewer bits: int8 with a scale per column, or bfloat16."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis.optimizers import masking
from praxis.pytypes import JTensor

_DTYPES = ('int8', 'bfloat16', 'float32')
_LARGEST = 127.0


def check_dtype(name: str) -> None:
  """Raises ValueError unless `name` is a storage type of this module."""
  if name not in _DTYPES:
    raise ValueError(
      f'quantized_dtype must be one of {", ".join(_DTYPES)}, got {name!r}'
    )


def to_quantized(
  x: Float[Array, ...], dtype: str
) -> tuple[JTensor, JTensor | masking.BpropMaskedNode]:
  """Returns (values in `dtype`, scale); only int8 has a scale.

  The int8 scale is the largest magnitude over the first dimension, divided by
  127, so that no value saturates.
  """
  if dtype != 'int8':
    return x.astype(dtype), masking.BpropMaskedNode()
  axis = 0 if x.ndim else None
  scale = jnp.max(jnp.abs(x), axis=axis) / _LARGEST
  values = jnp.round(x / jnp.where(scale > 0, scale, 1.0))
  return values.astype(jnp.int8), scale


def to_float(values: JTensor, scale: Any) -> Float[Array, ...]:
  """Returns what `to_quantized` stored, as float32."""
  values = values.astype(jnp.float32)
  return values if masking.is_masked(scale) else values * scale
