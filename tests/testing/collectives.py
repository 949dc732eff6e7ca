# SPDX-License-Identifier: Apache-2.0
"""Collectives of compiled programs, with the shapes of their results."""

from __future__ import annotations

import dataclasses
import math

from pax.aot.hlo import async_collectives, hlo_parser


@dataclasses.dataclass(frozen=True)
class Collective:
  """A collective instruction."""

  kind: str
  # Shapes of the results on one device.
  shapes: tuple[tuple[int, ...], ...]
  # Executions per run of the program.
  count: int

  @property
  def num_elements(self) -> int:
    """Elements of the results on one device."""
    return sum(math.prod(shape) for shape in self.shapes)


def find_collectives(hlo_text: str) -> list[Collective]:
  """Returns the collectives of a program, those of one device too."""
  sent = []
  for execution in hlo_parser.parse(hlo_text).executions():
    instruction = execution.instruction
    if kind := async_collectives.kind(instruction):
      shapes = tuple(array_type.dims for array_type in instruction.types)
      sent.append(Collective(kind, shapes, execution.count))
  return sent


def total_elements(sent: list[Collective], kind: str) -> int:
  """Returns the elements of the results of all collectives of a kind."""
  return sum(c.num_elements * c.count for c in sent if c.kind == kind)


def kinds(sent: list[Collective]) -> set[str]:
  return {c.kind for c in sent}
