# SPDX-License-Identifier: Apache-2.0
"""Products of groups of rows for NVIDIA GPUs, in Pallas by Triton.

XLA has no grouped product for them: it multiplies all rows by the weights of
every group, and copies the rows for each. Here a program computes one tile of
the result and reads the rows of one group only. Sums are in float32.

Shapes: R rows, sorted by group; G groups; K inputs and N outputs; V visits.

References: MegaBlocks, https://arxiv.org/abs/2211.15841
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import lazy_loader

# Lazy: they import the compilers of kernels.
pl = lazy_loader.LazyLoader('pl', globals(), 'jax.experimental.pallas')
triton = lazy_loader.LazyLoader(
  'triton', globals(), 'jax.experimental.pallas.triton'
)

DTYPES = (jnp.bfloat16, jnp.float16)
# Numbers of inputs and outputs are a multiple: the smaller side of a tile.
DIM_MULTIPLE = 64
# The larger side of a tile, and the fewest rows of a product.
_MAX_TILE = 128
_MIN_TILE = 16
# Visits whose tiles of a column follow one another, as they share weights.
_VISITS_OF_BAND = 8
_NUM_WARPS = 8
_NUM_STAGES = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Kernel:
  """A kernel, and what it computes."""

  name: str
  body: Callable[..., None]
  flops: int
  interpret: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Tile:
  """The result of a program, and its summands of one iteration."""

  rows: int
  columns: int
  inner: int


class _Visits(NamedTuple):
  """The tiles of rows that programs visit, each within one group."""

  group: Int[Array, ' V']
  # The first row of the tile, and the one after the last of its group. The
  # former is not smaller for visits that no group needs.
  start: Int[Array, ' V']
  end: Int[Array, ' V']


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def grouped_matmul(
  rows: Float[Array, 'R K'],
  weights: Float[Array, 'G K N'],
  group_sizes: Int[Array, ' G'],
  interpret: bool = False,
) -> Float[Array, 'R N']:
  """Returns rows[group] @ weights[i] for each group i of consecutive rows.

  Rows after the last group are undefined, and so are their gradients.

  Args:
    rows: bfloat16 or float16; K and N are multiples of 64.
    weights: of the same dtype.
    group_sizes: number of rows of each group.
    interpret: whether to interpret the kernels, on CPUs.
  """
  return _product(rows, weights, group_sizes, False, interpret)


def _forward(
  rows: Float[Array, 'R K'],
  weights: Float[Array, 'G K N'],
  group_sizes: Int[Array, ' G'],
  interpret: bool,
) -> tuple[Float[Array, 'R N'], tuple[Array, ...]]:
  outputs = _product(rows, weights, group_sizes, False, interpret)
  return outputs, (rows, weights, group_sizes)


def _backward(
  interpret: bool, residuals: tuple[Array, ...], douts: Float[Array, 'R N']
) -> tuple[Float[Array, 'R K'], Float[Array, 'G K N'], None]:
  rows, weights, group_sizes = residuals
  return (
    _product(douts, weights, group_sizes, True, interpret),
    _weight_gradient(rows, douts, group_sizes, interpret),
    None,
  )


grouped_matmul.defvjp(_forward, _backward)


def _product(
  rows: Float[Array, 'R I'],
  weights: Float[Array, 'G K N'],
  group_sizes: Int[Array, ' G'],
  transposed: bool,
  interpret: bool,
) -> Float[Array, 'R O']:
  """Returns the products with the weights, or with their transposes."""
  num_rows, num_inputs = rows.shape
  num_groups = weights.shape[0]
  num_outputs = weights.shape[1 if transposed else 2]
  tile = _Tile(
    rows=_rows_of_tile(num_rows, num_groups),
    columns=_side_of_tile(num_outputs),
    inner=DIM_MULTIPLE,
  )
  visits = _visits(group_sizes, num_rows, tile.rows)
  kernel = _Kernel(
    name=f'pax_grouped_{"transposed_" if transposed else ""}product',
    body=functools.partial(_product_kernel, tile=tile, transposed=transposed),
    flops=2 * num_rows * num_inputs * num_outputs,
    interpret=interpret,
  )
  return _call(
    kernel,
    grid=(visits.group.shape[0] * (num_outputs // tile.columns),),
    operands=(visits, rows, weights),
    shape=(num_rows, num_outputs),
  )


def _weight_gradient(
  rows: Float[Array, 'R K'],
  douts: Float[Array, 'R N'],
  group_sizes: Int[Array, ' G'],
  interpret: bool,
) -> Float[Array, 'G K N']:
  """Returns rows[group].T @ douts[group] of each group."""
  num_rows, num_inputs = rows.shape
  num_groups, num_outputs = group_sizes.shape[0], douts.shape[1]
  ends = jnp.cumsum(group_sizes)
  tile = _Tile(
    rows=_side_of_tile(num_inputs),
    columns=_side_of_tile(num_outputs),
    inner=min(DIM_MULTIPLE, _rows_of_tile(num_rows, num_groups)),
  )
  kernel = _Kernel(
    name='pax_grouped_weight_gradient',
    body=functools.partial(_weight_gradient_kernel, tile=tile),
    flops=2 * num_rows * num_inputs * num_outputs,
    interpret=interpret,
  )
  return _call(
    kernel,
    grid=(num_outputs // tile.columns, num_inputs // tile.rows, num_groups),
    operands=(ends - group_sizes, ends, rows, douts),
    shape=(num_groups, num_inputs, num_outputs),
  )


def _product_kernel(
  visits: _Visits,
  rows: Any,
  weights: Any,
  out: Any,
  *,
  tile: _Tile,
  transposed: bool,
) -> None:
  visit, column = _visit_and_column(
    pl.program_id(0), visits.group.shape[0], out.shape[1] // tile.columns
  )
  group, start, end = (x[visit] for x in visits)
  is_of_group = (start + jnp.arange(tile.rows) < end)[:, None]
  row_slice = pl.ds(start, tile.rows)
  columns = pl.ds(column * tile.columns, tile.columns)

  def step(i: Array, total: Array) -> Array:
    inner = pl.ds(i * tile.inner, tile.inner)
    lhs = triton.load(rows.at[row_slice, inner], mask=is_of_group, other=0.0)
    if transposed:
      rhs = weights[group, columns, inner].T
    else:
      rhs = weights[group, inner, columns]
    return total + _dot(lhs, rhs)

  # A visit that no group needs has no products.
  num_steps = (start < end).astype(jnp.int32) * (rows.shape[1] // tile.inner)
  total = jnp.zeros((tile.rows, tile.columns), jnp.float32)
  total = jax.lax.fori_loop(0, num_steps, step, total)
  triton.store(
    out.at[row_slice, columns], total.astype(out.dtype), mask=is_of_group
  )


def _weight_gradient_kernel(
  starts: Any, ends: Any, rows: Any, douts: Any, out: Any, *, tile: _Tile
) -> None:
  column, row, group = (pl.program_id(i) for i in range(3))
  start, end = starts[group], ends[group]
  inputs = pl.ds(row * tile.rows, tile.rows)
  outputs = pl.ds(column * tile.columns, tile.columns)

  def step(i: Array, total: Array) -> Array:
    first = start + i * tile.inner
    summands = pl.ds(first, tile.inner)
    is_of_group = (first + jnp.arange(tile.inner) < end)[:, None]
    lhs, rhs = (
      triton.load(x, mask=is_of_group, other=0.0)
      for x in (rows.at[summands, inputs], douts.at[summands, outputs])
    )
    return total + _dot(lhs.T, rhs)

  total = jnp.zeros((tile.rows, tile.columns), jnp.float32)
  num_steps = pl.cdiv(end - start, tile.inner)
  total = jax.lax.fori_loop(0, num_steps, step, total)
  out[group, inputs, outputs] = total.astype(out.dtype)


def _dot(lhs: Float[Array, 'A I'], rhs: Float[Array, 'I B']) -> Array:
  return jnp.dot(lhs, rhs, preferred_element_type=jnp.float32)


def _visit_and_column(
  program: Array, num_visits: int, num_columns: int
) -> tuple[Array, Array]:
  """Returns the tile of a program.

  Programs run about in their order: those of a band of visits use each column
  of weights while it is in the cache.
  """
  programs_of_band = _VISITS_OF_BAND * num_columns
  first = program // programs_of_band * _VISITS_OF_BAND
  num_of_band = jnp.minimum(num_visits - first, _VISITS_OF_BAND)
  within = program % programs_of_band
  return first + within % num_of_band, within // num_of_band


def _visits(
  group_sizes: Int[Array, ' G'], num_rows: int, rows_of_tile: int
) -> _Visits:
  """Returns as many visits as any sizes of the groups need."""
  num_groups = group_sizes.shape[0]
  ends = jnp.cumsum(group_sizes)
  num_tiles = -(-group_sizes // rows_of_tile)
  tile_ends = jnp.cumsum(num_tiles)
  visit = jnp.arange(num_rows // rows_of_tile + num_groups, dtype=jnp.int32)
  # Visits that no group needs come last; they start at the end of their group.
  group = jnp.searchsorted(tile_ends, visit, side='right')
  group = jnp.minimum(group, num_groups - 1).astype(jnp.int32)
  tile_of_group = visit - (tile_ends - num_tiles)[group]
  start = (ends - group_sizes)[group] + tile_of_group * rows_of_tile
  end = ends[group]
  return _Visits(group, jnp.minimum(start, end), end)


def _rows_of_tile(num_rows: int, num_groups: int) -> int:
  """Returns a power of two, not more than groups of equal sizes fill."""
  size = 1 << (-(-num_rows // num_groups) - 1).bit_length()
  return min(max(size, _MIN_TILE), _MAX_TILE)


def _side_of_tile(size: int) -> int:
  return _MAX_TILE if size % _MAX_TILE == 0 else DIM_MULTIPLE


def _call(
  kernel: _Kernel,
  *,
  grid: tuple[int, ...],
  operands: tuple[Any, ...],
  shape: tuple[int, ...],
) -> Array:
  """Returns the result of a kernel, of the dtype of its last operand."""
  result = jax.ShapeDtypeStruct(shape, operands[-1].dtype)
  return pl.pallas_call(
    kernel.body,
    grid=grid,
    out_shape=result,
    compiler_params=triton.CompilerParams(
      num_warps=_NUM_WARPS, num_stages=_NUM_STAGES
    ),
    cost_estimate=pl.CostEstimate(
      flops=kernel.flops,
      transcendentals=0,
      bytes_accessed=sum(
        math.prod(x.shape) * x.dtype.itemsize
        for x in (*jax.tree.leaves(operands), result)
      ),
    ),
    interpret=kernel.interpret,
    name=kernel.name,
  )(*operands)
