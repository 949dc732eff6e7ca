# SPDX-License-Identifier: Apache-2.0
"""Equations of einsum between activations and a weight, letter by letter."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Equation:
  """The letters of two operands and of their product."""

  lhs: str
  rhs: str
  out: str

  @classmethod
  def parse(cls, eqn: str) -> Equation:
    """Returns the equation `eqn`, which may have `...`.

    Raises:
      ValueError: there are not two operands and an output, or an operand has
        a letter twice.
    """
    ins, arrow, out = eqn.replace(' ', '').partition('->')
    operands = ins.split(',')
    if not arrow or len(operands) != 2:
      raise ValueError(
        f"an equation must have two operands, as 'bd,df->bf', got {eqn!r}"
      )
    for letters in operands:
      named = letters.replace('.', '')
      if len(named) != len(set(named)):
        raise ValueError(f'{letters!r} in equation {eqn!r} has a letter twice')
    return cls(*operands, out)

  def expand(self, lhs_ndim: int, rhs_ndim: int) -> Equation:
    """Returns the equation with letters in place of `...`."""
    ndims = {self.lhs: lhs_ndim, self.rhs: rhs_ndim}
    hidden = max(
      [n - len(s) + 3 for s, n in ndims.items() if '...' in s], default=0
    )
    fresh = unused_letters(str(self), hidden)

    def fill(letters: str, count: int) -> str:
      return letters.replace('...', fresh[hidden - count :])

    lhs = fill(self.lhs, lhs_ndim - len(self.lhs) + 3)
    rhs = fill(self.rhs, rhs_ndim - len(self.rhs) + 3)
    return Equation(lhs, rhs, fill(self.out, hidden))

  @property
  def contracted(self) -> list[int]:
    """Dimensions of the right operand that are not in the output."""
    letters = self.rhs.replace('.', '')
    return [i for i, c in enumerate(letters) if c not in self.out]

  @property
  def kept(self) -> str:
    """Letters of the right operand that are in the output."""
    return ''.join(c for c in self.rhs.replace('.', '') if c in self.out)

  def swapped(self) -> Equation:
    """Returns the equation with the operands in the other order."""
    return Equation(self.rhs, self.lhs, self.out)

  def split(self, dim: int) -> SplitEquation:
    """Returns what to compute when a contracted dimension is split in blocks.

    Dimension `dim` of the right operand becomes two, (blocks, size), and so
    does that letter's dimension of the left operand.
    """
    old = self.rhs[dim]
    (block,) = unused_letters(str(self), 1)
    lhs = self.lhs.replace(old, block + old)
    rhs = self.rhs.replace(old, block + old)
    kept = block + self.kept
    return SplitEquation(
      product=f'{lhs},{rhs}->{block}{self.out}',
      scale=f'{block}{self.out},{_in_order(rhs, kept)}->{self.out}',
      zero_point=f'{lhs},{_in_order(rhs, kept)}->{self.out}',
    )

  def __str__(self) -> str:
    return f'{self.lhs},{self.rhs}->{self.out}'


@dataclasses.dataclass(frozen=True)
class SplitEquation:
  """The equations of a product whose contraction is split in blocks."""

  # Of the operands: a result for each block.
  product: str
  # Of those results and the scale: the output.
  scale: str
  # Of the left operand and the zero points: what they add to the output.
  zero_point: str


def einsum_eqn_to_dimension_numbers(
  eqn: str,
) -> tuple[
  tuple[
    tuple[tuple[int, ...], tuple[int, ...]],
    tuple[tuple[int, ...], tuple[int, ...]],
  ],
  tuple[int, ...] | None,
]:
  """Returns the dimension numbers of `dot_general`, and a transposition.

  The transposition (None if it is not needed) brings the result of dot_general
  into the order of the output.

  Raises:
    ValueError: the equation has `...`, or sums one operand by itself.
  """
  if '.' in eqn:
    raise ValueError(
      f"equation {eqn!r} must not have '...'; give each dimension a letter"
    )
  parsed = Equation.parse(eqn)
  lhs, rhs, out = parsed.lhs, parsed.rhs, parsed.out
  shared = [c for c in lhs if c in rhs]
  batch = [c for c in out if c in shared]
  contracted = sorted(c for c in shared if c not in out)
  alone = set(lhs + rhs) - set(shared) - set(out)
  if alone or set(out) - set(lhs + rhs):
    raise ValueError(
      f'each letter of {eqn!r} must be in the output or in both operands; '
      f'{sorted(alone) or sorted(set(out) - set(lhs + rhs))} is not'
    )
  free = [c for c in lhs + rhs if c not in shared]
  order = batch + free
  numbers = (_indices(contracted, lhs, rhs), _indices(batch, lhs, rhs))
  if order == list(out):
    return numbers, None
  return numbers, tuple(order.index(c) for c in out)


def eqn_to_weight_contract_dims(eqn: str) -> list[int]:
  """Returns the dimensions of the right operand that are contracted."""
  return Equation.parse(eqn).contracted


def eqn_to_activation_contract_dims(eqn: str) -> list[int]:
  """Returns those of the left operand, counted from the end: -1 and down."""
  parsed = Equation.parse(eqn)
  letters = parsed.lhs.replace('.', '')
  return [
    -(i + 1) for i, c in enumerate(reversed(letters)) if c not in parsed.out
  ]


def unused_letters(eqn: str, count: int) -> str:
  """Returns so many letters that are not in `eqn`."""
  free = [c for c in string.ascii_lowercase[::-1] if c not in eqn]
  free += [c for c in string.ascii_uppercase if c not in eqn]
  return ''.join(free[:count])


def _indices(
  letters: Sequence[str], lhs: str, rhs: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
  return tuple(map(lhs.index, letters)), tuple(map(rhs.index, letters))


def _in_order(letters: str, chosen: str) -> str:
  return ''.join(c for c in letters if c in chosen)
