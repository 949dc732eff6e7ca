# SPDX-License-Identifier: Apache-2.0
"""`--mode=aot --all`: every experiment on its own machine, and the table of it.

Each is a process: JAX simulates as many devices as a machine has, once, and a
compiler's memory is free again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from pax import compat, experiment_registry
from pax.aot import text
from pax.runner import command_line
from pax.runner.options import RunOptions, UsageError

EXIT_FITS = 0
EXIT_DOES_NOT_FIT = 2
# In the job directory.
FOLDER = 'aot'
TABLE = 'table.md'

_EXIT_ERROR = 1
# Which line of what a process says tells what went wrong.
_ERROR = 'pax: error: '
_HEAD = (
  'experiment', 'machine', 'parameters', 'state', 'activations', 'temporaries',
  'of memory', 'step at best', 'MFU at best', 'bound by', 'sent within',
  'sent between', 'compiled in',
)  # fmt: skip
# Columns of figures, which stand to the right.
_FIGURES = slice(2, 9)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """One experiment."""

  name: str
  # The report as JSON has it, or what went wrong.
  report: dict[str, Any] | None = None
  error: str = ''


def run(options: RunOptions, names: Sequence[str] | None = None) -> int:
  """Checks the experiments and writes `aot/table.md`; returns the exit code.

  What was told before in the same directory is not computed again.

  Args:
    options: of the command line.
    names: which experiments; None: all that are registered.

  Raises:
    UsageError: the options are not for this.
  """
  _check(options)
  if names is None:
    compat.install()
    experiment_registry.import_all_experiments()
    names = sorted(experiment_registry.get_all())
  folder = folder_of(options)
  folder.mkdir(parents=True, exist_ok=True)
  found = []
  for name in names:
    outcome = _known(folder, name, options) or _run(folder, name, options)
    print(line(outcome), flush=True)
    found.append(outcome)
    table = '\n'.join([*rows(found), ''])
    (folder / TABLE).write_text(table, encoding='utf-8')
  print(f'table: {folder / TABLE}')
  if any(one.error for one in found):
    return _EXIT_ERROR
  fits = (one.report['fits'] is not False for one in found)
  return EXIT_FITS if all(fits) else EXIT_DOES_NOT_FIT


def folder_of(options: RunOptions) -> pathlib.Path:
  """Where reports and table are."""
  return pathlib.Path(options.job_log_dir) / FOLDER


def line(one: Outcome) -> str:
  """An outcome in one line."""
  if one.report is None:
    return f'{one.name}: {one.error}'
  cells = _cells(one.report)
  return ', '.join(f'{h} {c}' for h, c in zip(_HEAD, cells, strict=True))


def rows(found: Sequence[Outcome]) -> Iterator[str]:
  """The lines of the table, as Markdown."""
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
  share = held['capacity'] and f'{100 * held["total"] / held["capacity"]:.0f} %'
  compiled = report['compile_s']
  return [
    report['experiment'].rpartition('.')[2],
    report['topology'],
    f'{report["num_params"] / 1e9:.3g}B',
    text.size(state),
    text.size(held['activations'] or 0.0),
    text.size(held['temporaries'] or 0.0),
    ('does not fit: ' if report['fits'] is False else '') + (share or '-'),
    text.seconds(roof['step_s']) if roof else '-',
    f'{100 * roof["mfu"]:.1f} %' if roof else '-',
    roof.get('bound') or '-',
    text.size(ici) if report['collectives'] is not None else '-',
    text.size(dcn) if dcn else '-',
    f'{compiled:.0f} s' if compiled else '-',
  ]


def _known(
  folder: pathlib.Path, name: str, options: RunOptions
) -> Outcome | None:
  """What an earlier run told, at least as much as is asked now."""
  for file in folder.glob(f'{name.rpartition(".")[2]}-*.json'):
    report = json.loads(file.read_text(encoding='utf-8'))
    if report['experiment'] == name and report['level'] >= options.check_level:
      return Outcome(name=name, report=report)
  return None


def _run(folder: pathlib.Path, name: str, options: RunOptions) -> Outcome:
  words = command_line.words_of(
    dataclasses.replace(options, all=False, exp=name)
  )
  done = subprocess.run(
    [sys.executable, '-m', 'pax.main', *words],
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
    check=False,
  )
  known = _known(folder, name, options)
  if done.returncode in (EXIT_FITS, EXIT_DOES_NOT_FIT) and known:
    return known
  said = [s for s in done.stderr.splitlines() if s.startswith(_ERROR)]
  reason = said[-1].removeprefix(_ERROR) if said else done.stderr[-500:]
  return Outcome(name=name, error=reason or f'exit code {done.returncode}')


def _check(options: RunOptions) -> None:
  wrong = (
    (bool(options.exp), '--all is instead of --exp'),
    (bool(options.topology), '--all takes the machine of each experiment'),
    (bool(options.aot_save), '--aot_save is for one --exp'),
    (not options.job_log_dir, '--all wants a --job_log_dir for its reports'),
  )
  for is_wrong, message in wrong:
    if is_wrong:
      raise UsageError(message)
