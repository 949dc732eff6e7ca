# SPDX-License-Identifier: Apache-2.0
"""Flash attention of packed sequences for NVIDIA GPUs, in Pallas by Triton.

A program computes the output, or the gradient, of one block of rows. It reads
only the blocks of the other side between the first and the last that may be
visible: within the window, with segments in common.

Shapes: as in attention_reference.py; R blocks of rows.

References: FlashAttention-2, arXiv:2307.08691.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from praxis import lazy_loader, py_utils
from praxis.kernels.attention_reference import Spec

# Lazy: they import the compilers of kernels.
pl = lazy_loader.LazyLoader('pl', globals(), 'jax.experimental.pallas')
triton = lazy_loader.LazyLoader(
  'triton', globals(), 'jax.experimental.pallas.triton'
)

# Lengths are padded to a multiple of all blocks, head dimensions to powers of
# two, of which products need at least 16.
_LENGTH_MULTIPLE = 128
_MIN_HEAD_DIM = 16
# Segment of that padding, which sees itself only.
_PADDING_ID = jnp.iinfo(jnp.int32).min
# Replaces logits that are not visible: finite, so that no difference is NaN.
_HIDDEN = -1e30


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Blocks:
  """Sizes of the blocks of a kernel, and its resources."""

  # Rows of a program: its results are of them.
  rows: int
  # Positions of the other side in one iteration.
  columns: int
  num_warps: int
  num_stages: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Kernel:
  """A kernel, and what it computes."""

  name: str
  body: Callable[..., None]
  spec: Spec
  blocks: _Blocks
  # Of all its products.
  flops: int
  interpret: bool


class _Segments(NamedTuple):
  """What is visible: arrays, specs of their blocks, or references to them."""

  ids: Any
  # The first block of columns that a block of rows may see, and the end.
  ranges: Any


class _Heads(NamedTuple):
  """Padded queries, keys and values, likewise."""

  query: Any
  key: Any
  value: Any


class _Upstream(NamedTuple):
  """What the backward pass has of the results, likewise."""

  dout: Any
  logsumexp: Any
  # The sums of dout times the attended values over the head dimension.
  delta: Any


def forward(
  query: Float[Array, 'B T N H'],
  key: Float[Array, 'B T K H'],
  value: Float[Array, 'B T K H'],
  segment_ids: Int[Array, 'B T'],
  spec: Spec,
  *,
  interpret: bool = False,
) -> tuple[Float[Array, 'B T N H'], Float[Array, 'B N T']]:
  """Returns the attended values and the logsumexp of the logits, in float32.

  Args:
    query: scaled queries, bfloat16 or float16.
    key: of the same dtype; K divides N.
    value: likewise.
    segment_ids: positions of other segments are not visible.
    spec: the visible keys and the logits.
    interpret: whether to interpret the kernel, on CPUs.
  """
  length, num_heads, head_dim = query.shape[1:]
  heads = _Heads(*map(_pad_to_blocks, (query, key, value)))
  ids = _pad_length(segment_ids, 1, _PADDING_ID)
  batch, padded_length, _, dims = heads.query.shape
  blocks = _Blocks(
    rows=128 if dims <= 128 else 64,
    columns=64 if dims <= 128 else 32,
    num_warps=4 if dims <= 64 else 8,
    num_stages=3 if dims <= 64 else 2,
  )
  rows, statistics = _row_specs(dims, blocks)
  kernel = _Kernel(
    name='pax_attention_forward',
    body=_forward_kernel,
    spec=spec,
    blocks=blocks,
    flops=2 * _product_flops(heads.query.shape, spec),
    interpret=interpret,
  )
  sums = jax.ShapeDtypeStruct((batch, num_heads, padded_length), jnp.float32)
  out, logsumexp = _call(
    kernel,
    [
      (_segments(ids, spec, blocks), _segment_specs(padded_length)),
      (heads, _head_specs(heads, rows)),
    ],
    [(_shape_of(heads.query), rows), (sums, statistics)],
  )
  return out[:, :length, :, :head_dim], logsumexp[:, :, :length]


def gradient(
  *operands: Array, spec: Spec, interpret: bool = False
) -> tuple[Float[Array, 'B T N H'], Float[Array, 'B T K H'], Array]:
  """Returns the gradients of queries, keys and values.

  Args:
    *operands: query, key, value and segment_ids, as of `forward`; the gradient
      of the attended values; the logsumexp of the forward pass; the sums of
      that gradient times the attended values over the head dimension.
    spec: the visible keys and the logits.
    interpret: whether to interpret the kernels, on CPUs.
  """
  query, key, value, segment_ids, dout, logsumexp, delta = operands
  length, head_dim = query.shape[1], query.shape[-1]
  heads = _Heads(*map(_pad_to_blocks, (query, key, value)))
  ids = _pad_length(segment_ids, 1, _PADDING_ID)
  upstream = _Upstream(
    _pad_to_blocks(dout), _pad_length(logsumexp, 2), _pad_length(delta, 2)
  )
  gradients = (
    _query_gradient(heads, upstream, ids, spec, interpret),
    *_key_gradients(heads, upstream, ids, spec, interpret),
  )
  dquery, dkey, dvalue = (x[:, :length, :, :head_dim] for x in gradients)
  return dquery, dkey, dvalue


def _query_gradient(
  heads: _Heads,
  upstream: _Upstream,
  segment_ids: Int[Array, 'B T'],
  spec: Spec,
  interpret: bool,
) -> Float[Array, 'B T N H']:
  _, length, _, dims = heads.query.shape
  blocks = _gradient_blocks(dims)
  rows, statistics = _row_specs(dims, blocks)
  kernel = _Kernel(
    name='pax_attention_query_gradient',
    body=_query_gradient_kernel,
    spec=spec,
    blocks=blocks,
    flops=3 * _product_flops(heads.query.shape, spec),
    interpret=interpret,
  )
  (dquery,) = _call(
    kernel,
    [
      (_segments(segment_ids, spec, blocks), _segment_specs(length)),
      (heads, _head_specs(heads, rows)),
      (upstream, _Upstream(rows, statistics, statistics)),
    ],
    [(_shape_of(heads.query), rows)],
  )
  return dquery


def _key_gradients(
  heads: _Heads,
  upstream: _Upstream,
  segment_ids: Int[Array, 'B T'],
  spec: Spec,
  interpret: bool,
) -> tuple[Float[Array, 'B T K H'], Float[Array, 'B T K H']]:
  _, length, num_heads, dims = heads.query.shape
  group = num_heads // heads.key.shape[2]
  blocks = _gradient_blocks(dims)
  # The window of the queries that see a key mirrors that of the keys.
  mirrored = dataclasses.replace(spec, before=spec.after, after=spec.before)
  all_rows = pl.BlockSpec(
    (None, length, group, dims), lambda j, b, k: (b, 0, k, 0)
  )
  statistics = pl.BlockSpec((None, group, length), lambda j, b, k: (b, k, 0))
  rows, _ = _row_specs(dims, blocks)
  kernel = _Kernel(
    name='pax_attention_key_gradients',
    body=_key_gradients_kernel,
    spec=spec,
    blocks=blocks,
    flops=4 * _product_flops(heads.query.shape, spec),
    interpret=interpret,
  )
  ((dkey, dvalue),) = _call(
    kernel,
    [
      (_segments(segment_ids, mirrored, blocks), _segment_specs(length)),
      (heads, _Heads(all_rows, rows, rows)),
      (upstream, _Upstream(all_rows, statistics, statistics)),
    ],
    [((_shape_of(heads.key), _shape_of(heads.value)), (rows, rows))],
  )
  return dkey, dvalue


def _forward_kernel(
  segments: _Segments,
  heads: _Heads,
  out: Any,
  logsumexp: Any,
  *,
  spec: Spec,
  columns: int,
) -> None:
  num_rows, dims = out.shape
  row_ids, rows = _positions(segments.ids, pl.program_id(0), num_rows)
  q = heads.query[...]

  def step(j: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
    values, largest, total = carry
    k, v = (_block(x, j, columns) for x in heads[1:])
    column_ids, cols = _positions(segments.ids, j, columns)
    logits = _cap(_product(q, k.T), spec)
    visible = _is_visible(row_ids, column_ids, rows, cols, spec)
    logits = jnp.where(visible, logits, _HIDDEN)
    new_largest = jnp.maximum(largest, jnp.max(logits, axis=1))
    decay = jnp.exp(largest - new_largest)
    probs = jnp.exp(logits - new_largest[:, None])
    values = values * decay[:, None] + _product(probs.astype(v.dtype), v)
    return values, new_largest, total * decay + jnp.sum(probs, axis=1)

  initial = (
    jnp.zeros((num_rows, dims), jnp.float32),
    jnp.full((num_rows,), _HIDDEN, jnp.float32),
    jnp.zeros((num_rows,), jnp.float32),
  )
  values, largest, total = _loop(segments.ranges, step, initial)
  out[...] = (values / total[:, None]).astype(out.dtype)
  logsumexp[...] = largest + jnp.log(total)


def _query_gradient_kernel(
  segments: _Segments,
  heads: _Heads,
  upstream: _Upstream,
  dquery: Any,
  *,
  spec: Spec,
  columns: int,
) -> None:
  num_rows, dims = dquery.shape
  row_ids, rows = _positions(segments.ids, pl.program_id(0), num_rows)
  q, dout = heads.query[...], upstream.dout[...]
  row_statistics = (
    upstream.logsumexp[...][:, None],
    upstream.delta[...][:, None],
  )

  def step(j: Array, total: Array) -> Array:
    k, v = (_block(x, j, columns) for x in heads[1:])
    column_ids, cols = _positions(segments.ids, j, columns)
    visible = _is_visible(row_ids, column_ids, rows, cols, spec)
    _, dlogits = _probs_and_gradients(
      _product(q, k.T),
      _product(dout, v.T),
      visible,
      row_statistics,
      spec,
    )
    return total + _product(dlogits.astype(k.dtype), k)

  initial = jnp.zeros((num_rows, dims), jnp.float32)
  dquery[...] = _loop(segments.ranges, step, initial).astype(dquery.dtype)


def _key_gradients_kernel(
  segments: _Segments,
  heads: _Heads,
  upstream: _Upstream,
  gradients: tuple[Any, Any],
  *,
  spec: Spec,
  columns: int,
) -> None:
  """Sums over the queries of all heads that share the keys.

  Logits are keys by queries.
  """
  dkey, dvalue = gradients
  num_rows, dims = dkey.shape
  row_ids, rows = _positions(segments.ids, pl.program_id(0), num_rows)
  k, v = heads.key[...], heads.value[...]

  def head(g: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
    def step(i: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
      dk, dv = sums
      positions = pl.ds(i * columns, columns)
      q, dout = (x[positions, g, :] for x in (heads.query, upstream.dout))
      column_ids, cols = _positions(segments.ids, i, columns)
      # Transposed: the queries are the columns here.
      visible = _is_visible(column_ids, row_ids, cols, rows, spec).T
      statistics = (x[g, positions][None] for x in upstream[1:])
      probs, dlogits = _probs_and_gradients(
        _product(k, q.T),
        _product(v, dout.T),
        visible,
        tuple(statistics),
        spec,
      )
      dk += _product(dlogits.astype(q.dtype), q)
      dv += _product(probs.astype(dout.dtype), dout)
      return dk, dv

    return _loop(segments.ranges, step, sums)

  zeros = jnp.zeros((num_rows, dims), jnp.float32)
  dk, dv = jax.lax.fori_loop(0, heads.query.shape[1], head, (zeros, zeros))
  dkey[...] = dk.astype(dkey.dtype)
  dvalue[...] = dv.astype(dvalue.dtype)


def _probs_and_gradients(
  products: Float[Array, 'R C'],
  dprobs: Float[Array, 'R C'],
  visible: Bool[Array, 'R C'],
  statistics: tuple[Array, ...],
  spec: Spec,
) -> tuple[Float[Array, 'R C'], Float[Array, 'R C']]:
  """Returns the probabilities and the gradients of the products.

  Args:
    products: of queries and keys.
    dprobs: the gradients of the probabilities.
    visible: whether a query sees a key.
    statistics: logsumexp and delta of the queries, which broadcast.
    spec: the logits.
  """
  logsumexp, delta = statistics
  logits = _cap(products, spec)
  probs = jnp.where(visible, jnp.exp(logits - logsumexp), 0.0)
  gradients = probs * (dprobs - delta)
  if spec.soft_cap:
    gradients *= 1.0 - jnp.square(logits / spec.soft_cap)
  return probs, gradients


def _cap(products: Float[Array, 'R C'], spec: Spec) -> Float[Array, 'R C']:
  if not spec.soft_cap:
    return products
  return spec.soft_cap * jnp.tanh(products / spec.soft_cap)


def _is_visible(
  query_ids: Int[Array, ' Q'],
  key_ids: Int[Array, ' C'],
  queries: Int[Array, ' Q'],
  keys: Int[Array, ' C'],
  spec: Spec,
) -> Bool[Array, 'Q C']:
  """Returns whether each query sees each key, by ids and positions."""
  visible = query_ids[:, None] == key_ids[None]
  distance = keys[None] - queries[:, None]
  if spec.before is not None:
    visible &= distance >= -spec.before
  if spec.after is not None:
    visible &= distance <= spec.after
  return visible


def _visible_ranges(
  segment_ids: Int[Array, 'B T'], spec: Spec, blocks: _Blocks
) -> Int[Array, 'B R 2']:
  """Returns the first block of columns that each block of rows may see.

  And the one after the last. A row sees its own position, so that no range is
  empty.
  """
  row_ends = _ends(segment_ids, blocks.rows)
  column_ends = _ends(segment_ids, blocks.columns)
  visible = (row_ends.smallest <= column_ends.largest.mT) & (
    row_ends.largest >= column_ends.smallest.mT
  )
  num_rows, num_columns = visible.shape[1:]
  first_row = jnp.arange(num_rows)[:, None] * blocks.rows
  first_column = jnp.arange(num_columns) * blocks.columns
  if spec.before is not None:
    last_column = first_column + blocks.columns - 1
    visible &= last_column - first_row >= -spec.before
  if spec.after is not None:
    last_row = first_row + blocks.rows - 1
    visible &= first_column - last_row <= spec.after
  first = jnp.argmax(visible, axis=2)
  end = num_columns - jnp.argmax(visible[:, :, ::-1], axis=2)
  return jnp.stack([first, end], axis=2).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class _Ends:
  """The smallest and the largest segment id of each block."""

  smallest: Int[Array, 'B R 1']
  largest: Int[Array, 'B R 1']


def _ends(segment_ids: Int[Array, 'B T'], size: int) -> _Ends:
  by_block = segment_ids.reshape(segment_ids.shape[0], -1, size)
  return _Ends(
    jnp.min(by_block, axis=2, keepdims=True),
    jnp.max(by_block, axis=2, keepdims=True),
  )


def _loop(block_range: Any, step: Callable[..., Any], initial: Any) -> Any:
  return jax.lax.fori_loop(block_range[0], block_range[1], step, initial)


def _positions(ids: Any, block: Array, size: int) -> tuple[Array, Array]:
  """Returns the segment ids and the positions of a block."""
  start = block * size
  return ids[pl.ds(start, size)], start + jnp.arange(size)


def _block(x: Any, block: Array, size: int) -> Array:
  return x[pl.ds(block * size, size), :]


def _product(a: Shaped[Array, 'R I'], b: Shaped[Array, 'I C']) -> Array:
  return jnp.dot(a, b, preferred_element_type=jnp.float32)


def _gradient_blocks(dims: int) -> _Blocks:
  return _Blocks(
    rows=128 if dims <= 128 else 64,
    columns=32,
    num_warps=4 if dims <= 64 else 8,
    num_stages=2,
  )


def _segments(
  segment_ids: Int[Array, 'B T'], spec: Spec, blocks: _Blocks
) -> _Segments:
  return _Segments(segment_ids, _visible_ranges(segment_ids, spec, blocks))


def _segment_specs(length: int) -> _Segments:
  return _Segments(
    pl.BlockSpec((None, length), lambda i, b, n: (b, 0)),
    pl.BlockSpec((None, None, 2), lambda i, b, n: (b, i, 0)),
  )


def _row_specs(dims: int, blocks: _Blocks) -> tuple[Any, Any]:
  """Returns the specs of a block of rows, and of its statistics."""
  return (
    pl.BlockSpec((None, blocks.rows, None, dims), lambda i, b, n: (b, i, n, 0)),
    pl.BlockSpec((None, None, blocks.rows), lambda i, b, n: (b, n, i)),
  )


def _head_specs(heads: _Heads, rows: Any) -> _Heads:
  """Returns the specs of a block of queries, and of all its keys and values."""
  _, length, num_heads, dims = heads.query.shape
  group = num_heads // heads.key.shape[2]
  sequence = pl.BlockSpec(
    (None, length, None, dims), lambda i, b, n: (b, 0, n // group, 0)
  )
  return _Heads(rows, sequence, sequence)


def _call(
  kernel: _Kernel,
  operands: Sequence[tuple[Any, Any]],
  results: Sequence[tuple[Any, Any]],
) -> Sequence[Any]:
  """Returns the results of a kernel for each block of rows.

  Args:
    kernel: its body takes references to the operands, and to the results.
    operands: trees of arrays, and of the specs of their blocks.
    results: trees of shapes, and of specs. The first array has the rows.
  """
  arrays, in_specs = zip(*operands, strict=True)
  shapes, out_specs = zip(*results, strict=True)
  leaves = jax.tree.leaves(shapes)
  batch, length, num_heads, _ = leaves[0].shape
  blocks = kernel.blocks
  return pl.pallas_call(
    functools.partial(kernel.body, spec=kernel.spec, columns=blocks.columns),
    grid=(length // blocks.rows, batch, num_heads),
    in_specs=in_specs,
    out_specs=out_specs,
    out_shape=shapes,
    compiler_params=triton.CompilerParams(
      num_warps=blocks.num_warps, num_stages=blocks.num_stages
    ),
    cost_estimate=pl.CostEstimate(
      flops=kernel.flops,
      transcendentals=0,
      bytes_accessed=sum(
        math.prod(x.shape) * x.dtype.itemsize
        for x in (*jax.tree.leaves(arrays), *leaves)
      ),
    ),
    interpret=kernel.interpret,
    name=kernel.name,
  )(*arrays)


def _shape_of(x: Array) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _product_flops(shape: tuple[int, ...], spec: Spec) -> int:
  """Returns the FLOPs of one product with all logits of one segment."""
  batch, length, num_heads, dims = shape
  # Keys before and after, those that the ends of the sequence cut off apart.
  before, after = (
    length - 1 if n is None else min(n, length - 1)
    for n in (spec.before, spec.after)
  )
  pairs = length + sum(n * length - n * (n + 1) // 2 for n in (before, after))
  return 2 * batch * num_heads * pairs * dims


def _pad_to_blocks(x: Float[Array, 'B T N H']) -> Float[Array, 'B P N Q']:
  """Pads the length and the head dimension."""
  power_of_two = 1 << (x.shape[-1] - 1).bit_length()
  x = _pad_length(x, 1)
  return py_utils.pad_to_multiple(x, 3, max(_MIN_HEAD_DIM, power_of_two))


def _pad_length(
  x: Shaped[Array, '...'], dim: int, value: int = 0
) -> Shaped[Array, '...']:
  return py_utils.pad_to_multiple(x, dim, _LENGTH_MULTIPLE, value)
