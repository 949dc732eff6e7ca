# SPDX-License-Identifier: Apache-2.0
"""The report as text, and the rows that the HTML report shares with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pax.aot.report.memory import Memory
from pax.aot.report.roofline import Roofline
from pax.aot.report.step_report import RematPolicy, Report

_NUM_SHOWN_ARRAYS = 12
_NUM_SHOWN_BUFFERS = 8
_UNITS = ((2**40, 'TiB'), (2**30, 'GiB'), (2**20, 'MiB'), (2**10, 'KiB'))

COLLECTIVES_HEADER = (
  'kind', 'axes', 'count', 'within a slice', 'between slices',
)  # fmt: skip
REMAT_HEADER = ('CHECKPOINT_POLICY', 'memory', 'FLOPs', 'fits')
ARRAYS_HEADER = ('array', 'shape', 'dtype', 'sharding', 'shards', 'per device')


def render_text(report: Report) -> str:
  """Returns the report for a terminal."""
  lines = [headline(report), '']
  lines += _align_columns(list(summary_rows(report)))
  lines += ['', 'memory per device']
  lines += _align_columns(memory_rows(report))
  for name, memory in report.memory_besides_update.items():
    lines += ['', f'memory per device, {name}']
    lines += _align_columns(step_memory_rows(memory))
  if report.collectives:
    lines += ['', 'bytes sent per device and step']
    lines += _align_columns([COLLECTIVES_HEADER, *collective_rows(report)])
  lines += ['', f'train state: the largest of {len(report.arrays)} arrays']
  lines += _align_columns(
    [ARRAYS_HEADER, *array_rows(report)[:_NUM_SHOWN_ARRAYS]]
  )
  if report.buffers:
    lines += ['', 'largest buffers at the peak']
    lines += _align_columns(buffer_rows(report)[:_NUM_SHOWN_BUFFERS])
  if report.remat_policies:
    lines += ['', 'remat policies, by their estimates']
    lines += _align_columns([REMAT_HEADER, *remat_rows(report)])
    lines.append(f'  {remat_recommendation(report.remat_policies)}')
  for title, messages in (
    ('warnings', report.warnings),
    ('to save memory', report.advice),
  ):
    if messages:
      lines += ['', title, *(f'  {message}' for message in messages)]
  if report.not_compiled:
    lines += ['', f'not compiled: {report.not_compiled}']
  return '\n'.join(lines)


def headline(report: Report) -> str:
  """Returns experiment, machine and whether the step fits, in one line."""
  if report.fits is not None:
    verdict = 'fits' if report.fits else 'DOES NOT FIT'
  elif report.memory.capacity and not report.compile_s:
    verdict = 'fits by the estimate, not compiled'
  else:
    verdict = 'memory capacity unknown'
  return f'{report.experiment} on {report.topology}: {verdict}'


def summary_rows(report: Report) -> Iterator[tuple[str, str]]:
  """Yields (label, value) of each single figure."""
  mesh = ' x '.join(f'{axis} {size}' for axis, size in report.mesh.items())
  slices = [f'{a} {n}' for a, n in report.dcn_mesh.items() if n > 1]
  dcn_mesh = f', between slices: {", ".join(slices)}' if slices else ''
  yield 'devices', f'{report.num_devices} x {report.device_kind}'
  yield 'mesh', f'{mesh}{dcn_mesh}'
  yield 'parameters', f'{report.num_params:,}'
  yield 'global batch', ' x '.join(map(str, report.batch))
  if flops := report.flops:
    yield 'model FLOPs', f'{flops.model:.4g} per step'
    yield (
      'computed FLOPs',
      f'{flops.matmuls:.4g} in matmuls, {flops.total:.4g} in all',
    )
  if roofline := report.roofline:
    yield (
      'roofline step time',
      f'{format_seconds(roofline.step_s)}, bound by {roofline.bound}',
    )
    yield '  by resource', ', '.join(_resource_times(roofline))
    yield 'roofline MFU', f'{100 * roofline.mfu:.1f} %'
    if roofline.compiler_s and roofline.compiler_mfu is not None:
      yield (
        'estimated step time (XLA cycles)',
        f'{format_seconds(roofline.compiler_s)},'
        f' MFU {100 * roofline.compiler_mfu:.1f} %',
      )
    if roofline.mosaic_s:
      yield (
        '  of it Mosaic kernels (half of the peak)',
        format_seconds(roofline.mosaic_s),
      )
  yield 'analysis time', ', '.join(_analysis_times(report))


def memory_rows(report: Report) -> list[tuple[str, str]]:
  """Returns (category, bytes) of a device, with totals and the estimate."""
  memory = report.memory
  rows = step_memory_rows(memory)
  if report.predicted is None:
    return rows
  if report.predicted == memory:
    return [*rows, ('', 'activations and temporaries are estimates')]
  error = 100 * (report.predicted.total / memory.total - 1)
  estimate = f'{format_bytes(report.predicted.total)} ({error:+.0f} %)'
  return [*rows, ('estimated from the jaxpr', estimate)]


def step_memory_rows(memory: Memory) -> list[tuple[str, str]]:
  """Returns (category, bytes) of a device, with totals."""
  rows = [
    (category, format_bytes(value))
    for category, value in memory.by_category().items()
    if value is not None
  ]
  total = format_bytes(memory.total)
  if memory.capacity:
    share = 100 * memory.total / memory.capacity
    total += f' of {format_bytes(memory.capacity)} ({share:.0f} %)'
  rows.append(('total', total))
  if memory.fragmentation:
    rows.append(
      ('with fragmentation', format_bytes(memory.total + memory.fragmentation))
    )
  return rows


def collective_rows(report: Report) -> list[tuple[str, ...]]:
  """Returns a row for each kind and axes, as COLLECTIVES_HEADER."""
  return [
    (
      total.kind,
      '+'.join(total.axes),
      str(total.count),
      format_bytes(total.ici_bytes),
      format_bytes(total.dcn_bytes) if total.dcn_bytes else '-',
    )
    for total in report.collectives or ()
  ]


def array_rows(report: Report) -> list[tuple[str, ...]]:
  """Returns a row for each array of the state, as ARRAYS_HEADER."""
  return [
    (
      array.path,
      'x'.join(map(str, array.shape)) or 'scalar',
      array.dtype,
      array.sharding,
      str(array.num_shards),
      format_bytes(array.num_bytes),
    )
    for array in report.arrays
  ]


def remat_rows(report: Report) -> list[tuple[str, ...]]:
  """Returns name, memory, FLOPs over the fewest, and whether each fits."""
  policies = report.remat_policies or []
  fewest = min((policy.flops for policy in policies), default=1.0)
  return [
    (
      policy.name,
      format_bytes(policy.num_bytes),
      f'{policy.flops / fewest:.2f}',
      {True: 'yes', False: 'no', None: 'unknown'}[policy.fits],
    )
    for policy in policies
  ]


def remat_recommendation(policies: Sequence[RematPolicy]) -> str:
  """Returns the policy with the fewest FLOPs that fits, as an option."""
  if len({(policy.num_bytes, policy.flops) for policy in policies}) == 1:
    return (
      'none changes the step: they apply to layers in a scan, as with --set'
      ' USE_REPEATED_LAYER=True'
    )
  fitting = [policy for policy in policies if policy.fits]
  if not fitting:
    return 'none is known to fit'
  setting = f'CHECKPOINT_POLICY=AutodiffCheckpointType.{fitting[0].name}'
  return f'recommended: --set {setting}'


def buffer_rows(report: Report) -> list[tuple[str, ...]]:
  """Returns a row for each of the largest buffers."""
  return [
    (
      format_bytes(buffer.num_bytes),
      buffer.shape,
      buffer.allocation_type,
      buffer.op_name,
    )
    for buffer in report.buffers
  ]


def format_bytes(num_bytes: float) -> str:
  """Formats bytes, as 5.98 GiB."""
  for unit_bytes, unit in _UNITS:
    if abs(num_bytes) >= unit_bytes:
      return f'{num_bytes / unit_bytes:.2f} {unit}'
  return f'{num_bytes:.0f} B'


def format_seconds(seconds: float) -> str:
  """Formats a time, as 12.3 ms."""
  return f'{seconds:.3g} s' if seconds >= 1 else f'{1e3 * seconds:.3g} ms'


def _resource_times(roofline: Roofline) -> Iterator[str]:
  for resource, seconds in (
    ('matmuls', roofline.compute_s),
    ('HBM', roofline.memory_s),
    ('links within a slice', roofline.ici_s),
    ('links between slices', roofline.dcn_s),
    ('exposed communication', roofline.waiting_s),
  ):
    if seconds:
      yield f'{resource} {format_seconds(seconds)}'


def _analysis_times(report: Report) -> Iterator[str]:
  yield f'setup {report.setup_s:.1f} s'
  if report.trace_s is not None:
    yield f'tracing {report.trace_s:.1f} s'
  if report.compile_s is not None:
    effort = 'full' if report.full_effort else 'least'
    yield f'compilation {report.compile_s:.1f} s with {effort} effort'


def _align_columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return [
    '  '
    + '  '.join(
      f'{cell:<{width}}' for cell, width in zip(row, widths, strict=True)
    ).rstrip()
    for row in rows
  ]
