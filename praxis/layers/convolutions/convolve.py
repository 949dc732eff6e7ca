# SPDX-License-Identifier: Apache-2.0
"""N-dimensional convolutions, channels last, also in groups of channels."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Container, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import custom_derivatives
from jax.sharding import AxisType
from jaxtyping import Array, Float

from praxis import base_layer

_SPATIAL_LETTERS = 'THW'
_Tangent = Array | custom_derivatives.SymbolicZero
# 'SAME', 'VALID', or the zeros before and after each spatial dimension.
Padding = str | Sequence[tuple[int, int]]

_has_vmapped_filters = contextvars.ContextVar(
  'has_vmapped_filters', default=False
)


@contextlib.contextmanager
def vmapped_filters() -> Iterator[None]:
  """Convolutions within are mapped by `jax.vmap` over filters, as in groups."""
  token = _has_vmapped_filters.set(True)
  try:
    yield
  finally:
    _has_vmapped_filters.reset(token)


def convolve(
  x: Float[Array, 'B *space I'],
  w: Float[Array, '*size J O'],
  *,
  strides: Sequence[int],
  padding: Padding,
  dilations: Sequence[int],
  uses_all_axes: bool = False,
) -> Float[Array, 'B *outer O']:
  """Returns the convolution of `x` with the filter `w`, in I / J groups.

  On a mesh, spatial dimensions are sharded only with groups or `uses_all_axes`.

  Args:
    x: the inputs.
    w: the filter.
    strides: the stride of each spatial dimension.
    padding: as in `lax.conv_general_dilated`.
    dilations: the dilation of the filter in each spatial dimension.
    uses_all_axes: whether batch and spatial dimensions of inputs and outputs
      are sharded over all axes of the mesh.
  """
  if x.shape[-1] != w.shape[-2] or _has_vmapped_filters.get():
    return _grouped_conv(x, w, strides, padding, dilations)
  rank = len(strides)
  w = _replicate_dims(w, range(rank))
  if uses_all_axes:
    return _conv(x, w, strides, padding, dilations)
  space = range(1, rank + 1)
  x = _replicate_dims(x, space)
  return _replicate_dims(_conv(x, w, strides, padding, dilations), space)


# If spatial dimensions are sharded, XLA sums the partial products of all
# devices, also of those with the same shard (docs/known_issues.md).
def _replicate_dims(
  x: Float[Array, '*shape'], dims: Container[int]
) -> Float[Array, '*shape']:
  """Replicates dimensions of `x` and of its gradient on meshes of two axes."""
  mesh = jax.sharding.get_abstract_mesh()
  kinds = zip(mesh.axis_sizes, mesh.axis_types, strict=True)
  if sum(n > 1 and kind == AxisType.Auto for n, kind in kinds) < 2:
    return x
  return base_layer.replicate_dims(x, dims)


def _conv(
  x: Float[Array, 'B *space I'],
  w: Float[Array, '*size J O'],
  strides: Sequence[int],
  padding: Padding,
  dilations: Sequence[int],
) -> Float[Array, 'B *outer O']:
  space = _SPATIAL_LETTERS[-len(strides) :]
  return jax.lax.conv_general_dilated(
    x,
    w,
    window_strides=strides,
    padding=padding,
    rhs_dilation=dilations,
    dimension_numbers=(f'N{space}C', f'{space}IO', f'N{space}C'),
    feature_group_count=x.shape[-1] // w.shape[-2],
  )


# The gradient of the filter that JAX derives is a convolution in groups of the
# batch. XLA adds it up over all devices, also over those that have the same
# rows of the batch: it is too large by their number.
_grouped_conv = jax.custom_jvp(_conv, nondiff_argnums=(2, 3, 4))


@functools.partial(_grouped_conv.defjvp, symbolic_zeros=True)
def _grouped_conv_jvp(
  strides: Sequence[int],
  padding: Padding,
  dilations: Sequence[int],
  primals: tuple[Array, Array],
  tangents: tuple[_Tangent, _Tangent],
) -> tuple[Array, Array]:
  x, w = primals
  x_dot, w_dot = tangents
  out = _grouped_conv(x, w, strides, padding, dilations)
  out_dot = jnp.zeros_like(out)
  if not isinstance(x_dot, custom_derivatives.SymbolicZero):
    out_dot += _grouped_conv(x_dot, w, strides, padding, dilations)
  if not isinstance(w_dot, custom_derivatives.SymbolicZero):
    out_dot += _conv_by_taps(x, w_dot, strides, padding, dilations)
  return out, out_dot


def _conv_by_taps(
  x: Float[Array, 'B *space I'],
  w: Float[Array, '*size J O'],
  strides: Sequence[int],
  padding: Padding,
  dilations: Sequence[int],
) -> Float[Array, 'B *outer O']:
  """Returns the convolution as a sum of matmuls, one for each filter tap."""
  sizes = w.shape[:-2]
  spans = [d * (k - 1) + 1 for k, d in zip(sizes, dilations, strict=True)]
  if isinstance(padding, str):
    padding = jax.lax.padtype_to_pads(x.shape[1:-1], spans, strides, padding)
  x = jnp.pad(x, [(0, 0), *padding, (0, 0)])
  # Number of positions at which the filter starts.
  num_starts = [n - s + 1 for n, s in zip(x.shape[1:-1], spans, strict=True)]
  num_groups = x.shape[-1] // w.shape[-2]
  x = x.reshape(*x.shape[:-1], num_groups, -1)
  w = w.reshape(*w.shape[:-1], num_groups, -1)

  def convolve_tap(tap: tuple[int, ...]) -> Float[Array, 'B *outer G P']:
    starts = [d * k for k, d in zip(tap, dilations, strict=True)]
    window = tuple(
      slice(start, start + n, stride)
      for start, n, stride in zip(starts, num_starts, strides, strict=True)
    )
    return jnp.einsum('b...gi,igo->b...go', x[:, *window], w[tap])

  taps = np.ndindex(*sizes)
  out = functools.reduce(jnp.add, map(convolve_tap, taps))
  return out.reshape(*out.shape[:-2], -1)
