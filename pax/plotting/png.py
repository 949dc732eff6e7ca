# SPDX-License-Identifier: Apache-2.0
"""Plots jobs as one PNG."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from pax.files import atomic_file
from pax.plotting import curves
from pax.summaries import goodput

# Colors that color-blind people can distinguish (Okabe and Ito).
COLORS = ('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9')
# One color for each activity of goodput.
ACTIVITY_COLORS = (
  '#009e73', '#e69f00', '#56b4e9', '#0072b2',
  '#cc79a7', '#999999', '#d55e00', '#8b0000',
)  # fmt: skip
_LINES = ('-', '--', ':', '-.')
_COLUMNS = 2
_FEW_POINTS = 30
_MAX_LABEL = 60


def draw(jobs: Sequence[curves.Job], path: str, *, smoothing: float) -> None:
  """Writes the picture to `path`: a panel for each curve, and the goodput."""
  from matplotlib import figure  # Slow to import.

  titles = curves.titles(jobs)
  timed = curves.timed(jobs)
  count = len(titles) + bool(timed)
  rows = math.ceil(count / _COLUMNS) or 1
  canvas = figure.Figure(
    figsize=(6.4 * _COLUMNS, 3.6 * rows), layout='constrained', dpi=120
  )
  axes = list(canvas.subplots(rows, _COLUMNS, squeeze=False).flat)
  for ax, title in zip(axes, titles, strict=False):
    _panel(ax, jobs, title, smoothing)
  rest = axes[len(titles) :]
  if timed:
    _times(rest.pop(0), timed)
  for ax in rest:
    ax.axis('off')
  with atomic_file.open_atomic(path, is_durable=False) as file:
    canvas.savefig(file, format='png')


def _panel(
  ax: Any, jobs: Sequence[curves.Job], title: str, smoothing: float
) -> None:
  panel = curves.panel(title)
  scale = 100.0 if panel.percent else 1.0
  for job, color in zip(jobs, itertools.cycle(COLORS), strict=False):
    splits = job.panels.get(title, {})
    for line, (split, points) in zip(
      itertools.cycle(_LINES), splits.items(), strict=False
    ):
      points = [(step, scale * value) for step, value in points]
      few = len(points) < _FEW_POINTS
      smooth = panel.smooth and smoothing > 0 and not few
      if smooth:
        ax.plot(*zip(*points, strict=True), color=color, alpha=0.2, lw=1)
        points = curves.smoothed(points, smoothing)
      ax.plot(
        *zip(*points, strict=True),
        line,
        color=color,
        lw=1.6,
        marker='o' if few else None,
        markersize=3,
        label=_label(job, split, len(jobs)),
      )
  ax.set_title(_plain(title), loc='left', fontsize=11)
  ax.set_xlabel('step')
  ax.set_ylabel('%' if panel.percent else '')
  ax.grid(alpha=0.25)
  ax.spines[['top', 'right']].set_visible(False)
  ax.legend(frameon=False, fontsize=8)


def _label(job: curves.Job, split: str, num_jobs: int) -> str:
  if num_jobs == 1:
    return _plain(split)
  return _plain(job.name if split == curves.TRAIN else f'{job.name} {split}')


def _plain(text: str) -> str:
  """Returns a text without mathematics, for Matplotlib, and not too long."""
  shown = text if len(text) <= _MAX_LABEL else f'{text[:_MAX_LABEL]}...'
  # Matplotlib's fonts lack other characters; it hides labels with `_`.
  ascii_text = shown.encode('ascii', 'replace').decode()
  return ascii_text.replace('$', r'\$').removeprefix('_')


def _times(ax: Any, jobs: Sequence[tuple[str, goodput.Goodput]]) -> None:
  """A bar for each job: its wall time by activity."""
  for row, (_, spent) in enumerate(jobs):
    left = 0.0
    for purpose, color in zip(goodput.ACTIVITIES, ACTIVITY_COLORS, strict=True):
      width = spent.seconds[purpose] / (spent.wall_secs or 1)
      label = purpose if row == 0 else None
      ax.barh(row, 100 * width, left=left, color=color, label=label)
      left += 100 * width
  ax.set_title('Time', loc='left', fontsize=11)
  ax.set_xlabel('% of the wall time')
  ax.set_yticks(range(len(jobs)), [_plain(name) for name, _ in jobs])
  ax.set_xlim(0, 100)
  ax.invert_yaxis()
  ax.spines[['top', 'right']].set_visible(False)
  ax.legend(
    frameon=False, fontsize=8, ncols=4, loc='upper center',
    bbox_to_anchor=(0.5, -0.2),
  )  # fmt: skip
