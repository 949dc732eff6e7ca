# SPDX-License-Identifier: Apache-2.0
"""Reads the text of a compiled program: what it calls, and how often."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

_HEADER = re.compile(r'^(ENTRY )?%?([\w.\-]+) \(.*\{$')
_NAME = re.compile(r'^\s*(ROOT )?%?([\w.\-]+) = ')
_ARRAY = re.compile(
  r'\b([a-z]+[0-9][a-z0-9]*|pred)\[([\d,]*)\](?:\{([^{}]*)\})?'
)
_SPACE = re.compile(r'S\((\d+)\)')
_OPERAND = re.compile(r'%([\w.\-]+)')
_TRIPS = re.compile(r'known_trip_count"?[:=]\{"n":"(\d+)"')
_CALLED = re.compile(r'(?:calls|to_apply|body)=%?([\w.\-]+)')
_CONDITION = re.compile(r'condition=%?([\w.\-]+)')
_BRANCHES = re.compile(
  r'branch_computations=\{([^}]*)\}|(?:true|false)_computation=%?([\w.\-]+)'
)
_INDEX = re.compile(r'\bindex=(\d+)')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_BITS = re.compile(r'\d+')

# What runs a computation as often as it runs itself.
_CALLERS = ('fusion', 'call', 'async-start')


@dataclasses.dataclass(frozen=True)
class ArrayType:
  """One array that an instruction makes."""

  dtype: str
  dims: tuple[int, ...]
  # Memory space; 0 is the device's main memory.
  space: int

  @property
  def size(self) -> int:
    return math.prod(self.dims)

  @property
  def num_bytes(self) -> float:
    if self.dtype == 'pred' or self.dtype.startswith('f8'):
      return float(self.size)
    return self.size * int(_BITS.search(self.dtype)[0]) / 8


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation."""

  name: str
  opcode: str
  # What it makes; several for a tuple.
  types: tuple[ArrayType, ...]
  operands: tuple[str, ...]
  # All that is said behind the operands.
  attributes: str
  is_root: bool
  # What stands for operands of a constant or a parameter.
  literal: str

  @property
  def num_bytes(self) -> float:
    return sum(t.num_bytes for t in self.types)

  @property
  def op_name(self) -> str:
    """Where in the model it is from."""
    found = _OP_NAME.search(self.attributes)
    return found[1] if found else ''

  @property
  def index(self) -> int | None:
    """Of `get-tuple-element`."""
    found = _INDEX.search(self.attributes)
    return int(found[1]) if found else None


@dataclasses.dataclass(frozen=True)
class Computation:
  """Instructions by name, in the order in which they are scheduled."""

  name: str
  instructions: Mapping[str, Instruction]

  @functools.cached_property
  def root(self) -> Instruction:
    return next(i for i in self.instructions.values() if i.is_root)

  @functools.cached_property
  def parameters(self) -> list[Instruction]:
    """In the order in which a caller passes them."""
    found = [i for i in self.instructions.values() if i.opcode == 'parameter']
    return sorted(found, key=lambda i: int(i.literal))

  @functools.cached_property
  def users(self) -> Mapping[str, list[Instruction]]:
    """Who takes an instruction's result."""
    found: dict[str, list[Instruction]] = {}
    for instruction in self.instructions.values():
      for operand in instruction.operands:
        found.setdefault(operand, []).append(instruction)
    return found


@dataclasses.dataclass(frozen=True)
class Visit:
  """An instruction where it is reached from the entry."""

  instruction: Instruction
  computation: Computation
  # How often it runs in one call of the program.
  times: int
  # Whether it is a part of a fused instruction.
  is_fused: bool


