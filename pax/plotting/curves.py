# SPDX-License-Identifier: Apache-2.0
"""What there is to draw of jobs: their curves, last values, and time."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence

from pax.summaries import goodput, plots, tags, writer

TRAIN = 'train'
# Points that are drawn of a curve; eyes do not see more.
_MAX_POINTS = 2000

Points = list[tuple[int, float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
  """One diagram: which tag it shows, by the first that a job has."""

  title: str
  tags: tuple[str, ...]
  # Whether the vertical axis shows percent.
  percent: bool = False
  # Whether noise hides what matters.
  smooth: bool = True


PANELS = (
  Panel(title='Loss', tags=(tags.LOSS,)),
  Panel(
    title='Log perplexity',
    tags=('Metrics/log_pplx', 'Metrics/avg_xent', 'Metrics/total_loss'),
  ),
  Panel(
    title='Learning rate', tags=('learning/lr', 'lr', 'loss/lr'), smooth=False
  ),
  Panel(
    title='Gradient norm',
    tags=(
      'learning/raw_grad_norm',
      'learning/grad_norm',
      'learning/applied_grad_norm',
    ),
  ),
  Panel(title='MFU', tags=(tags.MFU,), percent=True),
  Panel(title='Tokens per second', tags=(tags.TOKENS_PER_SEC,)),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """What one job directory has to show."""

  name: str
  # Points by panel title, then by split, such as `train`.
  panels: Mapping[str, Mapping[str, Points]]
  # None without a ledger.
  goodput: goodput.Goodput | None

  @property
  def step(self) -> int:
    """The last step that anything is known of."""
    curves = [c for splits in self.panels.values() for c in splits.values()]
    return max((curve[-1][0] for curve in curves), default=0)


def read_jobs(
  job_log_dirs: Sequence[str], extra_tags: Sequence[str] = ()
) -> list[Job]:
  """The jobs in these directories; `extra_tags` get panels of their own.

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
  """The panels that any of the jobs has something for, in order."""
  return list(dict.fromkeys(t for job in jobs for t in job.panels))


def panel(title: str) -> Panel:
  """The panel of that title."""
  found = (p for p in PANELS if p.title == title)
  return next(found, Panel(title=title, tags=(title,)))


def smoothed(points: Points, weight: float) -> Points:
  """The moving average of a curve, without a bias to its beginning.

  Each value counts `weight` times as much as the next one.
  """
  average, total, found = 0.0, 0.0, []
  for step, value in points:
    average = weight * average + (1 - weight) * value
    total = weight * total + (1 - weight)
    found.append((step, average / total))
  return found


def _read(directory: str, name: str, panels: Sequence[Panel]) -> Job:
  if not os.path.exists(os.path.join(directory, writer.METRICS_FILE)):
    raise ValueError(
      f'{directory} has no {writer.METRICS_FILE}; give the --job_log_dir of a'
      ' job that writes summaries'
    )
  splits = plots.read_metrics(directory)
  found: dict[str, dict[str, Points]] = {}
  for one in panels:
    curves = {split: _curve(tagged, one) for split, tagged in splits.items()}
    curves = {split: points for split, points in curves.items() if points}
    if curves:
      found[one.title] = dict(sorted(curves.items(), key=_train_first))
  records = goodput.read(os.path.join(directory, goodput.GOODPUT_FILE))
  return Job(name=name, panels=found, goodput=goodput.summarize(records))


def _curve(tagged: Mapping[str, plots.Curve], one: Panel) -> Points:
  tag = next((tag for tag in one.tags if tag in tagged), None)
  if tag is None:
    return []
  points = [(s, v) for s, v in tagged[tag].items() if math.isfinite(v)]
  stride = math.ceil(len(points) / _MAX_POINTS) or 1
  # The last point is the one people look for.
  return points[::-stride][::-1]


def _train_first(pair: tuple[str, Points]) -> tuple[bool, str]:
  return pair[0] != TRAIN, pair[0]


def _names(directories: Sequence[str]) -> list[str]:
  """The ends of the paths that tell them apart."""
  parts = [os.path.abspath(path).split(os.sep) for path in directories]
  for length in range(1, max(map(len, parts)) + 1):
    names = ['/'.join(part[-length:]) for part in parts]
    if len(set(names)) == len(names):
      return names
  return ['/'.join(part) for part in parts]
