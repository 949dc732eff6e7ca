# SPDX-License-Identifier: Apache-2.0
"""Shapes, equations and shardings of low-rank factors of a weight."""

from __future__ import annotations

from collections.abc import Sequence

from praxis.layers.quantization.utils import einsum_equations
from praxis.pytypes import SplitDimsMapping


def get_lora_shape_and_eqn(
  shape: Sequence[int], lora_size: int, eqn: str, max_reduction: bool = True
) -> tuple[str, str, list[int], list[int], list[int], list[int]]:
  """Returns how a product with a weight becomes two with its factors.

  Of a weight with two contracted dimensions the larger one is replaced by
  `lora_size`, or with `max_reduction=False` each of both.

  Returns:
    The equations of the first and of the second product, the shapes of the
    left and right factors, and which of their dimensions have `lora_size`.
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
  fresh = einsum_equations.unused_letters(eqn, len(reduced))
  renamed = str.maketrans(dict(zip(reduced, fresh, strict=True)))
  middle = parsed.lhs.translate(renamed)
  factor = ''.join(reduced) + fresh
  places = [parsed.rhs.index(c) for c in reduced]
  left_shape = [*map(size, reduced), *[lora_size] * len(reduced)]
  right_shape = [lora_size if i in places else n for i, n in enumerate(shape)]
  return (
    f'{parsed.lhs},{factor}->{middle}',
    f'{middle},{parsed.rhs.translate(renamed)}->{parsed.out}',
    left_shape,
    right_shape,
    list(range(len(reduced), 2 * len(reduced))),
    places,
  )


def get_left_weight_split_dims_mapping(
  weight_split_dims_mapping: SplitDimsMapping, eqn_left_ind: Sequence[int]
) -> SplitDimsMapping:
  """Returns how the left factor is split: as the weight's first dimensions."""
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
  """Returns how the right factor is split: as the weight, but for its rank."""
  if weight_split_dims_mapping is None:
    return None
  return tuple(
    None if i in eqn_right_ind else axes
    for i, axes in enumerate(weight_split_dims_mapping)
  )
