# SPDX-License-Identifier: Apache-2.0
"""Plots the losses of a job from `metrics.jsonl`."""

from __future__ import annotations

import heapq
import math
import operator
import os
from collections.abc import Mapping
from typing import Any

from pax.files import atomic_file, side_files, storage, working_copy
from pax.summaries import jsonl, tags, writer

LOSS_CURVE_FILE = 'loss_curve.png'

# The split of training steps.
_TRAIN = 'train'
# Splits with this metric are drawn in a second panel.
_BITS_PER_BYTE = f'{tags.METRICS_PREFIX}bits_per_byte'

# Values by step, of one split and tag.
Curve = dict[int, float]


def read_metrics(job_log_dir: str) -> dict[str, dict[str, Curve]]:
  """Returns the curves by split and tag, with ascending steps.

  If training went back to an earlier step, values from there on count no
  longer. Other splits may have any order, as of old checkpoints that are
  evaluated later. An incomplete last line is skipped.
  """
  files = [
    jsonl.read(path, writer.parse_record) for path in metrics_files(job_log_dir)
  ]
  curves: dict[str, dict[str, Curve]] = {}
  for record in heapq.merge(*files, key=operator.itemgetter('time')):
    _add(curves, record)
  return curves


def metrics_files(job_log_dir: storage.PathLike) -> list[storage.Path]:
  """Returns the files of metrics of the jobs in a directory."""
  directory = storage.to_path(job_log_dir)
  if not isinstance(working_copy.origin(directory), storage.BucketPath):
    files = [directory / writer.METRICS_FILE]
  else:
    files = sorted(directory.glob(f'*{writer.METRICS_FILE}'))
  return [file for file in files if file.exists()]


def loss_curve(job_log_dir: str) -> str | None:
  """Plots the losses of a job; returns the PNG's path.

  None: there are no data, or the PNG cannot be written.
  """
  if not metrics_files(job_log_dir):
    return None
  metrics = read_metrics(job_log_dir)
  panels = {
    name: {
      split: tagged[tag] for split, tagged in metrics.items() if tag in tagged
    }
    for name, tag in (('loss', tags.LOSS), ('bits per byte', _BITS_PER_BYTE))
  }
  panels = {name: curves for name, curves in panels.items() if curves}
  if not panels:
    return None
  path = os.path.join(job_log_dir, LOSS_CURVE_FILE)
  with side_files.tolerate_errors(path):
    _draw(panels, path)
    return path
  return None


def _add(curves: dict[str, dict[str, Curve]], record: dict[str, Any]) -> None:
  step, split = record.pop('step'), record.pop('split')
  record.pop('time')
  tagged = curves.setdefault(split, {})
  went_back = any(_reaches(tagged[t], step) for t in record if t in tagged)
  if split == _TRAIN and went_back:
    for other in [c for by_tag in curves.values() for c in by_tag.values()]:
      while _reaches(other, step):
        other.popitem()
  for tag, value in record.items():
    curve = tagged.setdefault(tag, {})
    is_earlier = _reaches(curve, step)
    curve[step] = float(value)
    if is_earlier:
      tagged[tag] = dict(sorted(curve.items()))


def _reaches(curve: Curve, step: int) -> bool:
  """Whether the last step of a curve is `step` or a later one."""
  return bool(curve) and next(reversed(curve)) >= step


def _draw(panels: Mapping[str, Mapping[str, Curve]], path: str) -> None:
  from matplotlib import figure  # Slow to import.

  canvas = figure.Figure(figsize=(8, 4 * len(panels)), layout='constrained')
  axes = canvas.subplots(len(panels), 1, squeeze=False)[:, 0]
  for ax, (name, curves) in zip(axes, panels.items(), strict=True):
    for split, curve in sorted(curves.items()):
      points = [(s, v) for s, v in curve.items() if math.isfinite(v)]
      if not points:
        continue
      marker = 'o' if len(points) < 30 else None
      ax.plot(
        *zip(*points, strict=True), label=split, marker=marker, markersize=3
      )
    ax.set(xlabel='step', ylabel=name)
    ax.grid(alpha=0.3)
    if ax.lines:
      ax.legend()
  with atomic_file.open_atomic(path, is_durable=False) as file:
    canvas.savefig(file, format='png', dpi=120)
