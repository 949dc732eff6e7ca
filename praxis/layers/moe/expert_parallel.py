# SPDX-License-Identifier: Apache-2.0
"""Expert parallelism for dropless mixtures of experts.

Each device of the expert axes gathers the tokens of all of them, computes the
contribution of its own experts, and reduce-scatters the outputs. An all-to-all
of only the assigned tokens would need static buffers of the same size: in the
worst case all tokens of a device are assigned to experts of another one.

Shapes: G groups of S tokens, k experts per token, E experts, M model dimension,
H hidden dimension.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from praxis import base_layer, py_utils
from praxis.layers import sharding
from praxis.layers.moe import dropless
from praxis.pytypes import SplitDimsMapping


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

  def __bool__(self) -> bool:
    """Whether any dimension is sharded."""
    return bool(self.expert or self.group or self.hidden)


def sharded_mixture(
  tokens: Float[Array, 'G S M'],
  top_k: dropless.TopKExperts,
  weights: dropless.ExpertWeights,
  expert_fn: dropless.ExpertFn,
  axes: ExpertMeshAxes,
) -> Float[Array, 'G S M']:
  """Returns the gated sum of expert outputs, computed under `jax.shard_map`.

  Args:
    tokens: inputs of the experts.
    top_k: experts of the tokens.
    weights: of all experts.
    expert_fn: applies experts to rows.
    axes: mesh axes of each dimension.
  """
  num_devices = sharding.num_devices_along(axes.expert)
  num_local_experts = weights[1].shape[0] // num_devices
  # Expert axes that shard the groups too need an all-gather of the tokens; over
  # the others every device has the same tokens, and partial sums are added.
  gathered = tuple(axis for axis in axes.expert if axis in axes.group)
  replicated = tuple(axis for axis in axes.expert if axis not in axes.group)
  token_spec = PartitionSpec(axes.group or None)
  input_spec = PartitionSpec(axes.expert or None, None, axes.hidden or None)
  output_spec = PartitionSpec(axes.expert or None, axes.hidden or None)

  def local_mixture(
    tokens: Array, top_k: dropless.TopKExperts, weights: dropless.ExpertWeights
  ) -> Array:
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
    return outputs

  return jax.shard_map(
    local_mixture,
    in_specs=(
      token_spec,
      token_spec,
      ([input_spec] * len(weights[0]), output_spec),
    ),
    out_specs=token_spec,
    check_vma=False,
  )(tokens, top_k, weights)


def _effective_axes(entry: sharding.DimSharding, size: int) -> tuple[str, ...]:
  """Returns the axes of more than one device that divide `size`."""
  return tuple(
    axis
    for axis in sharding.dividing_axes(entry, size)
    if sharding.num_devices_along([axis]) > 1
  )
