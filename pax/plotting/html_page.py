# SPDX-License-Identifier: Apache-2.0
"""Plots jobs on one HTML page without other files."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from typing import Any

from pax.files import atomic_file
from pax.plotting import curves, html_template, png
from pax.summaries import goodput, progress

_SIGNIFICANT = 5
# Only the script of this module runs, and nothing is loaded.
_SCRIPT_HASH = base64.b64encode(
  hashlib.sha256(html_template.SCRIPT.encode()).digest()
).decode()
_POLICY = (
  "default-src 'none'; style-src 'unsafe-inline';"
  f" script-src 'sha256-{_SCRIPT_HASH}'"
)


def write(jobs: Sequence[curves.Job], path: str, *, smoothing: float) -> None:
  """Writes the page to `path`."""
  page = text(jobs, smoothing=smoothing)
  atomic_file.write_text(path, page, is_durable=False)


def text(jobs: Sequence[curves.Job], *, smoothing: float) -> str:
  """Returns the page: interactive diagrams, last values, goodput."""
  title = html.escape(', '.join(job.name for job in jobs))
  steps = ', '.join(f'step {job.step}' for job in jobs)
  return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{html_template.STYLE}</style>
<h1>{title}</h1>
<div class="soft">{steps}</div>
<div class="bar">
  <label>smoothing
    <input id="smooth" type="range" min="0" max="0.99" step="0.01"
           value="{smoothing:g}"></label>
  <label><input id="log" type="checkbox"> logarithmic</label>
  <span class="bar" id="keys"></span>
</div>
<div class="grid" id="grid"></div>
<h2>Last values</h2>
<div class="scroll">{_last_values(jobs)}</div>
{_times(jobs)}
<script type="application/json" id="data">{_data(jobs)}</script>
<script>{html_template.SCRIPT}</script>
</html>
"""


def last_values(job: curves.Job) -> dict[tuple[str, str], float]:
  """Returns the last value of every curve by (panel, split)."""
  return {
    (title, split): points[-1][1]
    for title, splits in job.panels.items()
    for split, points in splits.items()
  }


def _data(jobs: Sequence[curves.Job]) -> str:
  panels = [curves.panel(title) for title in curves.titles(jobs)]
  data = {
    'jobs': [{'name': job.name, 'panels': _scaled(job)} for job in jobs],
    'panels': [
      {'title': p.title, 'percent': p.percent, 'smooth': p.smooth}
      for p in panels
    ],
    'colors': png.COLORS,
  }
  # `</script>` in a name would end the element.
  text_ = json.dumps(data, separators=(',', ':'), allow_nan=False)
  return text_.replace('<', '\\u003c')


def _scaled(job: curves.Job) -> dict[str, Any]:
  """The curves, rounded, and in percent where the panel is."""
  by_title: dict[str, Any] = {}
  for title, splits in job.panels.items():
    scale = 100.0 if curves.panel(title).percent else 1.0
    by_title[title] = {
      split: [[step, _rounded(scale * value)] for step, value in points]
      for split, points in splits.items()
    }
  return by_title


def _rounded(value: float) -> float:
  return float(f'{value:.{_SIGNIFICANT}g}')


def _last_values(jobs: Sequence[curves.Job]) -> str:
  values_of_jobs = [last_values(job) for job in jobs]
  columns = list(dict.fromkeys(key for v in values_of_jobs for key in v))
  heads = [
    html.escape(title if split == curves.TRAIN else f'{title} ({split})')
    for title, split in columns
  ]
  rows = [['job', 'step', *heads]]
  for job, values in zip(jobs, values_of_jobs, strict=True):
    cells = [_cell(values.get(key), key[0]) for key in columns]
    rows.append([html.escape(job.name), str(job.step), *cells])
  return _table(rows)


def _cell(value: float | None, title: str) -> str:
  if value is None:
    return ''
  if curves.panel(title).percent:
    return f'{100 * value:.1f}%'
  return f'{value:.{_SIGNIFICANT}g}'


def _times(jobs: Sequence[curves.Job]) -> str:
  timed = curves.timed(jobs)
  if not timed:
    return ''
  rows = [['job', 'starts', 'wall', 'goodput', *goodput.ACTIVITIES]]
  bars = []
  for job_name, spent in timed:
    times = [progress.short_time(spent.seconds[p]) for p in goodput.ACTIVITIES]
    wall = progress.short_time(spent.wall_secs)
    name = html.escape(job_name)
    share = f'{100 * spent.share:.1f}%'
    rows.append([name, str(spent.attempts), wall, share, *times])
    bars.append(f'<p>{name}</p><div class="times">{_bar(spent)}</div>')
  table = _table(rows)
  return f'<h2>Time</h2><div class="scroll">{table}</div>{"".join(bars)}'


def _bar(spent: goodput.Goodput) -> str:
  colors = zip(goodput.ACTIVITIES, png.ACTIVITY_COLORS, strict=True)
  return ''.join(
    f'<div title="{purpose}" style="background:{color};'
    f'width:{100 * spent.seconds[purpose] / (spent.wall_secs or 1):.2f}%">'
    '</div>'
    for purpose, color in colors
  )


def _table(rows: Sequence[Sequence[str]]) -> str:
  head, *body = rows
  lines = [''.join(f'<th>{cell}</th>' for cell in head)]
  lines += [''.join(f'<td>{cell}</td>' for cell in row) for row in body]
  inner = ''.join(f'<tr>{line}</tr>' for line in lines)
  return f'<table>{inner}</table>'
