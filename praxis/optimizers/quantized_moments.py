# SPDX-License-Identifier: Apache-2.0
"""Optimizer moments stored as scaled integers, bfloat16 or float32."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis.optimizers import masked_trees
from praxis.pytypes import JTensor

_DTYPES = ('int8', 'bfloat16', 'float32')


def check_dtype(name: str) -> None:
  """Checks a storage dtype of moments.

  Raises:
    ValueError: optimizers cannot store moments as `name`.
  """
  if name not in _DTYPES:
    raise ValueError(
      f'quantized_dtype must be one of {", ".join(_DTYPES)}, got {name!r}'
    )


def to_quantized(
  fvalue: Float[Array, ...], quantized_dtype: Any
) -> tuple[JTensor, JTensor | masked_trees.BpropMaskedNode]:
  """Returns (values in `quantized_dtype`, scale); only integers have a scale.

  The scale is the maximum magnitude over the first dimension divided by the
  maximum integer, so that no value saturates.
  """
  dtype = jnp.dtype(quantized_dtype)
  if not jnp.issubdtype(dtype, jnp.integer):
    return fvalue.astype(dtype), masked_trees.BpropMaskedNode()
  axis = 0 if fvalue.ndim else None
  # The initial value is the result for an array without elements.
  largest = jnp.max(jnp.abs(fvalue), axis=axis, initial=0.0)
  scale = largest / jnp.iinfo(dtype).max
  values = jnp.round(fvalue / jnp.where(scale > 0, scale, 1.0))
  return values.astype(dtype), scale


def to_float(quantized: JTensor, bucket_size: Any) -> Float[Array, ...]:
  """Returns the float32 values of `to_quantized`."""
  values = quantized.astype(jnp.float32)
  return values if masked_trees.is_masked(bucket_size) else values * bucket_size
