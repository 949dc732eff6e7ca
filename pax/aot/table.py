# SPDX-License-Identifier: Apache-2.0
"""Many experiments as a page of Markdown: what `--mode=aot --all` writes."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
from collections.abc import Iterator, Sequence
from typing import Any

from pax.aot import text

_HEAD = (
  'experiment', 'machine', 'parameters', 'state', 'activations', 'temporaries',
  'of memory', 'step at best', 'MFU at best', 'bound by', 'sent within',
  'sent between', 'memory told by',
)  # fmt: skip
# Columns of figures, which stand to the right.
_FIGURES = slice(2, 9)
# Whose versions the figures are of; the CUDA compiler is of JAX's version.
_COMPILERS = ('jax', 'libtpu')
_INTRODUCTION = """\
Each on the machine that it is made for; figures are of one device, in one step
([ahead of time](aot.md) says what they are and how they are known). Where the
compiler told them that is said; the rest is predicted, and may be far off.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """One experiment."""

  name: str
  # The report as JSON has it, or what went wrong.
  report: dict[str, Any] | None = None
  error: str = ''


def line(one: Outcome) -> str:
  """An outcome in one line."""
  if one.report is None:
    return f'{one.name}: {one.error}'
  cells = _cells(one.report)
  return ', '.join(f'{h} {c}' for h, c in zip(_HEAD, cells, strict=True))


def page(found: Sequence[Outcome]) -> str:
  """Returns all outcomes as Markdown, with what they are of."""
  told = [one.report for one in found if one.report]
  compiled = sum(bool(one['compile_s']) for one in told)
  versions = ', '.join(_versions())
  lines = [
    '# Every experiment, ahead of time',
    '',
    f'Written by `--mode=aot --all`, {datetime.date.today()}, {versions}:'
    f' {len(found)} experiments, {compiled} of them compiled.',
    '',
    _INTRODUCTION,
    *rows(found),
    '',
  ]
  return '\n'.join(lines)


def rows(found: Sequence[Outcome]) -> Iterator[str]:
  """The lines of the table, and those of what went wrong."""
  marks = ['---'] * len(_HEAD)
  marks[_FIGURES] = ['--:'] * len(marks[_FIGURES])
  yield f'| {" | ".join(_HEAD)} |'
  yield f'|{"|".join(marks)}|'
  for one in found:
    if one.report is not None:
      yield f'| {" | ".join(_cells(one.report))} |'
  for one in found:
    if one.error:
      yield f'\n{one.name}: {one.error}'


def _cells(report: dict[str, Any]) -> list[str]:
  held, roof = report['memory'], report['roofline'] or {}
  state = held['parameters'] + held['other_variables'] + held['optimizer']
  sent = report['collectives'] or []
  ici = sum(one['ici_bytes'] for one in sent)
  dcn = sum(one['dcn_bytes'] for one in sent)
  return [
    report['experiment'].rpartition('.')[2],
    report['topology'],
    f'{report["num_params"] / 1e9:.3g}B',
    text.size(state),
    _size(held['activations']),
    _size(held['temporaries']),
    _share(report),
    text.seconds(roof['step_s']) if roof else '-',
    f'{100 * roof["mfu"]:.1f} %' if roof else '-',
    roof.get('bound') or '-',
    text.size(ici) if report['collectives'] is not None else '-',
    text.size(dcn) if dcn else '-',
    _told_by(report),
  ]


def _share(report: dict[str, Any]) -> str:
  """Of the memory; whether it fits only the compiler or the state can say."""
  held = report['memory']
  if not held['capacity']:
    return '-'
  share = f'{100 * held["total"] / held["capacity"]:.0f} %'
  if report['fits'] is not False:
    return share
  if report['flops'] and not report['compile_s']:
    return f'{share}, predicted'
  return f'does not fit: {share}'


def _size(num_bytes: float | None) -> str:
  return '-' if num_bytes is None else text.size(num_bytes)


def _told_by(report: dict[str, Any]) -> str:
  if seconds := report['compile_s']:
    return f'the compiler, in {seconds:.0f} s'
  return 'prediction' if report['flops'] else 'shapes alone'


def _versions() -> Iterator[str]:
  for name in _COMPILERS:
    try:
      yield f'{name} {importlib.metadata.version(name)}'
    except importlib.metadata.PackageNotFoundError:
      continue