@dataclasses.dataclass(frozen=True)
class Module:
  """A program."""

  computations: Mapping[str, Computation]
  entry: str

  def visits(self) -> Iterator[Visit]:
    """Every instruction that runs, loops as often as they do.

    Of the branches of a condition the longest runs; a loop without a known end
    runs once.
    """
    yield from self._visits(self.computations[self.entry], 1, False)

  def _visits(
    self, computation: Computation, times: int, is_fused: bool
  ) -> Iterator[Visit]:
    for one in computation.instructions.values():
      yield Visit(one, computation, times, is_fused)
      rounds = self.trip_count(one, computation) or 1
      for called in self.called(one):
        fused = is_fused or one.opcode == 'fusion'
        yield from self._visits(called, times * rounds, fused)

  def called(self, one: Instruction) -> list[Computation]:
    """What an instruction runs: of a loop the body, of branches one."""
    if one.opcode == 'conditional':
      names = []
      for many, single in _BRANCHES.findall(one.attributes):
        names += _OPERAND.findall(many) if many else [single]
      found = [self.computations[name] for name in names]
      return [max(found, key=lambda c: self._length(c.name))]
    if one.opcode not in (*_CALLERS, 'while'):
      return []
    found = _CALLED.search(one.attributes)
    return [self.computations[found[1]]] if found else []

  def trip_count(self, one: Instruction, where: Computation) -> int | None:
    """How often the body of a loop runs; 1 for what is none, None: unknown."""
    if one.opcode != 'while':
      return 1
    if told := _TRIPS.search(one.attributes):
      return int(told[1])
    condition = self.computations[_CONDITION.search(one.attributes)[1]]
    root = condition.root
    if root.opcode != 'compare' or 'direction=LT' not in root.attributes:
      return None
    counter = condition.instructions[root.operands[0]]
    limit = condition.instructions[root.operands[1]]
    first = self._value(counter, one, where)
    last = self._value(limit, one, where)
    return None if first is None or last is None else last - first

  def _value(
    self, one: Instruction, loop: Instruction, where: Computation
  ) -> int | None:
    """What an instruction of a loop's condition is in the first round."""
    if one.opcode == 'get-tuple-element':
      initial = where.instructions[loop.operands[0]]
      if initial.opcode != 'tuple':
        return None
      one = where.instructions[initial.operands[one.index]]
    while one.opcode in ('copy', 'bitcast', 'convert', 'copy-done'):
      one = where.instructions[one.operands[0]]
    is_number = one.opcode == 'constant' and one.literal.lstrip('-').isdigit()
    return int(one.literal) if is_number else None

  def _length(self, name: str) -> int:
    instructions = self.computations[name].instructions.values()
    called = (c.name for one in instructions for c in self.called(one))
    return len(instructions) + sum(map(self._length, called))


def parse(text: str) -> Module:
  """Returns the program that `text`, as of `Compiled.as_text`, describes."""
  computations: dict[str, Computation] = {}
  entry, name, instructions = '', None, {}
  for line in text.splitlines():
    if name is None:
      if header := _HEADER.match(line):
        name, instructions = header[2], {}
        entry = name if header[1] else entry
    elif line.startswith('}'):
      computations[name] = Computation(name, instructions)
      name = None
    elif one := _instruction(line):
      instructions[one.name] = one
  return Module(computations, entry)


def _instruction(line: str) -> Instruction | None:
  named = _NAME.match(line)
  if not named:
    return None
  rest = line[named.end() :]
  end = _closing(rest, 0) + 1 if rest.startswith('(') else rest.index(' ')
  made, rest = rest[:end], rest[end:].lstrip()
  opcode, _, rest = rest.partition('(')
  close = _closing(f'({rest}', 0) - 1
  arguments, attributes = rest[:close], rest[close + 1 :]
  return Instruction(
    name=named[2],
    opcode=opcode,
    types=tuple(_arrays(made)),
    operands=tuple(_OPERAND.findall(arguments)),
    attributes=attributes,
    is_root=bool(named[1]),
    literal=arguments if opcode in ('parameter', 'constant') else '',
  )


def _arrays(text: str) -> Iterator[ArrayType]:
  for dtype, dims, layout in _ARRAY.findall(text):
    space = _SPACE.search(layout)
    yield ArrayType(
      dtype,
      tuple(int(d) for d in dims.split(',') if d),
      int(space[1]) if space else 0,
    )


def _closing(text: str, start: int) -> int:
  """Returns where the bracket that opens at `start` closes."""
  depth = 0
  for found in re.finditer(r'[()]', text[start:]):
    depth += 1 if found[0] == '(' else -1
    if depth == 0:
      return start + found.start()
  raise ValueError(f'no end of {text[start : start + 60]!r}')
