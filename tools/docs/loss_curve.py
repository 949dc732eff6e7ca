# SPDX-License-Identifier: Apache-2.0
"""Draws the losses of a finished quickstart as a small SVG.

    python tools/docs/loss_curve.py /tmp/pax/tiny/metrics.jsonl loss_curve.svg

docs/images/loss_curve.svg is that of the first command of README.md.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

_WIDTH, _HEIGHT = 640, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 16, 28, 36
_LOSS, _HELD_OUT = '#0072b2', '#d55e00'

Points = list[tuple[float, float]]


def svg(train: Points, held_out: Points) -> str:
  """Returns a plot of the training and the held-out loss over steps."""
  last = max(step for step, _ in train)
  low, high = 2.5, 8.5

  def place(points: Points) -> list[tuple[float, float]]:
    width = _WIDTH - _LEFT - _RIGHT
    height = _HEIGHT - _TOP - _BOTTOM
    return [
      (_LEFT + width * x / last, _TOP + height * (high - y) / (high - low))
      for x, y in points
    ]

  def line(points: Points, color: str) -> str:
    text = ' '.join(f'{x:.1f},{y:.1f}' for x, y in place(points))
    return f'<polyline points="{text}" fill="none" stroke="{color}"/>'

  def text(x: float, y: float, words: object, style: str = '') -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" {style}>{words}</text>'

  end, middle = 'text-anchor="end"', 'text-anchor="middle"'
  parts = []
  for value in range(3, 9):
    (left, y), (right, _) = place([(0, value), (last, value)])
    parts.append(f'<path d="M{left:.0f} {y:.1f}H{right:.0f}" stroke="#ddd"/>')
    parts.append(text(left - 8, y + 4, value, end))
  for step in range(0, int(last) + 1, 100):
    ((x, y),) = place([(step, low)])
    parts.append(text(x, y + 18, step, middle))
  parts.append(line(train, _LOSS))
  for x, y in place(held_out):
    center = f'cx="{x:.1f}" cy="{y:.1f}"'
    parts.append(f'<circle {center} r="4" fill="{_HELD_OUT}"/>')
  parts.append(text(_LEFT, 18, 'training loss', f'fill="{_LOSS}"'))
  parts.append(text(_LEFT + 110, 18, 'held-out loss', f'fill="{_HELD_OUT}"'))
  parts.append(text(_WIDTH - _RIGHT, 18, 'steps', end))
  body = '\n'.join(parts)
  return (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    ' font-family="sans-serif" font-size="12" fill="#333">\n'
    '<title>Loss of TinyLm</title>\n'
    f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>\n{body}\n</svg>\n'
  )


def read_losses(path: pathlib.Path) -> dict[str, Points]:
  """Returns the losses of a job by split, as (step, loss) pairs."""
  losses: dict[str, Points] = {}
  for line in path.read_text(encoding='utf-8').splitlines():
    record = json.loads(line)
    if 'loss' in record:
      points = losses.setdefault(record['split'], [])
      points.append((record['step'], record['loss']))
  return losses


def main(argv: list[str]) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('metrics', type=pathlib.Path)
  parser.add_argument('output', type=pathlib.Path)
  options = parser.parse_args(argv)
  losses = read_losses(options.metrics)
  text = svg(losses['train'], losses.get('eval_test_held_out', []))
  options.output.write_text(text, encoding='utf-8')
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
