# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Signals of a program, also while its main thread is busy, and of others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from pax import stop_signals

# Prints a line when its signals are handled; the rest follows.
_PROGRAM = """
import os, signal, sys, time
from pax import stop_signals
stop_signals.install()
def ready():
  print('ready', flush=True)
"""


def _run(program, *numbers, ignored=()):
  """Runs a program, and sends signals to it when it is ready."""
  words = [sys.executable, '-c', _PROGRAM + textwrap.dedent(program)]
  if ignored:
    names = ' '.join(number.name.removeprefix('SIG') for number in ignored)
    words = ['sh', '-c', f'trap "" {names}; exec "$@"', 'sh', *words]
  process = subprocess.Popen(
    words,
    env=os.environ | {'PYTHONPATH': os.pathsep.join(filter(None, sys.path))},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  first = process.stdout.readline()
  assert first == 'ready\n', process.communicate(timeout=60)
  for number in numbers:
    process.send_signal(number)
  out, err = process.communicate(timeout=60)
  return process.returncode, out, err


@pytest.mark.parametrize('number', stop_signals.SIGNALS)
def test_before_the_first_step(number):
  code, out, err = _run('ready(); time.sleep(60)', number)
  name = stop_signals.name_of(number)
  assert (code, out) == (75, '')
  assert (
    err == f'pax: {name}: stopped before the first step; nothing was lost\n'
  )


def test_a_destructor_cannot_swallow_a_signal():
  """An exception of a handler in it would be ignored."""
  program = """
    class Busy:
      def __del__(self):
        ready()
        time.sleep(60)
    Busy()
  """
  assert _run(program, signal.SIGTERM)[0] == 75


def test_a_tool_ends_with_the_number_of_the_signal():
  program = """
    stop_signals.handle(stop_signals.stop_tool)
    print('ready', flush=True)
    sys.stdout.write('written')  # Without a line end: it is in the buffer.
    time.sleep(60)
  """
  code, out, err = _run(program, signal.SIGINT)
  assert (code, err) == (130, 'pax: stopped by Ctrl-C\n')
  assert out in ('', 'written')


def test_an_ignored_signal_stays_ignored():
  program = 'ready(); time.sleep(60)'
  code, _, err = _run(
    program, signal.SIGHUP, signal.SIGTERM, ignored=[signal.SIGHUP]
  )
  assert code == 75
  assert err.startswith('pax: SIGTERM')


def test_the_signals_of_a_forked_child_are_its_own():
  # Python 3.12 warns of threads, which the child does not use.
  program = """
    import warnings
    warnings.simplefilter('ignore', DeprecationWarning)
    child = os.fork()
    if not child:
      time.sleep(60)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    print('ready', flush=True)
    sys.exit(7 if os.waitstatus_to_exitcode(status) == -signal.SIGTERM else 8)
  """
  assert _run(program) == (7, '', '')


def test_the_end_of_the_process_waits_for_the_message():
  """The main thread does not end it in another way meanwhile."""
  program = """
    stop_signals.handle(
      lambda number, _: stop_signals.end_process(75, 'end', ready)
    )
    print('ready', flush=True)
    time.sleep(1)
    stop_signals.wait_if_ending()
  """
  code, _, err = _run(program, signal.SIGTERM)
  assert (code, err) == (75, 'pax: end\n')


def test_a_repeat_comes_later(monkeypatch):
  repeats = stop_signals._RepeatDetector()
  numbers = [signal.SIGTERM, signal.SIGTERM, signal.SIGHUP]
  assert not any(map(repeats.is_repeated, numbers))
  monkeypatch.setattr(stop_signals, 'REPEAT_SECS', 0)
  assert repeats.is_repeated(signal.SIGTERM)
