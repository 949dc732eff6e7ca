# SPDX-License-Identifier: Apache-2.0
"""Experts that turn no token away, on devices of their own.

Every device of an axis of experts gets the tokens of all of them, computes
those that chose its experts, and gives back to each what came out of its
tokens. If tokens were sent to their experts alone, buffers would have to be for
the worst case, all tokens of one device at the experts of another: as much as
is gathered here.

Shapes: G groups of S tokens with k choices, E experts, M model and H hidden
dimension.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from praxis import base_layer, py_utils
from praxis.layers import sharding
from praxis.layers.transformers import moe_dropless
from praxis.pytypes import SplitDimsMapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axes:
  """The mesh axes that split a mixture of experts."""

  # The experts; none when empty.
  expert: tuple[str, ...] = ()
  # Groups of tokens.
  group: tuple[str, ...] = ()
  # The hidden dimension.
  hidden: tuple[str, ...] = ()

  @classmethod
  def of(
    cls,
    emh: SplitDimsMapping,
    gsm: SplitDimsMapping,
    mesh_axis_names: Sequence[str] | None,
    shape: tuple[int, int, int],
  ) -> Axes:
    """Returns the axes of weights and tokens that divide [G, E, H]."""
    has_mesh = mesh_axis_names and py_utils.global_mesh_defined()
    if not has_mesh or emh is None:
      return cls()
    weight = base_layer.to_partition_spec(emh, mesh_axis_names)
    tokens = base_layer.to_partition_spec(gsm, mesh_axis_names)
    groups, experts, hidden = shape
    return cls(
      expert=_splitting(weight[0], experts),
      group=_splitting(tokens[0] if len(tokens) else None, groups),
      hidden=_splitting(weight[2], hidden),
    )

  def __bool__(self) -> bool:
    """Whether anything is split."""
    return bool(self.expert or self.group or self.hidden)


def mix(
  tokens: Float[Array, 'G S M'],
  choices: moe_dropless.Chosen,
  weights: tuple[list[Float[Array, 'E M H']], Float[Array, 'E H M']],
  experts: moe_dropless.Experts,
  axes: Axes,
) -> Float[Array, 'G S M']:
  """Returns the sum of experts' outputs, as much as they count for a token.

  Args:
    tokens: what goes to experts.
    choices: of these tokens.
    weights: the first ones and the last one of all experts.
    experts: what experts make of their rows.
    axes: what is split how.
  """
  num_experts = weights[1].shape[0] // sharding.num_devices_along(axes.expert)
  # Groups that the experts' axes split are brought together and dealt out.
  shared = tuple(axis for axis in axes.expert if axis in axes.group)
  apart = tuple(axis for axis in axes.expert if axis not in axes.group)
  rows = PartitionSpec(axes.group or None)
  into = PartitionSpec(axes.expert or None, None, axes.hidden or None)
  out_of = PartitionSpec(axes.expert or None, axes.hidden or None)

  def of_device(tokens: Array, choices: Any, weights: Any) -> Array:
    if shared:
      tokens, choices = jax.tree.map(
        lambda x: jax.lax.all_gather(x, shared, tiled=True), (tokens, choices)
      )
    first = 0
    if axes.expert:
      first = jax.lax.axis_index(axes.expert) * num_experts
    mixed = moe_dropless.mix(tokens, choices, weights, experts, first=first)
    if partial := (*apart, *axes.hidden):
      mixed = jax.lax.psum(mixed, partial)
    if shared:
      mixed = jax.lax.psum_scatter(mixed, shared, tiled=True)
    return mixed

  return jax.shard_map(
    of_device,
    in_specs=(rows, rows, ([into] * len(weights[0]), out_of)),
    out_specs=rows,
    check_vma=False,
  )(tokens, choices, weights)


def _splitting(entry: Any, size: int) -> tuple[str, ...]:
  """Returns the axes that divide, those of one device left out."""
  return tuple(
    axis
    for axis in sharding.dividing_axes(entry, size)
    if sharding.num_devices_along([axis]) > 1
  )
