# SPDX-License-Identifier: Apache-2.0
"""`--mode=aot`: from the options to the files of a report and the exit code."""

from __future__ import annotations

import pathlib

from pax import atomic_file
from pax.aot import check, every, page, report, text
from pax.partitioning import saved_step
from pax.runner import distributed, job_dir
from pax.runner.options import RunOptions, UsageError
from pax.tools import abstract_experiment

EXIT_FITS = every.EXIT_FITS
EXIT_DOES_NOT_FIT = every.EXIT_DOES_NOT_FIT


def run(options: RunOptions) -> int:
  """Tells what an experiment does on a machine; returns the exit code.

  0: it fits, or nobody can say; 2: it does not. What is told is written to
  `aot/` in the job directory too, if one is given.

  Raises:
    ValueError: the options, the experiment or the machine are wrong.
  """
  _check(options)
  if options.all:
    return every.run(options)
  job_dir.log_to_console()
  distributed.configure(options)
  experiment = abstract_experiment.ExperimentOptions(
    exp=options.exp, fdl=options.fdl, set=options.set
  )
  made = check.Check(experiment, options.topology)
  quickly = not (options.aot_save or options.aot_full_effort)
  checked = made.run(options.check_level, quickly=quickly)
  print(text.render(checked.report), flush=True)
  if options.aot_save:
    _save(made, checked, options.aot_save)
  if options.job_log_dir:
    write(checked.report, options.job_log_dir)
  return EXIT_DOES_NOT_FIT if checked.report.fits is False else EXIT_FITS


def write(found: report.Report, job_log_dir: str) -> pathlib.Path:
  """Writes the report as text, JSON and a page; returns where, without ending.

  Raises:
    ValueError: nothing can be written there.
  """
  name = f'{found.experiment.rpartition(".")[2]}-{found.topology}'
  folder = pathlib.Path(job_log_dir) / every.FOLDER
  try:
    for ending, content in (
      ('txt', text.render(found) + '\n'),
      ('json', found.as_json() + '\n'),
      ('html', page.render(found)),
    ):
      atomic_file.write_text(folder / f'{name}.{ending}', content)
  except OSError as e:
    raise ValueError(f'cannot write to --job_log_dir={job_log_dir}: {e}') from e
  return folder / name


def _save(made: check.Check, checked: check.Checked, path: str) -> None:
  if checked.program is None:
    raise ValueError(
      f'--aot_save={path}: there is no compiled step to save; '
      + (checked.report.not_compiled or 'it does not fit, or was not compiled')
    )
  saved_step.save(made.partitioner.train_step(), path)
  print(f'compiled step: {path}', flush=True)


def _check(options: RunOptions) -> None:
  """Refuses options that cannot be meant."""
  if options.check_level < check.MESH:
    raise UsageError(
      f'--check_level={options.check_level} of --mode=aot is {check.MESH} (mesh'
      f' and memory), {check.TRACED} (FLOPs too) or {check.COMPILED} (all);'
      ' what is below is for pax validate_config'
    )
