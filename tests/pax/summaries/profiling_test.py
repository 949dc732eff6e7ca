# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Traces start and end at the configured steps."""

from __future__ import annotations

import os
import socket

import jax
import pytest

from pax.summaries import profiling


@pytest.fixture
def calls(tmp_path, monkeypatch):
  made = []
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'dir').mkdir()
  monkeypatch.setattr(
    jax.profiler, 'start_trace', lambda path: made.append(f'start {path}')
  )
  monkeypatch.setattr(jax.profiler, 'stop_trace', lambda: made.append('stop'))
  return made


def run(profiler, steps):
  for step in steps:
    profiler.step(step)


def test_some_steps_are_traced(calls):
  profiler = profiling.StepProfiler('dir', capture_step=3, num_steps=2)
  run(profiler, range(3))
  assert calls == []
  run(profiler, range(3, 5))
  assert calls == ['start dir']
  run(profiler, range(5, 9))
  profiler.close()
  assert calls == ['start dir', 'stop']


def test_an_open_trace_is_closed(calls):
  profiler = profiling.StepProfiler('dir', capture_step=0, num_steps=5)
  run(profiler, range(2))
  profiler.close()
  profiler.close()
  assert calls == ['start dir', 'stop']


def test_a_trace_lasts_its_minimal_duration(calls):
  seconds = iter([10.0, 10.5, 11.5])
  profiler = profiling.StepProfiler(
    'dir', 1, num_steps=1, min_duration_secs=1.0, clock=lambda: next(seconds)
  )
  run(profiler, range(3))
  assert calls == ['start dir']
  run(profiler, range(3, 6))
  assert calls == ['start dir', 'stop']


@pytest.mark.parametrize('capture_step, num_steps', [(None, 2), (1, 0)])
def test_nothing_is_traced_unless_asked(calls, capture_step, num_steps):
  profiler = profiling.StepProfiler('dir', capture_step, num_steps)
  run(profiler, range(5))
  profiler.close()
  assert calls == []


def test_a_missing_directory_is_not_created(calls, tmp_path):
  (tmp_path / 'dir').rmdir()
  profiler = profiling.StepProfiler('dir', capture_step=0)
  run(profiler, range(5))
  profiler.close()
  assert calls == []


def test_a_second_trace_is_a_warning(calls, monkeypatch, caplog):
  def fail(path):
    raise RuntimeError('Profile has already been started')

  monkeypatch.setattr(jax.profiler, 'start_trace', fail)
  profiler = profiling.StepProfiler('dir', capture_step=1, num_steps=1)
  run(profiler, range(4))
  profiler.close()
  assert calls == []
  assert 'Another trace runs' in caplog.text


def test_the_trace_is_that_of_this_host(calls, tmp_path, monkeypatch):
  def write():
    folder = tmp_path / 'dir/plugins/profile/now'
    folder.mkdir(parents=True)
    (folder / 'here.xplane.pb').touch()
    # Another host, which shares the directory, is not done.
    (folder / 'there.xplane.pb').touch()
    os.utime(folder / 'here.xplane.pb', (1, 1))

  monkeypatch.setattr(jax.profiler, 'stop_trace', write)
  monkeypatch.setattr(socket, 'gethostname', lambda: 'here')
  written = []
  profiler = profiling.StepProfiler(
    'dir', 1, num_steps=1, on_written=lambda file: written.append(file.name)
  )
  run(profiler, range(4))
  assert written == ['here.xplane.pb']


def test_a_profile_that_cannot_be_written_is_a_warning(
  calls, monkeypatch, caplog
):
  def fail():
    raise RuntimeError('No space left on device')

  monkeypatch.setattr(jax.profiler, 'stop_trace', fail)
  run(profiling.StepProfiler('dir', capture_step=0), range(5))
  assert 'profile cannot be written: No space left' in caplog.text
