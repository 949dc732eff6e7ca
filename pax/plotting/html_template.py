# SPDX-License-Identifier: Apache-2.0
"""The text of the page: its style, and the script that draws in a browser."""

STYLE = """
:root {
  --paper: #ffffff; --ink: #1c1e21; --soft: #6b7280; --line: #e5e7eb;
  --card: #fafafa;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14161a; --ink: #e6e8eb; --soft: #9aa1ab; --line: #2c3036;
    --card: #1b1e23;
  }
}
* { box-sizing: border-box }
body {
  margin: 0 auto; padding: 24px; max-width: 1280px; background: var(--paper);
  color: var(--ink); font: 14px/1.45 system-ui, sans-serif;
}
h1 { font-size: 20px; margin: 0 0 2px }
h2 { font-size: 15px; margin: 28px 0 8px }
.soft { color: var(--soft) }
.bar {
  display: flex; flex-wrap: wrap; gap: 8px 20px; align-items: center;
  margin: 16px 0;
}
.bar label { display: inline-flex; gap: 6px; align-items: center }
.key { cursor: pointer; user-select: none; padding: 2px 8px;
  border: 1px solid var(--line); border-radius: 99px }
.key.off { opacity: .35 }
.dot { width: 10px; height: 10px; border-radius: 50%; display: inline-block }
.grid { display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)) }
.card { background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; padding: 12px; position: relative }
.card b { font-weight: 600 }
svg { display: block; width: 100%; height: 260px; overflow: visible }
svg text { fill: var(--soft); font-size: 11px }
svg .rule { stroke: var(--line) }
.tip { position: absolute; pointer-events: none; background: var(--paper);
  border: 1px solid var(--line); border-radius: 6px; padding: 6px 8px;
  font-size: 12px; display: none; z-index: 1; white-space: nowrap;
  box-shadow: 0 2px 10px #0002 }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: 5px 14px 5px 0; text-align: right;
  border-bottom: 1px solid var(--line); white-space: nowrap }
th:first-child, td:first-child { text-align: left }
.times { display: flex; height: 18px; border-radius: 4px; overflow: hidden }
"""

