# SPDX-License-Identifier: Apache-2.0
"""Parsed einsum equations of two operands."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Equation:
  """The letters of the two operands and of the output."""

  lhs: str
  rhs: str
  out: str

  @classmethod
  def parse(cls, eqn: str) -> Equation:
    """Parses an equation, which may have `...`.

    Raises:
      ValueError: the equation does not have two operands and an output, or an
        operand repeats a letter.
    """
    ins, arrow, out = eqn.replace(' ', '').partition('->')
    operands = ins.split(',')
    if not arrow or len(operands) != 2:
      raise ValueError(
        f"an equation must have two arguments, as 'bd,df->bf', got {eqn!r}"
      )
    for letters in operands:
      explicit = letters.replace('.', '')
      if len(explicit) != len(set(explicit)):
        raise ValueError(f'Repeated letter in {letters!r} of equation {eqn!r}')
    lhs, rhs = operands
    return cls(lhs, rhs, out)

  def expand(self, lhs_ndim: int, rhs_ndim: int) -> Equation:
    """Replaces `...` by letters for operands of these ranks."""
    ndims = {self.lhs: lhs_ndim, self.rhs: rhs_ndim}
    num_hidden = max(
      [n - len(s) + 3 for s, n in ndims.items() if '...' in s], default=0
    )
    new_letters = unused_letters(str(self), num_hidden)

    def fill(letters: str, count: int) -> str:
      return letters.replace('...', new_letters[num_hidden - count :])

    lhs = fill(self.lhs, lhs_ndim - len(self.lhs) + 3)
    rhs = fill(self.rhs, rhs_ndim - len(self.rhs) + 3)
    return Equation(lhs, rhs, fill(self.out, num_hidden))

  @property
  def contracted(self) -> list[int]:
    """The contracted dimensions of the right operand."""
    letters = self.rhs.replace('.', '')
    return [i for i, c in enumerate(letters) if c not in self.out]

  @property
  def uncontracted(self) -> str:
    """The letters of the right operand that the output has."""
    return ''.join(c for c in self.rhs.replace('.', '') if c in self.out)

  def swapped(self) -> Equation:
    """Returns the equation with swapped operands."""
    return Equation(self.rhs, self.lhs, self.out)

  def split(self, dim: int) -> SplitEquation:
    """Returns the equations after splitting a contracted dimension into blocks.

    Dimension `dim` of the right operand becomes (num_blocks, block_size), and
    so does the dimension of the left operand with that letter.
    """
    old = self.rhs[dim]
    block = unused_letters(str(self), 1)
    lhs = self.lhs.replace(old, block + old)
    rhs = self.rhs.replace(old, block + old)
    uncontracted = block + self.uncontracted
    return SplitEquation(
      product=f'{lhs},{rhs}->{block}{self.out}',
      scale=f'{block}{self.out},{_in_order(rhs, uncontracted)}->{self.out}',
      zero_point=f'{lhs},{_in_order(rhs, uncontracted)}->{self.out}',
    )

  def __str__(self) -> str:
    return f'{self.lhs},{self.rhs}->{self.out}'


@dataclasses.dataclass(frozen=True)
class SplitEquation:
  """The equations of an einsum with block-wise contraction."""

  # Operands -> result per block.
  product: str
  # Result per block and scale -> output.
  scale: str
  # Left operand and zero points -> offset of the output.
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
  """Returns the dimension numbers of `dot_general` and a transposition.

  The transposition brings the result of dot_general into the order of the
  output; it is None if the order is right.

  Raises:
    NotImplementedError: the equation has `...`.
    ValueError: the equation has a letter in one operand only.
  """
  if '.' in eqn:
    raise NotImplementedError(
      f"equation {eqn!r} must not have '...'; give each dimension a letter"
    )
  parsed = Equation.parse(eqn)
  lhs, rhs, out = parsed.lhs, parsed.rhs, parsed.out
  shared = [c for c in lhs if c in rhs]
  batch = [c for c in out if c in shared]
  contracted = sorted(c for c in shared if c not in out)
  unmatched = set(lhs + rhs) - set(shared) - set(out)
  if unmatched or set(out) - set(lhs + rhs):
    raise ValueError(
      f'Contraction of one argument is not supported: each letter of {eqn!r} '
      'must be in the output or in both arguments, '
      f'{sorted(unmatched) or sorted(set(out) - set(lhs + rhs))} is not'
    )
  free = [c for c in lhs + rhs if c not in shared]
  order = batch + free
  numbers = (_indices(contracted, lhs, rhs), _indices(batch, lhs, rhs))
  if order == list(out):
    return numbers, None
  return numbers, tuple(order.index(c) for c in out)


def eqn_to_weight_contract_dims(eqn: str) -> list[int]:
  """Returns the contracted dimensions of the right operand."""
  return Equation.parse(eqn).contracted


def eqn_to_activation_contract_dims(eqn: str) -> list[int]:
  """Returns the contracted dimensions of the left operand, negative."""
  parsed = Equation.parse(eqn)
  letters = parsed.lhs.replace('.', '')
  return [
    -(i + 1) for i, c in enumerate(reversed(letters)) if c not in parsed.out
  ]


def unused_letters(eqn: str, count: int) -> str:
  """Returns `count` letters that `eqn` does not use."""
  free = [c for c in string.ascii_lowercase if c not in eqn]
  free += [c for c in string.ascii_uppercase if c not in eqn]
  return ''.join(free[:count])


def _indices(
  letters: Sequence[str], lhs: str, rhs: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
  return tuple(map(lhs.index, letters)), tuple(map(rhs.index, letters))


def _in_order(letters: str, subset: str) -> str:
  return ''.join(c for c in letters if c in subset)
