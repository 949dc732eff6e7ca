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
from concurrent import futures
from typing import Any

from pax import experiment_registry
from pax.aot import check, table, topology
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


def run(options: RunOptions, names: Sequence[str] | None = None) -> int:
  """Checks the experiments and writes the table; returns the exit code.

  What was told before in the same directory is not computed again. The table is
  written again after each, so that a run that is stopped leaves one too.

  Args:
    options: of the command line.
    names: which experiments; None: all that are registered.

  Raises:
    UsageError: the options are not for this.
  """
  _check(options)
  if names is None:
    experiment_registry.import_all_experiments()
    names = sorted(experiment_registry.get_all())
  folder = folder_of(options)
  folder.mkdir(parents=True, exist_ok=True)
  written = pathlib.Path(options.aot_table or folder / TABLE)
  found: dict[str, table.Outcome] = {}
  for outcome in _outcomes(folder, names, options):
    print(table.line(outcome), flush=True)
    found[outcome.name] = outcome
    in_order = [found[name] for name in names if name in found]
    written.write_text(table.page(in_order), encoding='utf-8')
  print(f'table: {written}')
  if any(one.error for one in found.values()):
    return _EXIT_ERROR
  fits = (one.report['fits'] is not False for one in found.values())
  return EXIT_FITS if all(fits) else EXIT_DOES_NOT_FIT


def folder_of(options: RunOptions) -> pathlib.Path:
  """Where reports are, and the table if it is not wanted elsewhere."""
  return pathlib.Path(options.job_log_dir) / FOLDER


def _outcomes(
  folder: pathlib.Path, names: Sequence[str], options: RunOptions
) -> Iterator[table.Outcome]:
  """Each experiment as soon as it is done, `--aot_jobs` of them at a time."""
  pool = futures.ThreadPoolExecutor(options.aot_jobs)
  try:
    waiting = [
      pool.submit(
        lambda n: _known(folder, n, options) or _run(folder, n, options), name
      )
      for name in names
    ]
    for done in futures.as_completed(waiting):
      yield done.result()
  finally:
    pool.shutdown(cancel_futures=True)


def _known(
  folder: pathlib.Path, name: str, options: RunOptions
) -> table.Outcome | None:
  """What an earlier run told, at least as much as is asked now."""
  for file in folder.glob(f'{name.rpartition(".")[2]}-*.json'):
    report = json.loads(file.read_text(encoding='utf-8'))
    # It may have been asked for by the end of its name.
    is_it = f'.{name}'.endswith(f'.{report["experiment"]}')
    if is_it and _is_enough(report, options):
      return table.Outcome(name=name, report=report)
  return None


def _is_enough(report: dict[str, Any], options: RunOptions) -> bool:
  """Whether a report tells all that can be told now."""
  if report['level'] < options.check_level:
    return False
  if options.check_level < check.COMPILED or not report['not_compiled']:
    return True
  return bool(topology.parse(report['topology']).missing_compiler())


def _run(folder: pathlib.Path, name: str, options: RunOptions) -> table.Outcome:
  words = command_line.words_of(
    dataclasses.replace(
      options, all=False, exp=name, aot_jobs=1, aot_table=None
    )
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
  return table.Outcome(
    name=name, error=reason or f'exit code {done.returncode}'
  )


def _check(options: RunOptions) -> None:
  wrong = (
    (bool(options.exp), '--all is instead of --exp'),
    (bool(options.topology), '--all takes the machine of each experiment'),
    (options.aot_jobs < 1, '--aot_jobs is 1 at least'),
    (bool(options.aot_save), '--aot_save is for one --exp'),
    (not options.job_log_dir, '--all wants a --job_log_dir for its reports'),
  )
  for is_wrong, message in wrong:
    if is_wrong:
      raise UsageError(message)
