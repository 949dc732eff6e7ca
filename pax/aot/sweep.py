# SPDX-License-Identifier: Apache-2.0
"""`--mode=aot --all`: every experiment on its default machine, and a table.

Each experiment runs in a process: JAX sets the number of simulated devices once
per process, and a compiler's memory is freed.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any

from pax import exit_codes, experiment_registry
from pax.aot import analysis, topology
from pax.aot.report import table
from pax.files import side_files
from pax.runner import command_line, parent_death
from pax.runner.options import RunOptions, UsageError

EXIT_FITS = exit_codes.DONE
EXIT_DOES_NOT_FIT = exit_codes.DOES_NOT_FIT
# In the job directory.
FOLDER = 'aot'
TABLE = 'table.md'

# Prefix of a process's last line on stderr when it fails.
_ERROR_PREFIX = 'pax: error: '


def run(options: RunOptions, names: Sequence[str] | None = None) -> int:
  """Analyzes experiments and writes the table.

  Reports of an earlier run in the same directory are reused. The table is
  rewritten after each experiment, so an interrupted run has one too.

  Args:
    options: of the command line.
    names: the experiments; None: all registered ones.

  Returns:
    The exit code. 0: all fit; 1: an experiment failed; 2: one does not fit.

  Raises:
    UsageError: an option does not apply to --all.
  """
  _check_options(options)
  if names is None:
    experiment_registry.import_all_experiments()
    names = sorted(experiment_registry.get_all())
  folder = report_folder(options)
  folder.mkdir(parents=True, exist_ok=True)
  table_file = pathlib.Path(options.aot_table or folder / TABLE)
  outcomes: dict[str, table.Outcome] = {}
  for outcome in _outcomes(folder, names, options):
    print(table.format_line(outcome), flush=True)
    outcomes[outcome.name] = outcome
    sorted_outcomes = [outcomes[name] for name in names if name in outcomes]
    table_file.write_text(table.render_page(sorted_outcomes), encoding='utf-8')
  print(f'table: {table_file}')
  if any(outcome.error for outcome in outcomes.values()):
    return exit_codes.ERROR
  reports = [o.report for o in outcomes.values() if o.report]
  if any(report['fits'] is False for report in reports):
    return EXIT_DOES_NOT_FIT
  return EXIT_FITS


def report_folder(options: RunOptions) -> pathlib.Path:
  """Returns the directory of the reports.

  Raises:
    UsageError: the options have no job directory.
  """
  if not options.job_log_dir:
    raise UsageError('--all needs --job_log_dir for its reports')
  return pathlib.Path(options.job_log_dir) / FOLDER


def _outcomes(
  folder: pathlib.Path, names: Sequence[str], options: RunOptions
) -> Iterator[table.Outcome]:
  """Yields outcomes as they complete; `--aot_jobs` run at a time."""

  def outcome(name: str) -> table.Outcome:
    return _load_report(folder, name, options) or _run(
      folder, name, options, parent_pipe
    )

  # Never closed: the analyses end when this process does.
  parent_pipe = parent_death.ParentPipe()
  pool = futures.ThreadPoolExecutor(options.aot_jobs)
  try:
    pending = [pool.submit(outcome, name) for name in names]
    for future in futures.as_completed(pending):
      yield future.result()
  finally:
    pool.shutdown(cancel_futures=True)


def _load_report(
  folder: pathlib.Path, name: str, options: RunOptions
) -> table.Outcome | None:
  """Returns a stored report of what is requested, or of more."""
  for file in folder.glob(f'{name.rpartition(".")[2]}-*.json'):
    report = side_files.read_json(file, _parse_report)
    if report is None:
      continue
    # --exp may have been a suffix of the name.
    is_same = f'.{name}'.endswith(f'.{report["experiment"]}')
    if is_same and _is_complete(report, options):
      return table.Outcome(name=name, report=report)
  return None


def _parse_report(value: Any) -> dict[str, Any]:
  """Returns a stored report; raises one of `side_files.INVALID` if damaged."""
  side_files.check_fields(value, {'experiment': str, 'level': int})
  table.format_line(table.Outcome(name='', report=value))
  topology.parse_topology(value['topology'])
  return value


def _is_complete(report: dict[str, Any], options: RunOptions) -> bool:
  """Whether another analysis with these options would add nothing."""
  is_of_options = (
    not report.get('asked_topology')
    and report.get('settings', []) == list(options.set)
    and (not options.aot_remat or report.get('remat_policies'))
  )
  if not is_of_options or report['level'] < options.check_level:
    return False
  if options.aot_full_effort and report.get('compile_s'):
    return bool(report['full_effort'])
  if options.check_level < analysis.COMPILED or not report['not_compiled']:
    return True
  machine = topology.parse_topology(report['topology'])
  return machine.missing_compiler() is not None


def _run(
  folder: pathlib.Path,
  name: str,
  options: RunOptions,
  parent_pipe: parent_death.ParentPipe,
) -> table.Outcome:
  """Analyzes an experiment in a process.

  Args:
    folder: of the reports.
    name: of the experiment.
    options: those of the sweep.
    parent_pipe: ends the process with this one.
  """
  arguments = command_line.words_of(
    dataclasses.replace(
      options, all=False, exp=name, aot_jobs=1, aot_table=None
    )
  )
  path = {'PYTHONPATH': os.pathsep.join(sys.path)}
  process = subprocess.run(
    [sys.executable, '-m', 'pax.main', *arguments],
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    env={**os.environ, **path, **parent_pipe.environment},
    pass_fds=parent_pipe.pass_fds,
    check=False,
  )
  outcome = _load_report(folder, name, options)
  if process.returncode in (EXIT_FITS, EXIT_DOES_NOT_FIT) and outcome:
    return outcome
  errors = [
    line.removeprefix(_ERROR_PREFIX)
    for line in process.stderr.splitlines()
    if line.startswith(_ERROR_PREFIX)
  ]
  error = errors[-1] if errors else process.stderr[-500:]
  return table.Outcome(
    name=name, error=error or f'exit code {process.returncode}'
  )


def _check_options(options: RunOptions) -> None:
  for is_invalid, message in (
    (bool(options.exp), '--all and --exp exclude each other'),
    (
      bool(options.topology),
      '--all uses the default machine of each experiment, not --topology',
    ),
    (bool(options.aot_save), '--aot_save needs --exp, not --all'),
  ):
    if is_invalid:
      raise UsageError(message)
