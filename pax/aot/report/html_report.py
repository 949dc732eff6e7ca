# SPDX-License-Identifier: Apache-2.0
"""The report as a self-contained HTML page."""

from __future__ import annotations

import html
from collections.abc import Sequence

from pax.aot.report import text
from pax.aot.report.step_report import Report

_STYLE = """
:root { color-scheme: light dark; --soft: #8886; --bad: #c0392b; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h1.bad { color: var(--bad); }
h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
table { border-collapse: collapse; font-size: .9rem; }
td, th { border-bottom: 1px solid var(--soft); padding: .2rem .9rem .2rem 0;
  text-align: left; vertical-align: top; }
.scroll { overflow-x: auto; }
.bar { display: flex; height: 1.6rem; border: 1px solid var(--soft);
  margin: .5rem 0; }
.bar span { display: block; }
.key { display: inline-block; width: .8rem; height: .8rem;
  margin-right: .4rem; }
"""
# By category of `Memory`.
COLORS = {
  'parameters': '#4e79a7',
  'other variables': '#a0cbe8',
  'optimizer state': '#f28e2b',
  'batch': '#ffbe7d',
  'saved activations': '#59a14f',
  'temporaries': '#e15759',
  'outputs': '#b07aa1',
  'program': '#9c755f',
}


def render_html(report: Report) -> str:
  """Returns the page."""
  title = html.escape(text.headline(report))
  title_class = ' class="bad"' if report.fits is False else ''
  elements = [
    f'<h1{title_class}>{title}</h1>',
    _table(list(text.summary_rows(report))),
    '<h2>Memory per device</h2>',
    _memory_bar(report),
    _table(text.memory_rows(report), has_color_key=True),
  ]
  for name, memory in report.memory_besides_update.items():
    elements += [
      f'<h2>Memory per device, {html.escape(name)}</h2>',
      _table(text.step_memory_rows(memory)),
    ]
  if report.collectives:
    elements += [
      '<h2>Bytes sent per device and step</h2>',
      _table(text.collective_rows(report), text.COLLECTIVES_HEADER),
    ]
  if report.buffers:
    elements += [
      '<h2>Largest buffers at the peak</h2>',
      _table(text.buffer_rows(report)),
    ]
  for heading, messages in (
    ('Warnings', report.warnings),
    ('To save memory', report.advice),
    ('Not compiled', [report.not_compiled] if report.not_compiled else []),
  ):
    if messages:
      items = ''.join(f'<li>{html.escape(s)}</li>' for s in messages)
      elements += [f'<h2>{heading}</h2>', f'<ul>{items}</ul>']
  elements += [
    f'<h2>Train state: {len(report.arrays)} arrays</h2>',
    _table(text.array_rows(report), text.ARRAYS_HEADER),
  ]
  return (
    '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    f'<title>{title}</title>\n<style>{_STYLE}</style>\n'
    + '\n'.join(elements)
    + '\n</html>\n'
  )


def _table(
  rows: Sequence[tuple[str, ...]],
  header: Sequence[str] = (),
  *,
  has_color_key: bool = False,
) -> str:
  lines = []
  if header:
    titles = ''.join(f'<th>{html.escape(cell)}</th>' for cell in header)
    lines.append(f'<tr>{titles}</tr>')
  for row in rows:
    cells = [html.escape(cell) for cell in row]
    if has_color_key and row[0] in COLORS:
      color = COLORS[row[0]]
      cells[0] = (
        f'<span class="key" style="background:{color}"></span>{cells[0]}'
      )
    lines.append('<tr>' + ''.join(f'<td>{c}</td>' for c in cells) + '</tr>')
  return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _memory_bar(report: Report) -> str:
  """The memory of a device as a stacked bar; free memory is blank."""
  memory = report.memory
  width = max(memory.capacity or 0.0, memory.total) or 1.0
  spans = ''.join(
    f'<span style="width:{100 * value / width:.3f}%;'
    f'background:{COLORS[category]}"></span>'
    for category, value in memory.by_category().items()
    if value is not None
  )
  return f'<div class="bar">{spans}</div>'
