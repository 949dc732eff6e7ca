# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Curves of jobs as a picture and as a page."""

from __future__ import annotations

import json
import re

import pytest

from pax.plotting import curves, html_page
from pax.runner import command_line
from pax.summaries import goodput, writer
from pax.tools import plot, tool


def job(folder, steps=100, **more):
  """A job directory with metrics, as a run writes them."""
  folder.mkdir(parents=True)
  jsonl = writer.JsonlWriter(str(folder / writer.METRICS_FILE))
  for step in range(0, steps, 2):
    scalars = {'loss': 9.0 - step / 20, 'learning/lr': 0.5, 'MFU': 0.25}
    jsonl.write(step, scalars | more)
  jsonl.write(steps, {'loss': 5.5}, 'eval_test_held_out')
  jsonl.close()
  return str(folder)


def test_a_job_that_still_runs(tmp_path, capsys):
  directory = job(tmp_path / 'a')
  with open(f'{directory}/{writer.METRICS_FILE}', 'a') as f:
    f.write('{"step": 100, "lo')
  recorder = goodput.Recorder(f'{directory}/{goodput.GOODPUT_FILE}')
  recorder.close()
  assert plot.main(['plot', directory]) == 0
  told = capsys.readouterr().out
  assert 'a: step 100' in told and 'goodput' in told
  assert re.search(r'Loss +train +4\.1\n', told)
  assert re.search(r'Loss +eval_test_held_out +5\.5\n', told)
  picture = (tmp_path / 'a' / 'curves.png').read_bytes()
  assert picture.startswith(b'\x89PNG') and len(picture) > 20_000
  assert not list((tmp_path / 'a').glob('*.partial'))


def test_the_page_holds_all_it_needs(tmp_path):
  first = job(tmp_path / 'x' / 'run')
  second = job(tmp_path / 'y' / 'run', note='</script>' and 1.0)
  output = tmp_path / 'out' / 'both'
  words = [first, second, f'--output={output}', '--tag=note']
  assert plot.main(['plot', *words]) == 0
  text = (tmp_path / 'out' / 'both.html').read_text()
  assert not re.search(r'(src|href)=|https?://(?!www\.w3\.org)', text)
  found = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1]
  data = json.loads(found)
  assert [j['name'] for j in data['jobs']] == ['x/run', 'y/run']
  titles = [p['title'] for p in data['panels']]
  assert titles == ['Loss', 'Learning rate', 'MFU', 'note']
  mfu = data['jobs'][0]['panels']['MFU']['train']
  assert mfu[0] == [0, 25.0]
  assert 'note' not in data['jobs'][0]['panels']
  assert '<td>25.0%</td>' in text


def test_names_cannot_end_the_data(tmp_path):
  strange = curves.Job(name='</script><b>', panels={}, goodput=None)
  text = html_page.text([strange], smoothing=0.5)
  assert '</script><b>' not in text


def test_smoothing_begins_at_the_first_value():
  points = [(0, 4.0), (1, 0.0), (2, 2.0)]
  half = curves.smoothed(points, 0.5)
  assert half == [
    (0, 4.0),
    (1, pytest.approx(4 / 3)),
    (2, pytest.approx(12 / 7)),
  ]
  assert curves.smoothed(points, 0.0) == points


def test_long_curves_are_thinned_but_end_where_they_end(tmp_path):
  (found,) = curves.read_jobs([job(tmp_path / 'long', steps=20_000)])
  points = found.panels['Loss']['train']
  assert len(points) <= 2000 and points[-1][0] == 19_998


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    ([], 'which job'),
    (['--smoothing=1', 'x'], 'must be a finite number at least 0 and below 1'),
    (['/nonexistent'], 'has no metrics.jsonl'),
  ],
)
def test_wrong_words(words, message, capsys):
  assert tool.run(plot.main, ['plot', *words]) == 1
  assert message in capsys.readouterr().err


def test_words_stand_anywhere():
  found = command_line.parse(plot.Options, ['plot', 'a', '--tag=x', 'b'], '')
  assert found.job_log_dirs == ('a', 'b') and found.tag == ('x',)
