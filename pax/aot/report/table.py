# SPDX-License-Identifier: Apache-2.0
"""The Markdown table of many experiments that `--mode=aot --all` writes."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
from collections.abc import Iterator, Sequence
from typing import Any

from pax.aot.report import text

_HEADER = (
  'experiment', 'machine', 'parameters', 'state', 'activations', 'temporaries',
  'share of memory', 'roofline step time', 'roofline MFU', 'bound by',
  'sent within slices', 'sent between slices', 'source of memory',
)  # fmt: skip
# Right-aligned columns.
_NUMERIC_COLUMNS = slice(2, 9)
# Packages whose versions the figures depend on; the CUDA compiler has JAX's.
_COMPILERS = ('jax', 'libtpu')
_INTRODUCTION = """\
Every experiment on its default machine. Figures are of one device and one step;
[ahead-of-time analysis](aot.md) explains them. The last column is the source of
the memory: the compiler, an estimate from the jaxpr, which can be far off, or
the shapes of the state only.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """The report of an experiment, or its error."""

  name: str
  # `Report.to_json`, parsed; None: failed.
  report: dict[str, Any] | None = None
  error: str = ''


def format_line(outcome: Outcome) -> str:
  """Returns an outcome in one line, with the table's column names."""
  if outcome.report is None:
    return f'{outcome.name}: {outcome.error}'
  cells = _cells(outcome.report)
  return ', '.join(f'{h} {c}' for h, c in zip(_HEADER, cells, strict=True))


def render_page(outcomes: Sequence[Outcome]) -> str:
  """Returns the table as a Markdown page, with date and compiler versions."""
  num_compiled = sum(
    bool(outcome.report['compile_s']) for outcome in outcomes if outcome.report
  )
  versions = ', '.join(_versions())
  lines = [
    '# Every experiment, ahead of time',
    '',
    f'Written by `--mode=aot --all`, {datetime.date.today()}, {versions}:'
    f' {len(outcomes)} experiments, {num_compiled} of them compiled.',
    '',
    _INTRODUCTION,
    *render_rows(outcomes),
    '',
  ]
  return '\n'.join(lines)


def render_rows(outcomes: Sequence[Outcome]) -> Iterator[str]:
  """Yields the lines of the table, then those of the errors."""
  alignment = ['---'] * len(_HEADER)
  alignment[_NUMERIC_COLUMNS] = ['--:'] * len(alignment[_NUMERIC_COLUMNS])
  yield f'| {" | ".join(_HEADER)} |'
  yield f'|{"|".join(alignment)}|'
  for outcome in outcomes:
    if outcome.report is not None:
      yield f'| {" | ".join(_cells(outcome.report))} |'
  for outcome in outcomes:
    if outcome.error:
      yield f'\n{outcome.name}: {outcome.error}'


def _cells(report: dict[str, Any]) -> list[str]:
  memory, roofline = report['memory'], report['roofline'] or {}
  state = memory['parameters'] + memory['other_variables'] + memory['optimizer']
  collectives = report['collectives'] or []
  ici = sum(total['ici_bytes'] for total in collectives)
  dcn = sum(total['dcn_bytes'] for total in collectives)
  is_compiled = report['collectives'] is not None
  return [
    report['experiment'].rpartition('.')[2],
    report['topology'],
    f'{report["num_params"] / 1e9:.3g}B',
    text.format_bytes(state),
    _bytes_cell(memory['activations']),
    _bytes_cell(memory['temporaries']),
    _capacity_cell(report),
    text.format_seconds(roofline['step_s']) if roofline else '-',
    f'{100 * roofline["mfu"]:.1f} %' if roofline else '-',
    roofline.get('bound') or '-',
    text.format_bytes(ici) if is_compiled else '-',
    text.format_bytes(dcn) if dcn else '-',
    _memory_source(report),
  ]


def _capacity_cell(report: dict[str, Any]) -> str:
  """The share of the memory, and whether the step does not fit.

  An estimate from the jaxpr is no verdict; the compiler and the exact bytes of
  the state are.
  """
  memory = report['memory']
  if not memory['capacity']:
    return '-'
  share = f'{100 * memory["total"] / memory["capacity"]:.0f} %'
  if report['fits'] is not False:
    return share
  is_estimate = report['flops'] and not report['compile_s']
  return f'{share}, estimated' if is_estimate else f'does not fit: {share}'


def _bytes_cell(num_bytes: float | None) -> str:
  return '-' if num_bytes is None else text.format_bytes(num_bytes)


def _memory_source(report: dict[str, Any]) -> str:
  if seconds := report['compile_s']:
    return f'compiler, in {seconds:.0f} s'
  return 'estimate' if report['flops'] else 'state shapes'


def _versions() -> Iterator[str]:
  for name in _COMPILERS:
    try:
      yield f'{name} {importlib.metadata.version(name)}'
    except importlib.metadata.PackageNotFoundError:
      continue
