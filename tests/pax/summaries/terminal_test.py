# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: deps=//pax/runner:job_log,//pax/summaries
# bazel: deps=//tests/integration:experiments
"""Progress in a pseudo-terminal: width, what is above the line, colours."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys

import pytest

from tests.testing import terminals

# Runs the lines of stdin, and says after each that it is done.
_PROGRAM = """
import logging, sys
from pax import stop_signals, summaries
from pax.runner import job_log

job_log.log_to_console()
now = [0.0]
shown = summaries.Progress(10000, clock=lambda: now[0])
rate = summaries.Rate(
  steps_per_sec=2.0, unit='tokens', units_per_sec=81_234.0
)

def update(step):
  now[0] += 1
  shown.update(
    step, {'loss': 2.34567, 'skipped': 3}, rate=rate, mfu=0.384, input_wait=0.01
  )

for line in sys.stdin:
  exec(line)
  print('done', flush=True)
"""
_ALL = (
  'step 4000/10000  loss 2.3457  2.00 steps/s  81.2k tokens/s  MFU 38.4%'
  '  input wait 1.0%  ETA 50m00s  skipped 3'
)


class Program:
  """The program above, its stderr on a terminal or in a file."""

  def __init__(self, stderr, **variables):
    path = os.pathsep.join(filter(None, sys.path))
    kept = ('CI', 'NO_COLOR', 'COLUMNS', 'TTY_COMPATIBLE', 'FORCE_COLOR')
    env = {k: v for k, v in os.environ.items() if k not in kept}
    self._process = subprocess.Popen(
      [sys.executable, '-c', _PROGRAM],
      env=env | {'PYTHONPATH': path, 'TERM': 'xterm-256color'} | variables,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=stderr,
      text=True,
    )

  def run(self, line):
    self._process.stdin.write(f'{line}\n')
    self._process.stdin.flush()
    assert self._process.stdout.readline() == 'done\n'

  def close(self):
    self._process.communicate()
    assert self._process.returncode == 0


@contextlib.contextmanager
def _program(columns, **variables):
  terminal = terminals.Terminal(columns)
  program = Program(terminal.slave, **variables)
  yield program, terminal
  program.close()
  terminal.close()


def test_the_line_fits_the_window_and_stays_the_last_one():
  with _program(140) as (program, terminal):
    program.run('update(4000)')
    [line] = terminal.screen()
    assert line.startswith(_ALL)
    # Of 24, 9.6.
    assert line[len(_ALL) :] == '  ' + 9 * '━' + '╸' + 14 * '━'
    assert '\x1b[36m' in terminal.text, 'the bar is cyan'
    terminal.resize(80)
    program.run('update(4001)')
    [line] = terminal.screen()
    assert line.rstrip() == (
      'step 4001/10000  loss 2.3457  81.2k tokens/s  MFU 38.4%  ETA 50m00s'
    )
    terminal.resize(46)
    program.run('update(4002)')
    [line] = terminal.screen()
    assert line == 'step 4002/10000  loss 2.3457  ETA 49m59s'
    terminal.resize(20)
    program.run('update(4003)')
    [line] = terminal.screen()
    assert line == 'step 4003/10000  lo'
    terminal.resize(46)
    program.run('update(4004)')
    program.run('logging.warning("the disk is %s", "full")')
    program.run('shown.print("step 4004  held_out loss [bold] 0.2500")')
    program.run('now[0] += 1; shown.batches("eval held_out", 3, 7)')
    assert terminal.screen() == [
      'pax: the disk is full',
      'step 4004  held_out loss [bold] 0.2500',
      'eval held_out  3/7 batches',
    ]
    program.run('stop_signals.print_message("SIGTERM: saving")')
    program.run('update(4005); shown.close()')
    assert terminal.screen()[-4:] == [
      'step 4004  held_out loss [bold] 0.2500',
      'pax: SIGTERM: saving',
      'step 4005/10000  loss 2.3457  ETA 49m58s',
      '',
    ]
    # The cursor is never hidden.
    assert '\x1b[?25' not in terminal.text


def test_no_colour():
  with _program(120, NO_COLOR='1') as (program, terminal):
    program.run('update(4000)')
    assert terminal.screen()[0].startswith('step 4000/10000  loss 2.3457')
    colours = re.findall(r'\x1b\[([\d;]*)m', terminal.text)
    assert not any(re.search(r'\b[34]\d', colour) for colour in colours)


@pytest.mark.parametrize('variable', [{'TERM': 'dumb'}, {'CI': 'true'}])
def test_terminals_that_keep_every_line_get_plain_ones(variable):
  with _program(80, **variable) as (program, terminal):
    program.run('update(1); update(4000)')
    program.run('now[0] += 1; shown.batches("eval held_out", 3, 7)')
    program.run('shown.close()')
    assert terminal.read().replace('\r\n', '\n').splitlines()[-1] == _ALL
    assert '\x1b' not in terminal.text and terminal.text.count('\n') == 2


def test_a_file_gets_plain_lines(tmp_path):
  file = tmp_path / 'stderr'
  with file.open('w') as stderr:
    program = Program(stderr)
    program.run('update(4000); logging.warning("full"); shown.close()')
    program.close()
  assert file.read_text() == f'{_ALL}\npax: full\n'


def test_a_run(tmp_path):
  terminal = terminals.Terminal(100)
  path = os.pathsep.join(filter(None, sys.path))
  variables = {'PYTHONPATH': path, 'TERM': 'xterm', 'CI': ''}
  words = ['--exp=tests.integration.experiments.TinySpmd']
  words += [f'--job_log_dir={tmp_path}', '--host_device_count=1']
  process = subprocess.Popen(
    [sys.executable, '-m', 'pax.main', *words, '--compilation_cache_dir='],
    env=os.environ | variables,
    stdout=subprocess.DEVNULL,
    stderr=terminal.slave,
  )
  while process.poll() is None:
    terminal.read()
  lines = terminal.screen()
  assert process.returncode == 0, lines
  [line] = [line for line in lines if line.startswith('step 20/20  loss')]
  assert 'examples/s' in line and 'ETA 0s' in line
  assert any(line.startswith('goodput') for line in lines)
  log = (tmp_path / 'logs' / 'train_0.log').read_text()
  assert '\x1b' not in log and 'step 20/20  loss' in log
  terminal.close()
