# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Curves of jobs as a picture and as a page."""

from __future__ import annotations

import base64
import hashlib
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


def test_a_tag_that_no_job_has_is_a_warning(tmp_path, caplog):
  words = ['plot', job(tmp_path / 'a'), '--tag=los', '--tag=MFU']
  assert plot.main(words) == 0
  message = '--tag=los: no job has values of it; there are loss'
  assert [record.getMessage() for record in caplog.records] == [message]


def test_an_output_in_a_bucket_is_refused(tmp_path):
  words = ['plot', job(tmp_path / 'a'), '--output=gs://bucket/curves']
  with pytest.raises(ValueError, match='--output=gs://bucket/curves is a URL'):
    plot.main(words)


def test_names_cannot_end_the_data(tmp_path):
  strange = curves.Job(name='</script><b>', panels={}, goodput=None)
  text = html_page.text([strange], smoothing=0.5)
  assert '</script><b>' not in text


SCRIPT = '</script><img src=x onerror=alert(1)>'
HOSTILE = [
  {'time': 1, 'step': SCRIPT, 'split': 'train', 'loss': 1},
  {'time': 1, 'step': 60, 'split': SCRIPT, 'loss': 1, SCRIPT: 2},
  {'time': 1, 'step': 62, 'split': '$a_{\u2028\x1b[31m', 'loss': 1},
  {'time': 1, 'step': 64, 'split': '_a', 'loss': 1, '__proto__': 3},
  {'time': 1, 'step': 66, 'split': 'train', 'loss': [1]},
  {'time': 1, 'step': 68, 'split': 'train', 'loss': {'a': 1}},
  {'time': 1, 'step': 70, 'split': 'train', 'loss': 'NaN'},
  {'time': 1, 'step': 72, 'split': 'train', 'loss': 1e308},
  {'time': 1, 'step': 74, 'split': 'train', 'loss': 10**400},
  {'time': 1, 'step': 10**400, 'split': 'train', 'loss': 1},
  {'time': 1, 'step': 1.5, 'split': 'train', 'loss': 1},
  {'time': 1, 'step': 76, 'split': 7, 'loss': 1},
  {'step': 3},
  [1, 2],
  None,
]


def test_hostile_records_are_skipped_or_text(tmp_path, capsys):
  directory = job(tmp_path / '<b>$_{', steps=50)
  with open(f'{directory}/{writer.METRICS_FILE}', 'ab') as f:
    f.writelines(json.dumps(r).encode() + b'\n' for r in HOSTILE)
    f.write(b'\xff\xfe{"bad\n' + b'[' * 5000 + b'\n{"trunc')
  (tmp_path / '<b>$_{' / goodput.GOODPUT_FILE).write_text(
    '{"attempt": 1, "began": NaN}\n{"attempt": "<b>"}\n[]\n'
  )
  words = ['plot', directory, f'--tag={SCRIPT}', '--tag=__proto__']
  assert tool.run(plot.main, words) == 0
  shown = capsys.readouterr().out
  assert 'values are NaN or infinite: not drawn' in shown
  assert '\x1b' not in shown and '\u2028' not in shown
  text = (tmp_path / '<b>$_{' / 'curves.html').read_text()
  assert '<img' not in text and '<b>' not in text.replace('.card b', '')
  assert text.count('</script>') == 2
  (data,) = re.findall(r'id="data">(.*?)</script>', text, re.DOTALL)
  panels = json.loads(data, parse_constant=pytest.fail)['jobs'][0]['panels']
  assert SCRIPT in panels['Loss'] and panels['__proto__'] == {'_a': [[64, 3]]}
  assert panels['Loss']['train'][-1] == [48, 6.6]


def test_only_the_script_of_the_page_may_run():
  text = html_page.text([], smoothing=0.5)
  (script,) = re.findall(r'<script>(.*)</script>', text, re.DOTALL)
  digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
  assert f"script-src 'sha256-{digest}'" in text
  assert "default-src 'none'" in text


def test_a_job_of_nan_has_an_empty_picture(tmp_path, capsys):
  directory = tmp_path / 'nan'
  directory.mkdir()
  lines = [
    '{"time": 1, "step": 1, "split": "train", "loss": "nan"}',
    '{"time": 1, "step": 2, "split": "train", "loss": NaN}',
    '{"time": 1, "step": 3, "split": "train", "loss": Infinity}',
  ]
  (directory / writer.METRICS_FILE).write_text('\n'.join(lines))
  assert plot.main(['plot', str(directory)]) == 0
  assert '3 values are NaN or infinite' in capsys.readouterr().out
  assert (directory / 'curves.png').read_bytes().startswith(b'\x89PNG')


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
