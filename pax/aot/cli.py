# SPDX-License-Identifier: Apache-2.0
"""`--mode=aot`: from the options to the report files and the exit code."""

from __future__ import annotations

import dataclasses
import pathlib

from pax.aot import analysis, remat, sweep
from pax.aot import target as target_lib
from pax.aot.report import html_report, text
from pax.aot.report.step_report import Report
from pax.files import atomic_file
from pax.partitioning import saved_step
from pax.runner import distributed, job_log
from pax.runner.options import RunOptions, UsageError
from pax.tools import abstract_experiment

EXIT_FITS = sweep.EXIT_FITS
EXIT_DOES_NOT_FIT = sweep.EXIT_DOES_NOT_FIT


def run(options: RunOptions) -> int:
  """Analyzes an experiment on a machine and prints the report.

  With a job directory the report is written to its `aot/` too.

  Returns:
    The exit code. 0: the step fits, or it is unknown; 2: it does not fit.

  Raises:
    ValueError: the options, the experiment or the machine are invalid.
  """
  _check_options(options)
  if options.all:
    return sweep.run(options)
  job_log.log_to_console()
  distributed.configure(options)
  experiment = abstract_experiment.ExperimentOptions(
    exp=options.exp,
    fdl=options.fdl,
    set=options.set,
    trust_foreign_files=options.trust_foreign_files,
  )
  target = target_lib.create_target(experiment, options.topology)
  result = analysis.analyze(
    target,
    options.check_level,
    # The saved step is for runs.
    full_effort=options.aot_full_effort or bool(options.aot_save),
  )
  report = dataclasses.replace(
    result.report, asked_topology=options.topology, settings=options.set
  )
  if options.aot_remat:
    policies = remat.compare(experiment, options.topology)
    report = dataclasses.replace(report, remat_policies=policies)
  print(text.render_text(report), flush=True)
  if options.aot_save:
    _save_step(target, result, options.aot_save)
  if options.job_log_dir:
    write_report(report, options.job_log_dir)
  does_not_fit = report.fits is False
  return EXIT_DOES_NOT_FIT if does_not_fit else EXIT_FITS


def write_report(report: Report, job_log_dir: str) -> pathlib.Path:
  """Writes the report as text, JSON and HTML.

  Returns:
    The path of the files, without extension.

  Raises:
    ValueError: the directory is not writable.
  """
  name = f'{report.experiment.rpartition(".")[2]}-{report.topology}'
  folder = pathlib.Path(job_log_dir) / sweep.FOLDER
  try:
    atomic_file.make_folder(folder, parents=True)
    for extension, content in (
      ('txt', text.render_text(report) + '\n'),
      ('json', report.to_json() + '\n'),
      ('html', html_report.render_html(report)),
    ):
      atomic_file.write_text(folder / f'{name}.{extension}', content)
  except OSError as e:
    raise ValueError(f'cannot write to --job_log_dir={job_log_dir}: {e}') from e
  return folder / name


def _save_step(
  target: target_lib.Target, result: analysis.Analysis, path: str
) -> None:
  if result.compiled_step is None:
    reason = result.report.not_compiled or (
      f'it does not fit, or --check_level is below {analysis.COMPILED}'
    )
    raise ValueError(
      f'--aot_save={path}: there is no compiled step to save: {reason}'
    )
  saved_step.save(target.partitioner.train_step(), path)
  print(f'compiled step: {path}', flush=True)


def _check_options(options: RunOptions) -> None:
  if options.check_level < analysis.MESH:
    raise UsageError(
      f'--check_level={options.check_level} is too low for --mode=aot: expected'
      f' {analysis.MESH} (mesh and memory), {analysis.TRACED} (FLOPs too) or'
      f' {analysis.COMPILED} (all); lower levels are for pax validate_config'
    )
