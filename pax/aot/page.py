# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML page that needs nothing else, not even a network."""

from __future__ import annotations

import html
from collections.abc import Sequence

from pax.aot import report, text

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
_PARTS = {
  'parameters': '#4e79a7',
  'other variables': '#a0cbe8',
  'optimizer': '#f28e2b',
  'batch': '#ffbe7d',
  'activations kept': '#59a14f',
  'temporaries': '#e15759',
  'outputs': '#b07aa1',
  'program': '#9c755f',
}


def render(found: report.Report) -> str:
  """Returns the page."""
  title = html.escape(text.headline(found))
  kind = ' class="bad"' if found.fits is False else ''
  parts = [
    f'<h1{kind}>{title}</h1>',
    _table(list(text.facts(found))),
    '<h2>Bytes on each device</h2>',
    _bar(found),
    _table(text.memory_rows(found), colored=True),
  ]
  if found.collectives:
    parts += [
      '<h2>Sent by each device in a step</h2>',
      _table(text.collective_rows(found), text.COLLECTIVES_HEAD),
    ]
  if found.buffers:
    parts += ['<h2>Largest of the step</h2>', _table(text.buffer_rows(found))]
  for head, sentences in (
    ('What is odd', found.warnings),
    ('What would help', found.advice),
    ('Not compiled', [found.not_compiled] if found.not_compiled else []),
  ):
    if sentences:
      items = ''.join(f'<li>{html.escape(s)}</li>' for s in sentences)
      parts += [f'<h2>{head}</h2>', f'<ul>{items}</ul>']
  parts += [
    f'<h2>State: {len(found.arrays)} arrays</h2>',
    _table(text.array_rows(found), text.ARRAYS_HEAD),
  ]
  return (
    '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    f'<title>{title}</title>\n<style>{_STYLE}</style>\n'
    + '\n'.join(parts)
    + '\n</html>\n'
  )


def _table(
  rows: Sequence[tuple[str, ...]],
  head: Sequence[str] = (),
  *,
  colored: bool = False,
) -> str:
  lines = []
  if head:
    cells = ''.join(f'<th>{html.escape(cell)}</th>' for cell in head)
    lines.append(f'<tr>{cells}</tr>')
  for row in rows:
    cells = [f'<td>{html.escape(cell)}</td>' for cell in row]
    if colored and row[0] in _PARTS:
      color = _PARTS[row[0]]
      key = f'<span class="key" style="background:{color}"></span>'
      cells[0] = f'<td>{key}{html.escape(row[0])}</td>'
    lines.append(f'<tr>{"".join(cells)}</tr>')
  return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _bar(found: report.Report) -> str:
  """A device's memory as a bar, what is free of it left empty."""
  held = found.memory
  whole = max(held.capacity or 0.0, held.total) or 1.0
  spans = ''.join(
    f'<span style="width:{100 * value / whole:.3f}%;'
    f'background:{_PARTS[name]}"></span>'
    for name, value in held.parts().items()
    if value is not None
  )
  return f'<div class="bar">{spans}</div>'
