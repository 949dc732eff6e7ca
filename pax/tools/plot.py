# SPDX-License-Identifier: Apache-2.0
"""Plots the curves of one or several jobs, running or finished.

pax plot /tmp/pax/tiny /tmp/pax/other --output=curves
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import pathlib
import sys
from collections.abc import Sequence

from pax.files import storage
from pax.plotting import curves, html_page, png
from pax.runner import command_line
from pax.summaries import goodput, plots
from pax.tools import tool
from praxis import value_domains

_USAGE = """\
Plots loss, log perplexity, learning rate, gradient norm, MFU and goodput of one
or several jobs, running or finished, as a PNG and an HTML page.

  pax plot /tmp/pax/tiny
  pax plot /tmp/pax/tiny /tmp/pax/other --output=/tmp/compared"""

_NAME = 'curves'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(command_line.CheckedOptions):
  """The flags of this tool."""

  job_log_dirs: tuple[str, ...] = command_line.words('JOB_LOG_DIR...')
  output: str | None = command_line.flag(
    None,
    'Output',
    'Path of the files without .png and .html. Default: `curves` in the'
    ' directory of the job; of several jobs, and of jobs in buckets, in the'
    ' current directory.',
    is_path=True,
  )
  smoothing: float = command_line.flag(
    0.6,
    'Output',
    'Weight of the exponential moving average, from 0 to below 1.',
    domain=value_domains.interval(ge=0.0, lt=1.0),
  )
  tag: tuple[str, ...] = command_line.flag(
    (),
    'What',
    'Another tag of metrics.jsonl to plot. Repeatable.',
    example='TAG',
  )


def main(argv: Sequence[str] = sys.argv) -> int:
  """Writes the picture and the page; returns the exit code.

  Raises:
    UsageError: no job.
  """
  options = command_line.parse(Options, argv, _USAGE)
  directories = options.job_log_dirs
  if not directories:
    raise command_line.UsageError(
      'which job? e.g. pax plot /tmp/pax/tiny, the --job_log_dir of a run'
    )
  jobs = curves.read_jobs(directories, options.tag)
  for tag in options.tag:
    if not any(tag in job.panels for job in jobs):
      logging.warning('%s', _missing(tag, directories))
  base = options.output or str(_default_output(directories))
  storage.require_local(base, '--output').parent.mkdir(
    parents=True, exist_ok=True
  )
  png.draw(jobs, f'{base}.png', smoothing=options.smoothing)
  html_page.write(jobs, f'{base}.html', smoothing=options.smoothing)
  for job in jobs:
    print(_summary(job))
  print(f'wrote {base}.png and {base}.html')
  return 0


def _default_output(directories: Sequence[str]) -> pathlib.Path:
  first, *others = directories
  return pathlib.Path('.' if others or storage.is_url(first) else first, _NAME)


def _missing(tag: str, directories: Sequence[str]) -> str:
  """Returns the warning that no job has values of a tag."""
  tags = {
    other
    for directory in directories
    for curves_by_tag in plots.read_metrics(directory).values()
    for other in curves_by_tag
  }
  near = difflib.get_close_matches(tag, tags, cutoff=0.4) or sorted(tags)[:5]
  names = ', '.join(map(curves.printable, near))
  return f'--tag={tag}: no job has values of it; there are {names}'


def _summary(job: curves.Job) -> str:
  """The job's last values, and its goodput."""
  lines = [f'{job.name}: step {job.step}']
  for (title, split), value in html_page.last_values(job).items():
    lines.append(f'  {title:<18} {split:<24} {value:.6g}')
  if job.num_skipped:
    lines.append(f'  {job.num_skipped} values are NaN or infinite: not drawn')
  if job.goodput:
    lines.append(f'  {goodput.summary_line(job.goodput)}')
  return '\n'.join(lines)


if __name__ == '__main__':
  tool.run_console(main)
