# SPDX-License-Identifier: Apache-2.0
"""Report of a study: table of trials, best settings, plot of rewards."""

from __future__ import annotations

import pathlib
import shlex
from collections.abc import Sequence

from pax.files import side_files
from pax.plotting import png
from pax.studies.search import Search
from pax.tuning.space import Space
from pax.tuning.trial import Status, Trial

TABLE_FILE = 'study.txt'
PICTURE_FILE = 'study.png'


def write(
  directory: str, trials: Sequence[Trial], search_space: Space, search: Search
) -> None:
  """Prints and writes the table, and plots the rewards.

  Args:
    directory: of the study.
    trials: all trials.
    search_space: the constants.
    search: how they are searched.
  """
  table = text(trials, search_space, search)
  print(table)
  folder = pathlib.Path(directory)
  side_files.write_text(folder / TABLE_FILE, f'{table}\n')
  if search.reward and any(t.status is Status.DONE for t in trials):
    with side_files.tolerate_errors(folder / PICTURE_FILE):
      draw(trials, search_space, str(folder / PICTURE_FILE))


def text(trials: Sequence[Trial], search_space: Space, search: Search) -> str:
  """Returns the trials, best first, and the flags of the best.

  Without a reward, none is the best.
  """
  metrics = sorted({k for t in trials for k in search.shown_values(t.metrics)})
  reward = ['reward'] if search.reward else []
  rows = [['trial', *search_space.names, *metrics, 'step', *reward, 'status']]
  ranked = sorted(trials, key=lambda t: (t.reward is None, -(t.reward or 0.0)))
  for trial in ranked:
    values = [trial.metrics.get(name) for name in metrics]
    settings = [trial.settings[name] for name in search_space.names]
    status = f'{trial.status.value}  {trial.reason}'.rstrip()
    cells = [*map(_number, values), str(trial.step)]
    if search.reward:
      cells.append(_number(trial.reward))
    rows.append([str(trial.id), *settings, *cells, status])
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = [
    '  '.join(f'{cell:<{w}}' for cell, w in zip(row, widths, strict=True))
    for row in rows
  ]
  if search.reward and ranked and ranked[0].status is Status.DONE:
    best = ranked[0]
    words = [
      f'--set {shlex.quote(f"{n}={v}")}' for n, v in best.settings.items()
    ]
    lines += ['', f'best: trial {best.id}  {" ".join(words)}']
  return '\n'.join(line.rstrip() for line in lines)


def draw(trials: Sequence[Trial], search_space: Space, path: str) -> None:
  """Plots the rewards by trial, and by each constant."""
  from matplotlib import figure  # Slow to import.

  done = [trial for trial in trials if trial.status is Status.DONE]
  rewards = [trial.reward or 0.0 for trial in done]
  count = 1 + len(search_space.names)
  canvas = figure.Figure(
    figsize=(4.2 * count, 3.6), layout='constrained', dpi=120
  )
  first, *rest = canvas.subplots(1, count, squeeze=False)[0]
  best = [max(rewards[: i + 1]) for i in range(len(rewards))]
  ids = [trial.id for trial in done]
  first.plot(ids, rewards, 'o', color=png.COLORS[0], label='reward')
  first.step(ids, best, where='post', color=png.COLORS[1], label='best')
  first.set_xlabel('trial')
  first.legend(frameon=False, fontsize=8)
  for ax, name in zip(rest, search_space.names, strict=True):
    texts = [trial.settings[name] for trial in done]
    ax.plot(_axis_values(texts), rewards, 'o', color=png.COLORS[0])
    ax.set_xlabel(name)
  for ax in (first, *rest):
    ax.grid(alpha=0.25)
    ax.spines[['top', 'right']].set_visible(False)
  canvas.savefig(path, format='png')


def _axis_values(texts: Sequence[str]) -> Sequence[float] | Sequence[str]:
  """The texts as numbers if they all are; otherwise as categories."""
  try:
    return [float(text) for text in texts]
  except ValueError:
    return texts


def _number(value: float | None) -> str:
  return '' if value is None else f'{value:.5g}'
