# SPDX-License-Identifier: Apache-2.0
"""Parser of compiled HLO text, with execution counts of instructions."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

from praxis.layers.moe import routed_rows

_COMPUTATION_HEADER = re.compile(r'^(ENTRY )?%?([\w.\-]+) \(.*\{$')
_RESULT_NAME = re.compile(r'^\s*(ROOT )?%?([\w.\-]+) = ')
_ARRAY_TYPE = re.compile(
  r'\b([a-z]+[0-9][a-z0-9]*|pred)\[([\d,]*)\](?:\{([^{}]*)\})?'
)
_MEMORY_SPACE = re.compile(r'S\((\d+)\)')
_OPERAND = re.compile(r'%([\w.\-]+)')
_TRIP_COUNT = re.compile(r'known_trip_count"?[:=]\{"n":"(\d+)"')
_CALLED = re.compile(r'(?:calls|to_apply|body)=%?([\w.\-]+)')
_CONDITION = re.compile(r'condition=%?([\w.\-]+)')
_BRANCHES = re.compile(
  r'branch_computations=\{([^}]*)\}|(?:true|false)_computation=%?([\w.\-]+)'
)
_TUPLE_INDEX = re.compile(r'\bindex=(\d+)')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_BIT_WIDTH = re.compile(r'\d+')

# Opcodes that run their called computation once per execution.
_CALL_OPCODES = ('fusion', 'call', 'call-start', 'async-start')


@dataclasses.dataclass(frozen=True)
class ArrayType:
  """Shape, dtype and memory space of an array."""

  dtype: str
  dims: tuple[int, ...]
  # 0 is HBM; other spaces are on-chip memory or the host.
  memory_space: int

  @property
  def size(self) -> int:
    return math.prod(self.dims)

  @property
  def num_bytes(self) -> float:
    if self.dtype == 'pred' or self.dtype.startswith('f8'):
      return float(self.size)
    [width] = _BIT_WIDTH.findall(self.dtype)[:1]
    return self.size * int(width) / 8


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One instruction of a computation."""

  name: str
  opcode: str
  # The arrays of the result; several for a tuple.
  types: tuple[ArrayType, ...]
  # Names of the operands.
  operands: tuple[str, ...]
  # The text after the operands.
  attributes: str
  is_root: bool
  # The value of a constant, or the number of a parameter; else ''.
  literal: str

  @property
  def num_bytes(self) -> float:
    return sum(t.num_bytes for t in self.types)

  @property
  def op_name(self) -> str:
    """The JAX name stack and primitive; '' if the metadata has none."""
    match = _OP_NAME.search(self.attributes)
    return match[1] if match else ''

  @property
  def tuple_index(self) -> int | None:
    """The `index` of a `get-tuple-element`; None for other opcodes."""
    match = _TUPLE_INDEX.search(self.attributes)
    return int(match[1]) if match else None


@dataclasses.dataclass(frozen=True)
class Computation:
  """Instructions by name, in scheduled order."""

  name: str
  instructions: Mapping[str, Instruction]

  @functools.cached_property
  def root(self) -> Instruction:
    return next(i for i in self.instructions.values() if i.is_root)

  @functools.cached_property
  def parameters(self) -> list[Instruction]:
    """The parameters, in the order of the caller's operands."""
    parameters = [
      i for i in self.instructions.values() if i.opcode == 'parameter'
    ]
    return sorted(parameters, key=lambda i: int(i.literal))

  @functools.cached_property
  def users(self) -> Mapping[str, list[Instruction]]:
    """Maps each instruction's name to the instructions that read its result."""
    users: dict[str, list[Instruction]] = {}
    for instruction in self.instructions.values():
      for operand in instruction.operands:
        users.setdefault(operand, []).append(instruction)
    return users


@dataclasses.dataclass(frozen=True)
class Execution:
  """An instruction that runs when the program runs, and how often."""

  instruction: Instruction
  computation: Computation
  # Executions per run of the program.
  count: int
  # Whether the instruction is inside a fusion.
  is_fused: bool


