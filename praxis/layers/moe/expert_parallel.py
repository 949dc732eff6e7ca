# SPDX-License-Identifier: Apache-2.0
"""Expert parallelism for dropless mixtures of experts.

The tokens reach the devices of their experts in one of two ways. 'all_gather':
each device of the expert axes gathers the tokens of all of them, computes the
contribution of its own experts, and reduce-scatters the outputs. 'all_to_all':
each device sends the rows of its tokens to the devices of their experts, which
send the outputs back (`expert_exchange`): k rows per token instead of one per
device.

Shapes: G groups of S tokens, N tokens, k experts per token, R = N * k rows, E
experts, M model dimension, H hidden dimension.
"""

from __future__ import annotations

import dataclasses
import fractions
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from praxis import base_layer, py_utils
from praxis.layers import sharding
from praxis.layers.moe import dropless, expert_exchange, routed_rows, row_order
from praxis.pytypes import SplitDimsMapping

DISPATCHES = ('auto', 'all_gather', 'all_to_all')
# auto sends rows where they are at most this share of what would be gathered:
# in a torus they pass other devices, and they cannot overlap with products.
_ALL_TO_ALL_SHARE = 1 / 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertMeshAxes:
  """The mesh axes that shard a mixture of experts, by tensor dimension."""

  expert: tuple[str, ...] = ()
  group: tuple[str, ...] = ()
  hidden: tuple[str, ...] = ()

  @classmethod
  def from_mappings(
    cls,
    emh: SplitDimsMapping,
    gsm: SplitDimsMapping,
    mesh_axis_names: Sequence[str] | None,
    shape: tuple[int, int, int],
  ) -> ExpertMeshAxes:
    """Returns the axes of a layer's split-dims mappings.

    The `mesh_axes_transpose` of the JaxContext renames them. Axes that do not
    divide their dimension, or have one device, are left out. So are axes of H
    that shard G: their devices hold other tokens, whose outputs cannot be
    added.

    Args:
      emh: mapping of the input projection.
      gsm: mapping of the tokens.
      mesh_axis_names: names that the mappings refer to.
      shape: G, E and H.
    """
    has_mesh = mesh_axis_names and py_utils.global_mesh_defined()
    if not has_mesh or emh is None:
      return cls()
    weight, tokens = (
      base_layer.maybe_transpose_mesh_axes(
        base_layer.to_partition_spec(mapping, mesh_axis_names)
      )
      for mapping in (emh, gsm)
    )
    num_groups, num_experts, hidden = shape
    group = _effective_axes(tokens[0] if len(tokens) else None, num_groups)
    return cls(
      expert=_effective_axes(weight[0], num_experts),
      group=group,
      hidden=tuple(
        axis for axis in _effective_axes(weight[2], hidden) if axis not in group
      ),
    )

  def weight_specs(
    self, weights: dropless.ExpertWeights
  ) -> dropless.ExpertWeights:
    """Returns the sharding of each weight."""
    expert, hidden = self.expert or None, self.hidden or None
    outputs = PartitionSpec(expert, hidden)
    # Biases are sharded as the first and the last dimension of their weights.
    specs = PartitionSpec(expert, None, hidden), outputs, outputs
    fill = lambda spec, part: jax.tree.map(lambda _: spec, part)
    return dropless.ExpertWeights(*map(fill, specs, weights))

  def __bool__(self) -> bool:
    """Whether any dimension is sharded."""
    return bool(self.expert or self.group or self.hidden)


