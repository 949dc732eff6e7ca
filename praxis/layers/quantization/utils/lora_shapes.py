# SPDX-License-Identifier: Apache-2.0
"""Shapes, equations and shardings of LoRA factors of a weight."""

from __future__ import annotations

from collections.abc import Sequence

from praxis.layers import einsum_equations
from praxis.pytypes import SplitDimsMapping


def get_lora_shape_and_eqn(
  shape: Sequence[int], lora_size: int, eqn: str, max_reduction: bool = True
) -> tuple[str, str, list[int], list[int], list[int], list[int]]:
  """Replaces an einsum with a weight by two einsums with low-rank factors.

  Args:
    shape: the shape of the weight.
    lora_size: the rank.
    eqn: equation of activations and weight.
    max_reduction: whether only the larger of two contracted dimensions is
      replaced by the rank, or both.

  Returns:
    The equations of the first and the second einsum, the shapes of the left and
    right factors, and their dimensions of size `lora_size`.

  Raises:
    ValueError: the equation contracts neither one nor two dimensions.
  """
  parsed = einsum_equations.Equation.parse(eqn)
  reduced = [c for c in parsed.lhs.replace('.', '') if c in parsed.rhs]
  if len(reduced) not in (1, 2):
    raise ValueError(
      f'{eqn!r} must contract one or two dimensions, got {len(reduced)}'
    )
  size = lambda letter: shape[parsed.rhs.index(letter)]
  if max_reduction:
    reduced = [max(reduced, key=size)]
  rank_letters = einsum_equations.unused_letters(eqn, len(reduced))
  replacement = str.maketrans(dict(zip(reduced, rank_letters, strict=True)))
  middle = parsed.lhs.translate(replacement)
  factor = ''.join(reduced) + rank_letters
  dims = [parsed.rhs.index(c) for c in reduced]
  left_shape = [*map(size, reduced), *[lora_size] * len(reduced)]
  right_shape = [lora_size if i in dims else n for i, n in enumerate(shape)]
  return (
    f'{parsed.lhs},{factor}->{middle}',
    f'{middle},{parsed.rhs.translate(replacement)}->{parsed.out}',
    left_shape,
    right_shape,
    list(range(len(reduced), 2 * len(reduced))),
    dims,
  )


def get_left_weight_split_dims_mapping(
  weight_split_dims_mapping: SplitDimsMapping, eqn_left_ind: Sequence[int]
) -> SplitDimsMapping:
  """Returns the sharding of the left factor: that of the leading dimensions.

  Raises:
    ValueError: `eqn_left_ind` has neither one nor two dimensions.
  """
  if weight_split_dims_mapping is None:
    return None
  count = len(eqn_left_ind)
  if count not in (1, 2):
    raise ValueError(
      f'eqn_left_ind must have one or two dimensions, got {count}'
    )
  return (*weight_split_dims_mapping[:count], *[None] * count)


def get_right_weight_split_dims_mapping(
  weight_split_dims_mapping: SplitDimsMapping, eqn_right_ind: Sequence[int]
) -> SplitDimsMapping:
  """Returns the sharding of the right factor: the weight's, except its rank."""
  if weight_split_dims_mapping is None:
    return None
  return tuple(
    None if i in eqn_right_ind else axes
    for i, axes in enumerate(weight_split_dims_mapping)
  )
