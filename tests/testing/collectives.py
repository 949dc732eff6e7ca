# SPDX-License-Identifier: Apache-2.0
"""What a compiled program sends between devices, read from its text."""

from __future__ import annotations

import collections
import dataclasses
import math
import re

_KINDS = (
  'all-gather',
  'all-reduce',
  'all-to-all',
  'collective-permute',
  'reduce-scatter',
)
_HEAD = re.compile(r'^(?:ENTRY )?%?([\w.\-]+) \(.*\{$')
_INSTRUCTION = re.compile(
  r'= (?P<shape>.*?) (?P<op>[a-z][a-z0-9\-]*)\((?P<rest>.*)$'
)
_CALLED = re.compile(
  r'(?:body|condition|to_apply|calls|true_computation|false_computation)='
  r'%?([\w.\-]+)'
)
_BRANCHES = re.compile(r'branch_computations=\{([^}]*)\}')
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_ARRAY = re.compile(r'([a-z]+\d+|pred)\[([\d,]*)\]')


@dataclasses.dataclass(frozen=True)
class Collective:
  """An instruction that devices do together."""

  kind: str
  # Sizes of the arrays that come out, on one device.
  shapes: tuple[tuple[int, ...], ...]
  # How often it runs, if the text tells.
  times: int

  @property
  def elements(self) -> int:
    """How many numbers come out each time."""
    return sum(math.prod(shape) for shape in self.shapes)


def read(text: str) -> list[Collective]:
  """Returns the collectives of a program, as often as loops run them."""
  lines: dict[str, list[str]] = {}
  name, entry = '', ''
  for line in text.splitlines():
    if head := _HEAD.match(line):
      name = head[1]
      lines[name] = []
      entry = name if line.startswith('ENTRY') else entry
    elif name:
      lines[name].append(line)
  times: collections.Counter[str] = collections.Counter()
  _count(entry, 1, lines, times)
  return [
    Collective(kind, shapes, times[name])
    for name in times
    for kind, shapes in map(_collective, lines[name])
    if kind
  ]


def total(found: list[Collective], kind: str) -> int:
  """Returns how many numbers come out of all collectives of a kind."""
  return sum(c.elements * c.times for c in found if c.kind == kind)


def kinds(found: list[Collective]) -> set[str]:
  """Returns which kinds there are."""
  return {c.kind for c in found}


def _count(
  name: str, often: int, lines: dict[str, list[str]], times: dict[str, int]
) -> None:
  """Adds how often a computation runs, and those that it calls."""
  times[name] += often
  for line in lines[name]:
    trips = _TRIPS.search(line)
    called = _CALLED.findall(line)
    for branches in _BRANCHES.findall(line):
      called += [part.strip(' %') for part in branches.split(',')]
    for other in called:
      if other in lines:
        each = int(trips[1]) if trips and ' while(' in line else 1
        _count(other, often * each, lines, times)


def _collective(line: str) -> tuple[str, tuple[tuple[int, ...], ...]]:
  """Returns the kind, '' for none, and the shapes of an instruction."""
  found = _INSTRUCTION.search(line)
  kind = found['op'].removesuffix('-start') if found else ''
  if kind not in _KINDS:
    return '', ()
  shapes = tuple(
    tuple(int(n) for n in sizes.split(',') if n)
    for _, sizes in _ARRAY.findall(found['shape'])
  )
  return kind, shapes