def sharded_mixture(
  tokens: Float[Array, 'G S M'],
  top_k: dropless.TopKExperts,
  weights: dropless.ExpertWeights,
  expert_fn: dropless.ExpertFn,
  axes: ExpertMeshAxes,
  dispatch: str = 'auto',
) -> Float[Array, 'G S M']:
  """Returns the gated sum of expert outputs, computed under `jax.shard_map`.

  Args:
    tokens: inputs of the experts.
    top_k: experts of the tokens.
    weights: of all experts.
    expert_fn: applies experts to rows.
    axes: mesh axes of each dimension.
    dispatch: one of DISPATCHES. CPUs always gather.

  Raises:
    ValueError: dispatch='all_to_all' for devices that have the same tokens.
  """
  num_devices = sharding.num_devices_along(axes.expert)
  num_local_experts = weights.output.shape[0] // num_devices
  # Expert axes that shard the groups too need an all-gather of the tokens; over
  # the others every device has the same tokens, and partial sums are added.
  gathered = tuple(axis for axis in axes.expert if axis in axes.group)
  replicated = tuple(axis for axis in axes.expert if axis not in axes.group)
  token_spec = PartitionSpec(axes.group or None)
  sends_rows = _sends_rows(
    dispatch, num_devices, top_k.indices.shape[-1], replicated
  )

  def local_mixture(
    tokens: Array, top_k: dropless.TopKExperts, weights: dropless.ExpertWeights
  ) -> Array:
    # Flat, so that layouts for G and S apply to the local tokens only.
    shape = tokens.shape
    tokens, top_k = tokens.reshape(-1, shape[-1]), top_k.flatten_tokens()
    # XLA runs one all-gather at a time on TPUs. Those of the weights precede
    # those of the choices, so that they overlap with the layer before.
    top_k, weights = jax.lax.optimization_barrier((top_k, weights))
    if sends_rows:
      outputs = exchanged_mixture(
        tokens, top_k, weights, expert_fn, axes.expert
      )
      if axes.hidden:
        outputs = jax.lax.psum(outputs, axes.hidden)
      return outputs.reshape(shape)
    if gathered:
      tokens, top_k = jax.tree.map(
        lambda x: jax.lax.all_gather(x, gathered, tiled=True), (tokens, top_k)
      )
    first_expert: Array | int = 0
    if axes.expert:
      first_expert = jax.lax.axis_index(axes.expert) * num_local_experts
    outputs = dropless.mixture(
      tokens, top_k, weights, expert_fn, first_expert, num_devices
    )
    if partial_axes := (*replicated, *axes.hidden):
      outputs = jax.lax.psum(outputs, partial_axes)
    if gathered:
      outputs = jax.lax.psum_scatter(outputs, gathered, tiled=True)
    return outputs.reshape(shape)

  return jax.shard_map(
    local_mixture,
    in_specs=(token_spec, token_spec, axes.weight_specs(weights)),
    out_specs=token_spec,
    check_vma=False,
  )(tokens, top_k, weights)


def _sends_rows(
  dispatch: str,
  num_devices: int,
  experts_per_token: int,
  replicated: tuple[str, ...],
) -> bool:
  """Returns whether devices send rows instead of gathering tokens.

  Args:
    dispatch: one of DISPATCHES.
    num_devices: that the experts are sharded over.
    experts_per_token: k.
    replicated: expert axes whose devices have the same tokens.

  Raises:
    ValueError: see `sharded_mixture`.
  """
  if dispatch == 'all_to_all' and replicated:
    raise ValueError(
      "expert_dispatch='all_to_all' needs tokens that the expert axes"
      f' {list(replicated)} shard, got others; shard the batch over them, or'
      " set expert_dispatch='auto'"
    )
  if num_devices == 1 or replicated or py_utils.target_platform() == 'cpu':
    return False
  if dispatch != 'auto':
    return dispatch == 'all_to_all'
  return experts_per_token <= _ALL_TO_ALL_SHARE * num_devices


def exchanged_mixture(
  tokens: Float[Array, 'N M'],
  top_k: dropless.TopKExperts,
  weights: dropless.ExpertWeights,
  expert_fn: dropless.ExpertFn,
  axes: tuple[str, ...],
) -> Float[Array, 'N M']:
  """Returns the gated sum of expert outputs, by rows that devices exchange.

  A device has a buffer of twice the rows that it gets where experts are
  balanced. If more are routed to one, all exchange chunks of the tokens one
  after another, whose rows always fit.

  Args:
    tokens: of the device.
    top_k: their experts, indices among all experts.
    weights: of the experts of the device.
    expert_fn: applies the experts to rows.
    axes: mesh axes of the experts, along which tokens are sharded.
  """
  num_tokens, k = top_k.indices.shape
  num_local_experts = dropless.count_experts(weights)
  # Of all devices, for one token of each.
  most_rows = jax.lax.axis_size(axes) * min(k, num_local_experts)
  buffer_size = max(dropless.buffer_rows(num_tokens * k, 1), most_rows)
  num_chunks = dropless.count_chunks(num_tokens, most_rows, buffer_size)
  exchange = _Exchange(expert_fn, num_local_experts, buffer_size, axes)
  order = exchange.order(top_k)
  counts = exchange.counts(order)

  def one_by_one(
    tokens: Array,
    top_k: dropless.TopKExperts,
    weights: dropless.ExpertWeights,
    order: row_order.RowOrder,
    counts: Array,
  ) -> Array:
    del order, counts
    return dropless.in_chunks(
      tokens, top_k, weights, num_chunks, exchange.of_chunk
    )

  operands = (tokens, top_k, weights, order, counts)
  if num_chunks == 1:
    return exchange.mixture(*operands)
  # All devices that exchange rows see the same number.
  largest = jnp.max(jnp.sum(counts, axis=(0, 2)))
  return jax.lax.cond(
    dropless.largest_in_batch(largest) <= buffer_size,
    exchange.mixture,
    one_by_one,
    *operands,
  )


