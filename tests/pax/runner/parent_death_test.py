# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Who holds a lifeline ends with the one that gave it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from pax.runner import parent_death

_WATCHES = """
import sys, time
from pax.runner import parent_death
parent_death.watch(float(sys.argv[1]))
if len(sys.argv) > 2:
  import signal
  signal.signal(signal.SIGTERM, lambda *_: None)
print('ready', flush=True)
while True:
  time.sleep(1)
"""


def _start(line, *words):
  path = os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))
  process = subprocess.Popen(
    [sys.executable, '-c', _WATCHES, *words],
    env=os.environ | {'PYTHONPATH': path} | line.environment,
    pass_fds=line.pass_fds,
    stdout=subprocess.PIPE,
  )
  assert process.stdout.readline() == b'ready\n'
  return process


@pytest.mark.parametrize(
  ('words', 'number'),
  [(['60'], signal.SIGTERM), (['0.1', 'deaf'], signal.SIGKILL)],
)
def test_the_end_of_the_starter(words, number):
  line = parent_death.ParentPipe()
  process = _start(line, *words)
  assert process.poll() is None
  line.close()
  assert process.wait(timeout=30) == -number
  process.stdout.close()


def test_without_a_lifeline_nothing_is_watched():
  before = threading.enumerate()
  parent_death.watch()
  assert threading.enumerate() == before
