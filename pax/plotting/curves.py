# SPDX-License-Identifier: Apache-2.0
"""Curves of jobs: points by panel and split, read from their metrics."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence

from pax.files import storage
from pax.summaries import goodput, plots, tags, writer

TRAIN = 'train'
# Maximum number of points of a curve.
_MAX_POINTS = 2000
# Larger values and steps overflow the arithmetic of axes.
_MAX_VALUE = 1e100
_MAX_STEP = 2**53

Points = list[tuple[int, float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
  """A diagram of one tag: the first of `tags` that a job has."""

  title: str
  tags: tuple[str, ...]
  # Whether the vertical axis is in percent.
  percent: bool = False
  # Whether the curve is noisy, so that it is smoothed.
  smooth: bool = True


PANELS = (
  Panel(title='Loss', tags=(tags.LOSS,)),
  Panel(
    title='Log perplexity',
    tags=('Metrics/log_pplx', 'Metrics/avg_xent', 'Metrics/total_loss'),
  ),
  Panel(
    title='Learning rate',
    tags=('learning/lr_scalar', 'learning/lr', 'lr', 'loss/lr'),
    smooth=False,
  ),
  Panel(
    title='Gradient norm',
    tags=(
      'learning/raw_grad_norm_scalar',
      'learning/raw_grad_norm',
      'learning/grad_norm',
      'learning/applied_grad_norm_scalar',
      'learning/applied_grad_norm',
    ),
  ),
  Panel(title='MFU', tags=(tags.MFU,), percent=True),
  Panel(title='Tokens per second', tags=(tags.TOKENS_PER_SEC,)),
  Panel(title='Examples per second', tags=(tags.EXAMPLES_PER_SEC,)),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """The curves of one job directory."""

  name: str
  # Points by the title of the panel, then by split, such as `train`.
  panels: Mapping[str, Mapping[str, Points]]
  # None without a ledger.
  goodput: goodput.Goodput | None
  # Number of values of these panels that cannot be drawn: NaN, infinities, and
  # steps or values beyond all axes.
  num_skipped: int = 0

  @property
  def step(self) -> int:
    """The last step of all curves."""
    curves = [c for splits in self.panels.values() for c in splits.values()]
    return max((curve[-1][0] for curve in curves), default=0)


def read_jobs(
  job_log_dirs: Sequence[str], extra_tags: Sequence[str] = ()
) -> list[Job]:
  """Reads the jobs in these directories; adds a panel for each extra tag.

  Raises:
    ValueError: a directory has no metrics.
  """
  panels = [*PANELS, *(Panel(title=tag, tags=(tag,)) for tag in extra_tags)]
  names = _names(job_log_dirs)
  return [
    _read(directory, name, panels)
    for directory, name in zip(job_log_dirs, names, strict=True)
  ]


def titles(jobs: Sequence[Job]) -> list[str]:
  """Returns the titles of the panels that any of the jobs has, in order."""
  return list(dict.fromkeys(t for job in jobs for t in job.panels))


def timed(jobs: Sequence[Job]) -> list[tuple[str, goodput.Goodput]]:
  """Returns the name and the goodput of each job with a ledger."""
  return [(job.name, job.goodput) for job in jobs if job.goodput is not None]


def panel(title: str) -> Panel:
  """Returns the panel with this title."""
  matches = (p for p in PANELS if p.title == title)
  return next(matches, Panel(title=title, tags=(title,)))


def printable(text: str) -> str:
  """Returns a text on one line, without control characters."""
  return ''.join(char if char.isprintable() else '?' for char in text)


def smoothed(points: Points, weight: float) -> Points:
  """Returns the exponential moving average of a curve, with bias correction.

  `weight` is the decay per point.
  """
  average, total, averages = 0.0, 0.0, []
  for step, value in points:
    average = weight * average + (1 - weight) * value
    total = weight * total + (1 - weight)
    averages.append((step, average / total))
  return averages


def _read(directory: str, name: str, panels: Sequence[Panel]) -> Job:
  if not plots.metrics_files(directory):
    raise ValueError(
      f'{directory} has no {writer.METRICS_FILE}; give the --job_log_dir of a'
      ' job that writes summaries'
    )
  splits = plots.read_metrics(directory)
  by_title: dict[str, dict[str, Points]] = {}
  num_skipped = 0
  for panel_ in panels:
    curves = {}
    for split, tagged in splits.items():
      values = _values(tagged, panel_)
      points = [p for p in values.items() if _is_drawable(*p)]
      num_skipped += len(values) - len(points)
      if points:
        curves[printable(split)] = _thinned(points)
    if curves:
      by_title[panel_.title] = dict(sorted(curves.items(), key=_train_first))
  records = goodput.read(storage.to_path(directory) / goodput.GOODPUT_FILE)
  return Job(
    name=printable(name),
    panels=by_title,
    goodput=goodput.summarize(records),
    num_skipped=num_skipped,
  )


def _values(tagged: Mapping[str, plots.Curve], panel_: Panel) -> plots.Curve:
  """The values of the panel's tag by step."""
  tag = next((tag for tag in panel_.tags if tag in tagged), None)
  return {} if tag is None else tagged[tag]


def _is_drawable(step: int, value: float) -> bool:
  return abs(step) <= _MAX_STEP and abs(value) <= _MAX_VALUE


def _thinned(points: Points) -> Points:
  stride = math.ceil(len(points) / _MAX_POINTS) or 1
  # Keeps the last point.
  return points[::-stride][::-1]


def _train_first(pair: tuple[str, Points]) -> tuple[bool, str]:
  return pair[0] != TRAIN, pair[0]


def _names(directories: Sequence[str]) -> list[str]:
  """The shortest suffixes of the paths that all differ."""
  parts = [os.path.abspath(path).split(os.sep) for path in directories]
  for length in range(1, max(map(len, parts)) + 1):
    names = ['/'.join(part[-length:]) for part in parts]
    if len(set(names)) == len(names):
      return names
  return ['/'.join(part) for part in parts]