@dataclasses.dataclass(frozen=True)
class _Exchange:
  """The mixture of tokens whose rows fit the buffer of every device."""

  expert_fn: dropless.ExpertFn
  # Of a device.
  num_local_experts: int
  buffer_size: int
  # Mesh axes of the experts.
  axes: tuple[str, ...]

  @property
  def _num_experts(self) -> int:
    return self.num_local_experts * jax.lax.axis_size(self.axes)

  def _groups(self, top_k: dropless.TopKExperts) -> Int[Array, 'N k']:
    """Returns the expert of each choice; their number for no gate."""
    return jnp.where(top_k.gates != 0.0, top_k.indices, self._num_experts)

  def order(self, top_k: dropless.TopKExperts) -> row_order.RowOrder:
    """Returns the order of the rows that the device sends."""
    groups = self._groups(top_k)
    return row_order.sort_by_group(groups, self._num_experts, groups.size)

  def counts(self, order: row_order.RowOrder) -> Int[Array, 'P P E']:
    """Returns the rows of each device for the experts of each device."""
    of_devices = order.group_sizes.reshape(-1, self.num_local_experts)
    return jax.lax.all_gather(of_devices, self.axes)

  def of_chunk(
    self,
    tokens: Float[Array, 'N M'],
    top_k: dropless.TopKExperts,
    weights: dropless.ExpertWeights,
  ) -> Float[Array, 'N M']:
    """Returns the mixture of some of the tokens."""
    order = self.order(top_k)
    return self.mixture(tokens, top_k, weights, order, self.counts(order))

  def mixture(
    self,
    tokens: Float[Array, 'N M'],
    top_k: dropless.TopKExperts,
    weights: dropless.ExpertWeights,
    order: row_order.RowOrder,
    counts: Int[Array, 'P P E'],
  ) -> Float[Array, 'N M']:
    """Returns the gated sum of expert outputs."""
    num_rows, size = top_k.indices.size, self.buffer_size
    slices = expert_exchange.slices_of(counts, jax.lax.axis_index(self.axes))
    tiles = expert_exchange.in_tiles(tokens)
    rows = row_order.gather_tokens(order, tiles)
    buffer = expert_exchange.send(rows, slices, size, self.axes)
    with routed_rows.scope(fractions.Fraction(num_rows, size)):
      outputs = self.expert_fn(
        weights,
        buffer.reshape(size, -1),
        jnp.ones((size, 1), buffer.dtype),
        dropless.grouped_products(slices.group_sizes),
      )
    outputs = outputs.reshape(buffer.shape)
    outputs = expert_exchange.send_back(outputs, slices, num_rows, self.axes)
    gates = row_order.gather_gates(
      order, self._groups(top_k), top_k.gates.astype(outputs.dtype)
    )
    gates = jnp.expand_dims(gates, range(1, outputs.ndim))
    return row_order.sum_rows(order, outputs * gates).reshape(tokens.shape)


def _effective_axes(entry: sharding.DimSharding, size: int) -> tuple[str, ...]:
  """Returns the axes of more than one device that divide `size`."""
  return tuple(
    axis
    for axis in sharding.dividing_axes(entry, size)
    if sharding.num_devices_along([axis]) > 1
  )
