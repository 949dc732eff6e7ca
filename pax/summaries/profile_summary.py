# SPDX-License-Identifier: Apache-2.0
"""One-page summary of a trace: operations by time, idle time, MFU."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax

# Annotations of the training loop in its traces.
STEP = 'train'
INPUT_WAIT = 'input wait'
# What is no part of training, such as an evaluation between two steps.
PAUSE = 'pause'

_NUM_OPERATIONS = 20
# A plane of an accelerator is `/device:TPU:0`; CPU devices share one plane.
_ACCELERATOR = '/device:'
# The line of a TPU with operations; lines of a GPU are its streams.
_TPU_LINE = 'XLA Ops'
# The time of control flow is that of the operations within it.
_CONTROL_FLOW = re.compile(r'(while|conditional|call)([.\d]|$)')
# `%name = ... metadata={op_name="..."}` in the text of an HLO module. Mosaic
# kernels have other metadata in lines between.
_RESULT_NAME = re.compile(r'^ *(?:ROOT )?%?([\w.-]+) = ')
_OP_NAME = re.compile(r'\bop_name="([^"]*)"')
_MODULE = re.compile(r'^HloModule ([\w.-]+)')
_MAX_SOURCE_CHARS = 90

# Start and end in nanoseconds.
_Span = tuple[float, float]


class _Instruction(NamedTuple):
  """An instruction of a program on a device."""

  device: str
  name: str
  module: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operation:
  """All runs of an instruction of a program, over devices and steps."""

  name: str
  module: str
  count: int
  seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileSummary:
  """Traced steps; the three shares of the time sum to 1."""

  num_steps: int
  num_devices: int
  # From the start of the first step to the end of the last operation, without
  # pauses.
  seconds: float
  # Mean over devices: computing, idle while the loop waits for a batch, and
  # idle otherwise.
  busy: float
  input_wait: float
  idle: float
  # By time, the longest first.
  operations: Sequence[Operation]


def summarize(profile: jax.profiler.ProfileData) -> ProfileSummary | None:
  """Returns the summary of a trace; None without a step or an operation."""
  steps, waits, pauses = [], [], []
  runs: list[tuple[_Instruction, _Span]] = []
  planes = [plane.name for plane in profile.planes]
  has_accelerator = any(name.startswith(_ACCELERATOR) for name in planes)
  for plane, line, event in _events(profile):
    span = event.start_ns, event.start_ns + event.duration_ns
    if event.name == STEP:
      steps.append(span)
    elif event.name == INPUT_WAIT:
      waits.append(span)
    elif event.name == PAUSE:
      pauses.append(span)
    elif has_accelerator and not plane.startswith(_ACCELERATOR):
      continue
    elif instruction := _instruction(plane, line, event):
      runs.append((instruction, span))
  # The devices have nothing to do when a pause begins.
  runs = [
    (instruction, span)
    for instruction, span in runs
    if not any(start <= span[0] < end for start, end in pauses)
  ]
  if not steps or not runs:
    return None
  devices: dict[str, list[_Span]] = collections.defaultdict(list)
  for instruction, span in runs:
    devices[instruction.device].append(span)
  start = min(steps)[0]
  end = max(last for spans in (steps, *devices.values()) for _, last in spans)
  window = _Window(start, end, pauses)
  shares = [_shares(spans, waits, window) for spans in devices.values()]
  busy, input_wait = (sum(s) / len(s) for s in zip(*shares, strict=True))
  return ProfileSummary(
    num_steps=len(steps),
    num_devices=len(devices),
    seconds=1e-9 * window.length,
    busy=busy,
    input_wait=input_wait,
    idle=1.0 - busy - input_wait,
    operations=_operations(runs),
  )


def _operations(
  runs: Iterable[tuple[_Instruction, _Span]],
) -> list[Operation]:
  counts: collections.Counter[tuple[str, str]] = collections.Counter()
  nanoseconds: dict[tuple[str, str], float] = collections.defaultdict(float)
  for instruction, (start, end) in runs:
    key = instruction.name, instruction.module
    counts[key] += 1
    nanoseconds[key] += end - start
  operations = [
    Operation(
      name=name,
      module=module,
      count=counts[name, module],
      seconds=1e-9 * spent,
    )
    for (name, module), spent in nanoseconds.items()
  ]
  return sorted(operations, key=lambda operation: -operation.seconds)


def op_names(hlo: str) -> dict[tuple[str, str], str]:
  """Returns the path in the model of each instruction of an HLO text.

  The keys are (module, instruction), and ('', instruction) for traces of TPUs,
  which do not name the module.
  """
  module = _MODULE.match(hlo)
  modules = ['', module[1]] if module else ['']
  paths, name = {}, ''
  for line in hlo.splitlines():
    if result := _RESULT_NAME.match(line):
      name = result[1]
    if path := _OP_NAME.search(line):
      paths.update({(module, name): path[1] for module in modules})
  return paths


def summary_line(summary: ProfileSummary, mfu: float | None) -> str:
  """Returns `profile of 5 steps: 41.3 ms a step  MFU 37.0%  idle 12.1% ...`."""
  parts = [
    f'profile of {summary.num_steps} steps:'
    f' {1e3 * summary.seconds / summary.num_steps:.1f} ms a step',
    '' if mfu is None else f'MFU {100 * mfu:.1f}%',
    f'busy {100 * summary.busy:.1f}%',
    f'input wait {100 * summary.input_wait:.1f}%',
    f'idle {100 * summary.idle:.1f}%',
  ]
  return '  '.join(filter(None, parts))


def to_markdown(
  summary: ProfileSummary,
  mfu: float | None,
  sources: Mapping[tuple[str, str], str],
) -> str:
  """Returns the page.

  Args:
    summary: The summary.
    mfu: Model FLOPs utilization of the traced steps; None if it is unknown.
    sources: Paths in the model, as of `op_names`.
  """
  rows = _operation_rows(summary, sources)
  return '\n'.join(
    [
      f'# {summary_line(summary, mfu)}',
      '',
      'From the start of the first step to the end of the last operation,'
      ' without evaluations in between; mean over the devices of one process'
      f' ({summary.num_devices}).',
      '',
      '| time of a device | share |',
      '| --- | ---: |',
      f'| computing | {100 * summary.busy:.2f} % |',
      f'| idle, waiting for a batch | {100 * summary.input_wait:.2f} % |',
      f'| idle otherwise | {100 * summary.idle:.2f} % |',
      '',
      'Operations by their share of the time of all operations, which may run'
      ' at the same time:',
      '',
      '| share | ms a step | runs a step | operation | program | source |',
      '| ---: | ---: | ---: | --- | --- | --- |',
      *rows,
      '',
    ]
  )


def _operation_rows(
  summary: ProfileSummary, sources: Mapping[tuple[str, str], str]
) -> Iterator[str]:
  total = sum(operation.seconds for operation in summary.operations)
  per_step = summary.num_steps * summary.num_devices

  def numbers(operations: Sequence[Operation]) -> str:
    seconds = sum(operation.seconds for operation in operations)
    count = sum(operation.count for operation in operations)
    return (
      f'| {100 * seconds / total if total else 0.0:.2f} %'
      f' | {1e3 * seconds / per_step:.3f} | {count / per_step:.1f} |'
    )

  for operation in summary.operations[:_NUM_OPERATIONS]:
    source = sources.get((operation.module, operation.name), '')
    if len(source) > _MAX_SOURCE_CHARS:
      source = f'...{source[-_MAX_SOURCE_CHARS:]}'
    source = source.replace('|', '\\|')
    yield (
      f'{numbers([operation])} {operation.name} | {operation.module} |'
      f' {source} |'
    )
  if others := summary.operations[_NUM_OPERATIONS:]:
    yield f'{numbers(others)} {len(others)} others | | |'


def _events(
  profile: jax.profiler.ProfileData,
) -> Iterator[tuple[str, str, jax.profiler.ProfileEvent]]:
  """Yields the events of a trace with the names of their plane and line."""
  for plane in profile.planes:
    for line in plane.lines:
      for event in line.events:
        yield plane.name, line.name, event


def _instruction(
  plane: str, line: str, event: jax.profiler.ProfileEvent
) -> _Instruction | None:
  """Returns the instruction that an event is a run of; None for others."""
  if plane.startswith('/device:TPU'):
    if line != _TPU_LINE:
      return None
    # The name is the text of the instruction.
    name = event.name.partition(' ')[0].lstrip('%')
    return None if _CONTROL_FLOW.match(name) else _Instruction(plane, name, '')
  stats = dict(event.stats)
  # Kernels of command buffers of GPUs have no instruction.
  is_accelerator = plane.startswith(_ACCELERATOR)
  name = stats.get('hlo_op', event.name if is_accelerator else None)
  if name is None or _CONTROL_FLOW.match(name):
    return None
  # CPU devices share the threads of a plane.
  device = f'{plane} {stats.get("device_ordinal", "")}'
  return _Instruction(device, name, str(stats.get('hlo_module', '')))


class _Window(NamedTuple):
  """The time that is summarized, in nanoseconds."""

  start: float
  end: float
  pauses: Sequence[_Span]

  @property
  def length(self) -> float:
    return self.end - self.start - self._covered(self.pauses)

  def covered(self, spans: Iterable[_Span]) -> float:
    """Returns the length of the union of spans outside of pauses."""
    paused = self._covered(self.pauses)
    return self._covered([*spans, *self.pauses]) - paused

  def _covered(self, spans: Iterable[_Span]) -> float:
    clipped = ((max(a, self.start), min(b, self.end)) for a, b in spans)
    return _covered((a, b) for a, b in clipped if a < b)


def _shares(
  operations: Sequence[_Span], waits: Sequence[_Span], window: _Window
) -> tuple[float, float]:
  """Returns the busy share of a device, and its share of input wait."""
  busy = window.covered(operations)
  input_wait = window.covered([*operations, *waits]) - busy
  return busy / window.length, input_wait / window.length


def _covered(spans: Iterable[_Span]) -> float:
  """Returns the length of the union of spans."""
  length, last = 0.0, float('-inf')
  for start, end in sorted(spans):
    length += max(0.0, end - max(start, last))
    last = max(last, end)
  return length
