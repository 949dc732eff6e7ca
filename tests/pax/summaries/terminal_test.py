# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: deps=//tests/integration:experiments
# bazel: deps=//tests/pax/summaries:progress_program
"""Progress in a pseudo-terminal: width, what is above the line, colours."""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket

import pytest

from tests.integration import binary
from tests.testing import programs, terminals

_PROGRAM = 'tests.pax.summaries.progress_program'
_ALL = (
  'step 4000/10000  loss 2.3457  2.00 steps/s  81.2k tokens/s  MFU 38.4%'
  '  input wait 1.0%  ETA 50m00s  skipped 3'
)


class Program:
  """A program whose stderr is a terminal or a file."""

  def __init__(self, stderr, *words, **variables):
    kept = ('CI', 'NO_COLOR', 'COLUMNS', 'TTY_COMPATIBLE', 'FORCE_COLOR')
    env = {k: v for k, v in programs.environment().items() if k not in kept}
    values = {
      'words': words,
      'env': env | {'TERM': 'xterm-256color'} | variables,
    }
    # How it ends, its output, its input.
    pairs = [socket.socketpair() for _ in range(3)]
    self._ends, output, self._input = self._sockets = [x for x, _ in pairs]
    answers, its_output, its_input = (x.fileno() for _, x in pairs)
    handles = answers, its_output, stderr, its_input
    programs.hand_over(json.dumps(values).encode(), handles, binary.PRELOADED)
    for _, its in pairs:
      its.close()
    self._answers, self._output = self._ends.makefile(), output.makefile()
    assert int(self._answers.readline()) > 0

  def run(self, line):
    self._input.sendall(f'{line}\n'.encode())
    assert self._output.readline() == 'done\n'

  def is_running(self):
    return not select.select([self._ends], [], [], 0)[0]

  def close(self):
    """Waits for its end, and closes what the test has of it."""
    self._input.shutdown(socket.SHUT_WR)
    assert self._answers.readline() == '0\n'
    for file in (self._answers, self._output, *self._sockets):
      file.close()


@contextlib.contextmanager
def _program(columns, **variables):
  terminal = terminals.Terminal(columns)
  program = Program(terminal.slave, _PROGRAM, **variables)
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
    program = Program(stderr.fileno(), _PROGRAM)
    program.run('update(4000); logging.warning("full"); shown.close()')
    program.close()
  assert file.read_text() == f'{_ALL}\npax: full\n'


def test_a_run(tmp_path):
  terminal = terminals.Terminal(100)
  words = [f'--exp={binary.EXPERIMENTS}.TinySpmd', f'--job_log_dir={tmp_path}']
  words += ['--host_device_count=1', binary.compilation_cache()]
  program = Program(terminal.slave, 'pax.main', *words)
  while program.is_running():
    terminal.read()
  lines = terminal.screen()
  program.close()
  [line] = [line for line in lines if line.startswith('step 20/20  loss')]
  assert 'examples/s' in line and 'ETA 0s' in line
  assert any(line.startswith('goodput') for line in lines)
  log = (tmp_path / 'logs' / 'train_0.log').read_text()
  assert '\x1b' not in log and 'step 20/20  loss' in log
  terminal.close()