@dataclasses.dataclass(frozen=True)
class Module:
  """A compiled program."""

  computations: Mapping[str, Computation]
  # Name of the entry computation.
  entry: str

  def executions(self) -> Iterator[Execution]:
    """Yields every instruction reached from the entry computation.

    Loop bodies count as often as the loop runs, once if the trip count is
    unknown. Of a conditional the longest branch runs.
    """
    yield from self._executions(self.computations[self.entry], 1, False)

  def _executions(
    self, computation: Computation, count: int, is_fused: bool
  ) -> Iterator[Execution]:
    for instruction in computation.instructions.values():
      yield Execution(instruction, computation, count, is_fused)
      trips = self.trip_count(instruction, computation) or 1
      for called in self.called(instruction):
        fused = is_fused or instruction.opcode == 'fusion'
        yield from self._executions(called, count * trips, fused)

  def called(self, instruction: Instruction) -> list[Computation]:
    """Returns the computations that run: a loop's body, one branch.

    It is the branch with the most instructions, of those that run where experts
    are balanced (`routed_rows`).
    """
    if instruction.opcode == 'conditional':
      names = []
      for branches, branch in _BRANCHES.findall(instruction.attributes):
        names += _OPERAND.findall(branches) if branches else [branch]
      branches = [self.computations[name] for name in names]
      branches = [c for c in branches if not _is_rare(c)] or branches
      return [max(branches, key=lambda c: self._num_instructions(c.name))]
    if instruction.opcode not in (*_CALL_OPCODES, 'while'):
      return []
    match = _CALLED.search(instruction.attributes)
    return [self.computations[match[1]]] if match else []

  def trip_count(
    self, instruction: Instruction, computation: Computation
  ) -> int | None:
    """Returns how often the body of a while loop runs.

    Args:
      instruction: any instruction; 1 unless it is a `while`.
      computation: the computation that holds the instruction.

    Returns:
      The trip count; None if neither XLA's annotation nor a comparison of a
      counter with a constant gives it.
    """
    if instruction.opcode != 'while':
      return 1
    if match := _TRIP_COUNT.search(instruction.attributes):
      return int(match[1])
    [name] = _CONDITION.findall(instruction.attributes)[:1]
    condition = self.computations[name]
    compare = condition.root
    if compare.opcode != 'compare' or 'direction=LT' not in compare.attributes:
      return None
    counter, limit = (condition.instructions[n] for n in compare.operands[:2])
    first = _initial_value(counter, instruction, computation)
    last = _initial_value(limit, instruction, computation)
    return None if first is None or last is None else last - first

  def _num_instructions(self, name: str) -> int:
    instructions = self.computations[name].instructions.values()
    called = (c.name for i in instructions for c in self.called(i))
    return len(instructions) + sum(map(self._num_instructions, called))


def _is_rare(branch: Computation) -> bool:
  return any(
    not routed_rows.share_of(i.op_name) for i in branch.instructions.values()
  )


def parse(text: str) -> Module:
  """Parses HLO text, as from `jax.stages.Compiled.as_text`.

  Raises:
    ValueError: the text ends within a computation, or has no entry.
  """
  computations: dict[str, Computation] = {}
  entry: str = ''
  name: str | None = None
  instructions: dict[str, Instruction] = {}
  lines = iter(text.splitlines())
  for line in lines:
    if name is None:
      if header := _COMPUTATION_HEADER.match(line):
        name, instructions = header[2], {}
        entry = name if header[1] else entry
    elif line.startswith('}'):
      computations[name] = Computation(name, instructions)
      name = None
    elif instruction := _parse_instruction(_with_continuations(line, lines)):
      instructions[instruction.name] = instruction
  if name is not None or entry not in computations:
    raise ValueError(
      f'HLO text must end after a computation and have an ENTRY, got the end '
      f'in {name!r} and the entry {entry!r}'
    )
  return Module(computations, entry)


def _with_continuations(line: str, lines: Iterator[str]) -> str:
  """Returns an instruction with the following lines of its attributes.

  The metadata of Mosaic kernels have several lines, which begin with a quote or
  a closing brace.
  """
  if not line.endswith('{'):
    return line
  parts = [line]
  depth = _brace_depth(line)
  while depth > 0:
    parts.append(next(lines, '}' * depth))
    depth += _brace_depth(parts[-1])
  return ''.join(parts)


def _brace_depth(line: str) -> int:
  unquoted = _QUOTED.sub('', line)
  return unquoted.count('{') - unquoted.count('}')


def _initial_value(
  operand: Instruction, loop: Instruction, computation: Computation
) -> int | None:
  """The value of a condition's operand in the first iteration, if constant."""
  if operand.opcode == 'get-tuple-element':
    initial = computation.instructions[loop.operands[0]]
    if initial.opcode != 'tuple':
      return None
    index = operand.tuple_index
    if index is None:
      return None
    operand = computation.instructions[initial.operands[index]]
  while operand.opcode in ('copy', 'bitcast', 'convert', 'copy-done'):
    operand = computation.instructions[operand.operands[0]]
  is_integer = (
    operand.opcode == 'constant' and operand.literal.lstrip('-').isdigit()
  )
  return int(operand.literal) if is_integer else None


def _parse_instruction(line: str) -> Instruction | None:
  head = _RESULT_NAME.match(line)
  if not head:
    return None
  rest = line[head.end() :]
  end = _closing_paren(rest, 0) + 1 if rest.startswith('(') else rest.index(' ')
  result_type, rest = rest[:end], rest[end:].lstrip()
  opcode, _, rest = rest.partition('(')
  end = _closing_paren(f'({rest}', 0) - 1
  arguments, attributes = rest[:end], rest[end + 1 :]
  return Instruction(
    name=head[2],
    opcode=opcode,
    types=tuple(_parse_array_types(result_type)),
    operands=tuple(_OPERAND.findall(arguments)),
    attributes=attributes,
    is_root=bool(head[1]),
    literal=arguments if opcode in ('parameter', 'constant') else '',
  )


def _parse_array_types(text: str) -> Iterator[ArrayType]:
  for dtype, dims, layout in _ARRAY_TYPE.findall(text):
    memory_space = _MEMORY_SPACE.search(layout)
    yield ArrayType(
      dtype,
      tuple(int(d) for d in dims.split(',') if d),
      int(memory_space[1]) if memory_space else 0,
    )


def _closing_paren(text: str, start: int) -> int:
  """Returns the index of the parenthesis that closes the one at `start`."""
  depth = 0
  for match in re.finditer(r'[()]', text[start:]):
    depth += 1 if match[0] == '(' else -1
    if depth == 0:
      return start + match.start()
  raise ValueError(f'unbalanced parentheses in {text[start : start + 60]!r}')
