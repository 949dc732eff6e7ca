# SPDX-License-Identifier: Apache-2.0
"""One-page summary of a trace: operations by time, idle time, MFU."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import jax

# Annotations of the training loop in its traces.
STEP = 'train'
INPUT_WAIT = 'input wait'

_NUM_OPERATIONS = 20
# A plane of an accelerator is `/device:TPU:0`; CPU devices share one plane.
_ACCELERATOR = '/device:'
# The line of a TPU with operations; lines of a GPU are its streams.
_TPU_LINE = 'XLA Ops'
# The time of control flow is that of the operations within it.
_CONTROL_FLOW = re.compile(r'(while|conditional|call)([.\d]|$)')
# `%name = ... metadata={op_name="..."}` in the text of an HLO module.
_OP_NAME = re.compile(
  r'^ *(?:ROOT )?%?([\w.-]+) = .*op_name="([^"]*)"', re.MULTILINE
)
_MAX_SOURCE_CHARS = 90

# Start and end in nanoseconds.
_Span = tuple[float, float]


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
  # From the start of the first step to the end of the last operation.
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
  steps, waits = [], []
  devices: dict[str, list[_Span]] = collections.defaultdict(list)
  counts: collections.Counter[tuple[str, str]] = collections.Counter()
  nanoseconds: collections.Counter[tuple[str, str]] = collections.Counter()
  planes = [plane.name for plane in profile.planes]
  has_accelerator = any(name.startswith(_ACCELERATOR) for name in planes)
  for plane, line, event in _events(profile):
    span = event.start_ns, event.start_ns + event.duration_ns
    if event.name == STEP:
      steps.append(span)
    elif event.name == INPUT_WAIT:
      waits.append(span)
    elif has_accelerator and not plane.startswith(_ACCELERATOR):
      continue
    elif operation := _operation(plane, line, event):
      device, instruction, module = operation
      devices[device].append(span)
      counts[instruction, module] += 1
      nanoseconds[instruction, module] += event.duration_ns
  if not steps or not devices:
    return None
  start = min(steps)[0]
  end = max(last for spans in (steps, *devices.values()) for _, last in spans)
  shares = [_shares(spans, waits, (start, end)) for spans in devices.values()]
  busy, input_wait = (sum(s) / len(s) for s in zip(*shares, strict=True))
  return ProfileSummary(
    num_steps=len(steps),
    num_devices=len(devices),
    seconds=1e-9 * (end - start),
    busy=busy,
    input_wait=input_wait,
    idle=1.0 - busy - input_wait,
    operations=[
      Operation(
        name=name,
        module=module,
        count=counts[name, module],
        seconds=1e-9 * spent,
      )
      for (name, module), spent in nanoseconds.most_common()
    ],
  )


def op_names(hlo: str) -> dict[str, str]:
  """Returns the path in the model of each instruction of an HLO text."""
  return dict(_OP_NAME.findall(hlo))


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
  summary: ProfileSummary, mfu: float | None, sources: Mapping[str, str]
) -> str:
  """Returns the page.

  Args:
    summary: The summary.
    mfu: Model FLOPs utilization of the traced steps; None if it is unknown.
    sources: Paths in the model, as of `op_names`, by instruction.
  """
  rows = _operation_rows(summary, sources)
  return '\n'.join(
    [
      f'# {summary_line(summary, mfu)}',
      '',
      'From the start of the first step to the end of the last operation; mean'
      f' over the devices of one process ({summary.num_devices}).',
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
  summary: ProfileSummary, sources: Mapping[str, str]
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
    source = sources.get(operation.name, '')
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


def _operation(
  plane: str, line: str, event: jax.profiler.ProfileEvent
) -> tuple[str, str, str] | None:
  """Returns device, instruction and module of an event; None for others."""
  if plane.startswith('/device:TPU'):
    if line != _TPU_LINE:
      return None
    # The name is the text of the instruction.
    name = event.name.partition(' ')[0].lstrip('%')
    return None if _CONTROL_FLOW.match(name) else (plane, name, '')
  stats = dict(event.stats)
  # Kernels of command buffers of GPUs have no instruction.
  is_accelerator = plane.startswith(_ACCELERATOR)
  name = stats.get('hlo_op', event.name if is_accelerator else None)
  if name is None or _CONTROL_FLOW.match(name):
    return None
  # CPU devices share the threads of a plane.
  device = f'{plane} {stats.get("device_ordinal", "")}'
  return device, name, str(stats.get('hlo_module', ''))


def _shares(
  operations: Iterable[_Span], waits: Iterable[_Span], window: _Span
) -> tuple[float, float]:
  """Returns the busy share of a device, and its share of input wait."""
  start, end = window

  def covered(spans: Iterable[_Span]) -> float:
    clipped = ((max(a, start), min(b, end)) for a, b in spans)
    return _covered((a, b) for a, b in clipped if a < b)

  operations = list(operations)
  busy = covered(operations)
  return (
    busy / (end - start),
    (covered([*operations, *waits]) - busy) / (end - start),
  )


def _covered(spans: Iterable[_Span]) -> float:
  """Returns the length of the union of spans."""
  length, last = 0.0, float('-inf')
  for start, end in sorted(spans):
    length += max(0.0, end - max(start, last))
    last = max(last, end)
  return length
