# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The progress line, word for word, and the speed that it shows."""

from __future__ import annotations

import dataclasses
import io
import threading
import time

import pytest

from pax.summaries import progress, throughput

RATE = throughput.Rate(steps_per_sec=2.0, unit='tokens', units_per_sec=81_234.0)


def _line(step, total, metrics, **speeds):
  return progress.line_text(progress.line_parts(step, total, metrics, **speeds))


def test_the_line():
  line = _line(40, 100, {'loss': 2.34567}, rate=RATE, mfu=0.384)
  assert line == (
    'step 40/100  loss 2.3457  2.00 steps/s  81.2k tokens/s  MFU 38.4%  ETA 30s'
  )
  waiting = _line(1, 2, {}, rate=RATE, input_wait=0.0123)
  assert waiting.endswith('tokens/s  input wait 1.2%  ETA 0s')
  images = dataclasses.replace(RATE, unit='examples')
  assert '81.2k examples/s' in _line(1, 2, {}, rate=images)
  several = _line(1, 2, {'loss': 1.0, 'acc': 0.5}, rate=RATE)
  assert several.endswith('tokens/s  ETA 0s  acc 0.5000')
  assert _line(1, 100, {}) == 'step 1/100'


def test_a_pipe_gets_plain_lines():
  stream = io.StringIO()
  shown = progress.Progress(3, stream)
  shown.update(1, {'loss': 1.0})
  shown.print('evaluated')
  shown.update(2, {'loss': 0.5}, rate=RATE)
  shown.close()
  first, note, second = stream.getvalue().splitlines()
  assert (first, note) == ('step 1/3  loss 1.0000', 'evaluated')
  assert second.startswith('step 2/3  loss 0.5000  2.00 steps/s')
  assert '\x1b' not in stream.getvalue()


class SlowPipe(io.StringIO):
  """Lets other threads write after each of its writes."""

  def write(self, text):
    count = super().write(text)
    time.sleep(0.02)
    return count


def test_lines_of_several_threads_are_whole():
  shown = progress.Progress(9, SlowPipe())
  threads = [
    threading.Thread(target=shown.print, args=(f'saved {i}',)) for i in range(3)
  ]
  for thread in threads:
    thread.start()
  shown.update(1, {'loss': 1.0})
  for thread in threads:
    thread.join()
  assert sorted(shown._stream.getvalue().splitlines()) == [
    'saved 0',
    'saved 1',
    'saved 2',
    'step 1/9  loss 1.0000',
  ]


def test_a_pipe_gets_a_line_for_each_minute_of_an_evaluation():
  stream, now = io.StringIO(), [1000.0]
  shown = progress.Progress(3, stream, clock=lambda: now[0])
  for label, secs, num_batches in (('eval a', 25, 6), ('eval b', 59, 2)):
    for index in range(num_batches):
      shown.batches(label, index)
      now[0] += secs
  shown.batches('eval b', 2, 7)
  assert stream.getvalue().splitlines() == [
    'eval a  3 batches',
    'eval b  2/7 batches',
  ]


def test_the_log_has_the_lines_of_the_console(caplog):
  caplog.set_level('INFO')
  stream = io.StringIO()
  bar = progress.Progress(total_steps=3, stream=stream)
  bar.update(1, {'loss': 0.5})
  bar.print('step 1  held_out loss 0.2500')
  assert [r.getMessage() for r in caplog.records] == (
    stream.getvalue().splitlines()
  )


@pytest.mark.parametrize(
  'value, text',
  [(0, '0'), (950, '950'), (8123, '8.12k'), (1.5e6, '1.5M'), (2e9, '2G')],
)
def test_short_numbers(value, text):
  assert progress.short_number(value) == text


@pytest.mark.parametrize(
  'seconds, text',
  [(6.6, '7s'), (185, '3m05s'), (7620, '2h07m'), (356400, '4d03h')],
)
def test_short_times(seconds, text):
  assert progress.short_time(seconds) == text


def test_throughput_by_a_clock():
  now = [100.0]
  speed = throughput.Throughput(10, 'examples', clock=lambda: now[0])
  assert speed.measure(0) is None
  now[0] += 4
  assert speed.measure(8) == throughput.Rate(
    steps_per_sec=2.0, unit='examples', units_per_sec=20.0
  )
  now[0] += 1
  with speed.pause():
    now[0] += 50
  now[0] += 1
  assert speed.measure(9).steps_per_sec == pytest.approx(0.5)
  assert speed.measure(9) is None


def test_the_log_has_a_line_a_minute(monkeypatch):
  now, lines = [0.0], []
  monkeypatch.setattr(
    progress.logging, 'info', lambda text, *args: lines.append(text % args)
  )
  log = progress.StatusLog(400, clock=lambda: now[0])
  for step, now[0] in enumerate([30.0, 61.0, 90.0, 122.0], 1):
    log.update(step, RATE if step != 4 else None)
  assert lines == [
    'step 2/400  2.00 steps/s  81.2k tokens/s  ETA 3m19s  0.5%  up 1m01s'
  ]