SCRIPT = r"""
const data = JSON.parse(document.getElementById('data').textContent);
const hidden = new Set();
const NS = 'http://www.w3.org/2000/svg';
const W = 560, H = 260, L = 52, R = 8, T = 8, B = 26;
const DASHES = ['', '5 3', '2 3', '7 3 2 3'];
const byId = id => document.getElementById(id);
const make = (name, attributes, parent) => {
  const e = document.createElementNS(NS, name);
  for (const k in attributes) e.setAttribute(k, attributes[k]);
  if (parent) parent.appendChild(e);
  return e;
};
const short = v => {
  const a = Math.abs(v);
  if (a >= 1e9) return +(v / 1e9).toPrecision(3) + 'G';
  if (a >= 1e6) return +(v / 1e6).toPrecision(3) + 'M';
  if (a >= 1e4) return +(v / 1e3).toPrecision(3) + 'k';
  if (a && a < 1e-3) return v.toExponential(1);
  return String(+v.toPrecision(4));
};
const smooth = (points, w) => {
  let mean = 0, total = 0;
  return points.map(([x, y]) => {
    mean = w * mean + (1 - w) * y; total = w * total + (1 - w);
    return [x, mean / total];
  });
};
const ticks = (lo, hi, n) => {
  const raw = (hi - lo) / n || 1, p = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(k => k * p).find(s => s >= raw);
  const values = [];
  for (let v = Math.ceil(lo / step) * step; v <= hi + 1e-9 * step; v += step)
    values.push(v);
  return values;
};
function curvesOf(panel) {
  const w = panel.smooth ? +byId('smooth').value : 0;
  const curves = [];
  data.jobs.forEach((job, j) => {
    if (hidden.has(j)) return;
    Object.entries(job.panels[panel.title] || {}).forEach(([split, raw], s) => {
      const few = raw.length < 30;
      curves.push({
        name: data.jobs.length > 1 ? job.name + ' ' + split : split,
        color: data.colors[j % data.colors.length], dash: DASHES[s % 4],
        raw, points: w && !few ? smooth(raw, w) : raw, faint: w && !few, few,
      });
    });
  });
  return curves;
}
function drawPanel(panel, svg, tip) {
  svg.replaceChildren();
  const log = byId('log').checked;
  const curves = curvesOf(panel);
  const keep = p => !log || p[1] > 0;
  const all = curves.flatMap(c => c.points.filter(keep));
  if (!all.length) return;
  const f = log ? Math.log10 : v => v;
  let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
  for (const [x, y] of all) {
    x0 = Math.min(x0, x); x1 = Math.max(x1, x);
    y0 = Math.min(y0, f(y)); y1 = Math.max(y1, f(y));
  }
  if (x1 === x0) x1 = x0 + 1;
  const pad = (y1 - y0) * 0.05 || Math.abs(y0) * 0.1 || 1;
  y0 -= pad; y1 += pad;
  const X = x => L + (x - x0) / (x1 - x0) * (W - L - R);
  const Y = y => H - B - (f(y) - y0) / (y1 - y0) * (H - T - B);
  for (const v of ticks(y0, y1, 5)) {
    const value = log ? 10 ** v : v, y = Y(value);
    make('line', {x1: L, x2: W - R, y1: y, y2: y, class: 'rule'}, svg);
    make('text', {x: L - 6, y: y + 4, 'text-anchor': 'end'}, svg)
      .textContent = short(value) + (panel.percent ? '%' : '');
  }
  for (const v of ticks(x0, x1, 6))
    make('text', {x: X(v), y: H - 8, 'text-anchor': 'middle'}, svg)
      .textContent = short(v);
  const path = points => points.filter(keep).map(
    ([x, y], i) => (i ? 'L' : 'M') + X(x).toFixed(1) + ' ' + Y(y).toFixed(1)
  ).join('');
  const line = (points, c, more) => make('path', {
    d: path(points), fill: 'none', stroke: c.color, 'stroke-dasharray': c.dash,
    'vector-effect': 'non-scaling-stroke', ...more}, svg);
  const clip = y => y >= T - 1 && y <= H - B + 1;
  for (const c of curves)
    if (c.faint)
      line(c.raw.filter(p => keep(p) && clip(Y(p[1]))), c,
           {'stroke-width': 1, opacity: .18, 'stroke-dasharray': ''});
  for (const c of curves) {
    line(c.points, c, {'stroke-width': 1.8});
    if (c.few) for (const p of c.points.filter(keep))
      make('circle', {cx: X(p[0]), cy: Y(p[1]), r: 2.5, fill: c.color}, svg);
  }
  const mark = make('line', {y1: T, y2: H - B, class: 'rule'}, svg);
  mark.style.display = 'none';
  svg.onpointermove = event => {
    const box = svg.getBoundingClientRect();
    const scale = Math.min(box.width / W, box.height / H);
    const left = (box.width - W * scale) / 2;
    const at = (event.clientX - box.left - left) / scale;
    const x = x0 + (at - L) / (W - L - R) * (x1 - x0);
    const lines = []; let step = null;
    for (const c of curves) {
      let best = null;
      for (const p of c.points)
        if (!best || Math.abs(p[0] - x) < Math.abs(best[0] - x)) best = p;
      if (!best) continue;
      if (step === null) step = best[0];
      const row = document.createElement('div');
      const dot = document.createElement('span');
      dot.className = 'dot'; dot.style.background = c.color;
      row.append(dot, ` ${c.name} ${short(best[1])}`);
      lines.push(row);
    }
    const head = document.createElement('div');
    head.className = 'soft'; head.textContent = 'step ' + step;
    tip.replaceChildren(head, ...lines);
    tip.style.display = 'block';
    const px = event.clientX - box.left;
    tip.style.left = (px > box.width / 2 ? px - tip.offsetWidth - 2 : px + 24)
      + 'px';
    tip.style.top = event.clientY - box.top + 30 + 'px';
    mark.style.display = '';
    mark.setAttribute('x1', X(step)); mark.setAttribute('x2', X(step));
  };
  svg.onpointerleave = () => {
    tip.style.display = 'none'; mark.style.display = 'none';
  };
}
const cards = data.panels.map(panel => {
  const card = document.createElement('div'); card.className = 'card';
  const title = document.createElement('b'); title.textContent = panel.title;
  const svg = make('svg', {viewBox: `0 0 ${W} ${H}`});
  const tip = document.createElement('div'); tip.className = 'tip';
  card.append(title, svg, tip); byId('grid').append(card);
  return () => drawPanel(panel, svg, tip);
});
const draw = () => cards.forEach(drawCard => drawCard());
data.jobs.forEach((job, j) => {
  const key = document.createElement('span'); key.className = 'key';
  const dot = document.createElement('span'); dot.className = 'dot';
  dot.style.background = data.colors[j % data.colors.length];
  key.append(dot, ' ' + job.name);
  key.onclick = () => {
    hidden.has(j) ? hidden.delete(j) : hidden.add(j);
    key.classList.toggle('off'); draw();
  };
  byId('keys').append(key);
});
byId('smooth').oninput = draw;
byId('log').onchange = draw;
draw();
"""
