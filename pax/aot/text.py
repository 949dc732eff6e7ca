# SPDX-License-Identifier: Apache-2.0
"""The report as text, and the words that the page shares with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pax.aot import report

_SHOWN_ARRAYS = 12
_SHOWN_BUFFERS = 8
_UNITS = ((2**40, 'TiB'), (2**30, 'GiB'), (2**20, 'MiB'), (2**10, 'KiB'))


def render(found: report.Report) -> str:
  """Returns the report for a terminal."""
  lines = [headline(found), '']
  lines += _columns([(k, v) for k, v in facts(found)])
  lines += ['', 'bytes on each device']
  lines += _columns(memory_rows(found))
  if found.collectives:
    lines += ['', 'sent by each device in a step']
    lines += _columns([COLLECTIVES_HEAD, *collective_rows(found)])
  lines += ['', f'state, the largest of {len(found.arrays)} arrays']
  lines += _columns([ARRAYS_HEAD, *array_rows(found)[:_SHOWN_ARRAYS]])
  if found.buffers:
    lines += ['', 'largest of the step']
    lines += _columns(buffer_rows(found)[:_SHOWN_BUFFERS])
  for title, sentences in (
    ('what is odd', found.warnings),
    ('what would help', found.advice),
  ):
    if sentences:
      lines += ['', title, *(f'  {sentence}' for sentence in sentences)]
  if found.not_compiled:
    lines += ['', f'not compiled: {found.not_compiled}']
  return '\n'.join(lines)


COLLECTIVES_HEAD = ('kind', 'axes', 'times', 'within a slice', 'between slices')
ARRAYS_HEAD = ('array', 'shape', 'dtype', 'sharding', 'parts', 'on a device')


def headline(found: report.Report) -> str:
  """One line: what, where, and whether it fits."""
  verdict = {
    True: 'fits',
    False: 'DOES NOT FIT',
    None: 'fits as far as is known without compiling'
    if found.memory.capacity and not found.compile_s
    else 'no limit of memory is known',
  }[found.fits]
  return f'{found.experiment} on {found.topology}: {verdict}'


def facts(found: report.Report) -> Iterator[tuple[str, str]]:
  """(name, value) of what is one figure."""
  mesh = ' x '.join(f'{axis} {size}' for axis, size in found.mesh.items())
  slices = [f'{a} {n}' for a, n in found.slices.items() if n > 1]
  between = f', between slices: {", ".join(slices)}' if slices else ''
  yield 'devices', f'{found.num_devices} x {found.device_kind}'
  yield 'mesh', f'{mesh}{between}'
  yield 'parameters', f'{found.num_params:,}'
  yield 'global batch', ' x '.join(map(str, found.batch))
  if flops := found.flops:
    yield 'FLOPs of the model', f'{flops.model:.4g} a step'
    yield (
      'FLOPs computed',
      f'{flops.products:.4g} in products, {flops.total:.4g} in all',
    )
  if roof := found.roofline:
    yield 'step at best', f'{seconds(roof.step_s)}, bound by {roof.bound}'
    yield 'of that', ', '.join(_times(found))
    yield 'MFU at best', f'{100 * roof.mfu:.1f} %'
    if roof.compiler_s:
      mfu = f'MFU {100 * roof.compiler_mfu:.1f} %'
      yield 'as the compiler reckons', f'{seconds(roof.compiler_s)}, {mfu}'
  spent = [f'declaring {found.declare_s:.1f} s']
  if found.trace_s is not None:
    spent.append(f'tracing {found.trace_s:.1f} s')
  if found.compile_s is not None:
    how = ', as for a run' if found.full_effort else ', with least effort'
    spent.append(f'compiling {found.compile_s:.1f} s{how}')
  yield 'this took', ', '.join(spent)


def memory_rows(found: report.Report) -> list[tuple[str, str]]:
  """(name, bytes) of what a device holds."""
  held = found.memory
  shown = [
    (name, size(value))
    for name, value in held.parts().items()
    if value is not None
  ]
  whole = size(held.total)
  if held.capacity:
    share = 100 * held.total / held.capacity
    whole += f' of {size(held.capacity)} ({share:.0f} %)'
  shown.append(('in all', whole))
  if held.gaps:
    shown.append(('with all gaps', size(held.total + held.gaps)))
  if found.predicted is None:
    return shown
  if found.predicted == held:
    return [*shown, ('', 'of these activations and temporaries are predicted')]
  off = 100 * (found.predicted.total / held.total - 1)
  guess = f'{size(found.predicted.total)} ({off:+.0f} %)'
  return [*shown, ('as predicted', guess)]


def collective_rows(found: report.Report) -> list[tuple[str, ...]]:
  """A row for each kind and axes."""
  return [
    (
      sent.kind,
      '+'.join(sent.axes),
      str(sent.times),
      size(sent.ici_bytes),
      size(sent.dcn_bytes) if sent.dcn_bytes else '-',
    )
    for sent in found.collectives or ()
  ]


def array_rows(found: report.Report) -> list[tuple[str, ...]]:
  """A row for each array of the state."""
  return [
    (
      one.path,
      'x'.join(map(str, one.shape)) or 'scalar',
      one.dtype,
      one.sharding,
      str(one.parts),
      size(one.num_bytes),
    )
    for one in found.arrays
  ]


def buffer_rows(found: report.Report) -> list[tuple[str, ...]]:
  """A row for each of the largest arrays of a step that does not fit."""
  return [
    (size(one.num_bytes), one.shape, one.what, one.op_name)
    for one in found.buffers
  ]


def size(num_bytes: float) -> str:
  """As 5.98 GiB."""
  for limit, unit in _UNITS:
    if abs(num_bytes) >= limit:
      return f'{num_bytes / limit:.2f} {unit}'
  return f'{num_bytes:.0f} B'


def seconds(value: float) -> str:
  """As 12.3 ms."""
  return f'{value:.3g} s' if value >= 1 else f'{1e3 * value:.3g} ms'


def _times(found: report.Report) -> Iterator[str]:
  roof = found.roofline
  for name, value in (
    ('products', roof.compute_s),
    ('memory', roof.memory_s),
    ('links', roof.ici_s),
    ('DCN', roof.dcn_s),
    ('waiting for links', roof.waiting_s),
  ):
    if value:
      yield f'{name} {seconds(value)}'


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return [
    '  '
    + '  '.join(
      f'{cell:<{width}}' for cell, width in zip(row, widths, strict=True)
    ).rstrip()
    for row in rows
  ]
