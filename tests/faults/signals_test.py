# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: tags=nightly
"""Signals at moments from the start of the process to its exit.

Each ends with a documented exit code and one line on stderr that is true, and
the next start continues as if nothing had happened.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from concurrent import futures

import pytest

from pax import stop_signals
from tests.faults import harness
from tests.integration import binary
from tests.testing import polling, programs

NUM_START_MOMENTS, NUM_LOOP_MOMENTS = 30, 20
NUM_STEPS = 40
# CPU time of the interpreter and of `pax.main` until signals are handled.
FIRST_CPU_SECS = 0.3
FLAGS = (f'--set=NUM_STEPS={NUM_STEPS}', '--set=SECONDS=0.02')
# Of so many stopped jobs one is started again.
RESTART_EVERY = 6

AT_START = 'stopped before the first step; nothing was lost'
IN_LOOP = 'finishing the step, then saving (repeat to stop at once)'
AT_END = (
  'saving, then stopping (repeat to stop at once)',
  'the job had ended; nothing was lost',
)
NAMES = tuple(stop_signals.name_of(n) for n in stop_signals.SIGNALS)


def test_signals_from_exec_to_exit(tmp_path, report):
  """At CPU times until the first step, then at numbers of steps."""
  _job(tmp_path / 'uninterrupted').finish()  # Fills the compilation cache.
  process = _start(_job(tmp_path / 'measured'))
  binary.wait_for_losses(tmp_path / 'measured', 1)
  start_secs = programs.cpu_secs(process.pid)
  process.communicate(timeout=harness.TIMEOUT_SECS)

  def stop(moment: int) -> str:
    number = stop_signals.SIGNALS[moment % len(stop_signals.SIGNALS)]
    job = _job(tmp_path / str(moment))
    in_loop = moment - NUM_START_MOMENTS
    if in_loop >= 0:
      num_steps = 1 + in_loop * NUM_STEPS // NUM_LOOP_MOMENTS
      return _stop(
        job, number, lambda _: binary.wait_for_losses(job.directory, num_steps)
      )
    share = moment / NUM_START_MOMENTS
    seconds = FIRST_CPU_SECS + (start_secs - FIRST_CPU_SECS) * share
    return _stop(job, number, lambda pid: _wait_for_cpu(pid, seconds))

  moments = range(NUM_START_MOMENTS + NUM_LOOP_MOMENTS)
  with futures.ThreadPoolExecutor(2) as pool:
    phases = list(pool.map(stop, moments))
  counts = {phase: phases.count(phase) for phase in sorted(set(phases))}
  assert counts.keys() >= {'at_start', 'in_loop'}, counts
  for moment in moments[::RESTART_EVERY]:
    job = _job(tmp_path / str(moment))
    job.finish()
    harness.check_losses(job, NUM_STEPS)
  report(signals=len(moments), **counts)


@pytest.mark.parametrize('delay', [0, 0.5, 1, 1.5, 2, 2.5, 3, 4])
def test_a_signal_to_one_of_two_processes(tmp_path, report, delay):
  """From the moment they are connected, it ends both."""
  job = harness.Job(tmp_path, num_processes=2, flags=FLAGS)
  life = job.start('--set=SECONDS=0.1')
  binary.wait_for_file(tmp_path / 'config.json')
  time.sleep(delay)
  life.signal(signal.SIGTERM, index=int(2 * delay) % 2)
  completed = life.wait()
  codes = [c.returncode for c in completed]
  assert codes in ([75, 75], [0, 0]), completed
  for process in completed:
    assert len(_messages(process.stderr)) <= 1, process.stderr
  report(signals=1)
  job.finish()
  harness.check_losses(job, NUM_STEPS)


def test_two_processes_save_on_demand_and_continue(tmp_path, report):
  job = harness.Job(
    tmp_path,
    flags=[
      '--noexit_after_ondemand_checkpoint',
      '--set=SAVE_EVERY=100000',
      '--set=SECONDS=0.02',
      '--set=task.train.save_max_to_keep=9',
    ],
    num_processes=2,
  )
  life = job.start('--set=NUM_STEPS=100000')
  for process in (1, 0, 1):
    before = job.newest_step()
    # The save of this step would be the same.
    harness.wait_until(lambda: _last_loss(job) > before, life)  # noqa: B023
    life.signal(signal.SIGTERM, process)
    harness.wait_until(lambda: job.newest_step() > before, life)  # noqa: B023
  assert len(job.checkpoints()) == 4
  life.signal(signal.SIGINT, 0)
  completed = life.wait()
  assert [c.returncode for c in completed] == [75, 75], completed
  for process in completed:
    assert process.stderr.count('saving before the next step') == 3
  job.finish(f'--set=NUM_STEPS={job.newest_step() + 4}')
  report(signals=4, losses=harness.check_losses(job, job.newest_step()))


def _last_loss(job: harness.Job) -> int:
  """Returns the last step with a loss, -1 without one."""
  if not (job.directory / 'metrics.jsonl').exists():
    return -1
  return max((step for step, _ in harness.loss_bits(job.directory)), default=-1)


def test_the_input_of_one_of_two_processes_stalls(tmp_path, report):
  """The other computes a step that needs its batch: no state is common."""
  waits = tmp_path / 'waits'
  job = harness.Job(tmp_path, exp='TinyHanging', num_processes=2)
  flags = ['--set=train_input.host=1', f'--set=train_input.waits={waits}']
  life = job.start(*flags)
  binary.wait_for_file(waits)
  # All before the missing batch.
  binary.wait_for_losses(tmp_path, 4)
  life.signal(signal.SIGTERM, index=0)
  completed = life.wait()
  assert [c.returncode for c in completed] == [75, 75], completed
  for process in completed:
    assert 'the input of process 1 gave no batch within 30 s' in process.stderr
    assert 'steps after the last checkpoint are lost' in process.stderr
  report(signals=1)


def test_two_processes_hang_and_save(tmp_path, report):
  """The watchdog of either requests a stop; both wait for the same batch."""
  job = harness.Job(tmp_path, exp='TinyHanging', num_processes=2)
  completed = job.start('--hang_timeout_secs=5').wait()
  assert [c.returncode for c in completed] == [124, 124], completed
  assert any('pax: hang: no step for 5 s' in c.stderr for c in completed)
  assert all('pax: hang' in c.stderr for c in completed)
  assert job.newest_step() == 4
  report(hangs=1)


def test_a_signal_while_processes_wait_for_another(tmp_path):
  """A process that waits to be joined stops at once."""
  words = ['--multiprocess_gpu', '--num_hosts=2', '--host_idx=0']
  words.append(f'--server_addr=localhost:{binary.free_port()}')
  process = _start(_job(tmp_path), *words)
  log = tmp_path / 'logs'
  time.sleep(5)
  assert process.poll() is None and not log.exists()
  process.send_signal(signal.SIGTERM)
  _, err = process.communicate(timeout=harness.TIMEOUT_SECS)
  assert process.returncode == harness.PREEMPTED, err
  assert _messages(err) == [f'pax: SIGTERM: {AT_START}']


def test_the_terminal_is_closed(tmp_path, report):
  """SIGHUP: the job saves, although it can no longer print."""
  terminal, stream = os.openpty()

  def control() -> None:
    fcntl.ioctl(stream, termios.TIOCSCTTY, 0)

  job = _job(tmp_path)
  process = subprocess.Popen(
    _command(job, '--set=SECONDS=0.1', '--set=NUM_STEPS=1000'),
    env=programs.environment(),
    stdin=stream,
    stdout=stream,
    stderr=stream,
    start_new_session=True,
    preexec_fn=control,
  )
  os.close(stream)
  binary.wait_for_losses(tmp_path, 3)
  os.close(terminal)
  assert process.wait(harness.TIMEOUT_SECS) == harness.PREEMPTED
  assert job.newest_step() == len(binary.losses(tmp_path))
  report(signals=1)


def _job(directory: pathlib.Path) -> harness.Job:
  return harness.Job(directory, flags=FLAGS)


def _command(job: harness.Job, *words: str) -> list[str]:
  return [sys.executable, '-m', 'pax.main', *job.words(), *job.flags, *words]


def _start(job: harness.Job, *words: str) -> subprocess.Popen[str]:
  """Starts a job from exec on, with all imports."""
  return subprocess.Popen(
    _command(job, *words),
    env=programs.environment(),
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
  )


def _wait_for_cpu(pid: int, seconds: float) -> None:
  """Waits until a process has used so much CPU time, on a busy machine too."""
  polling.wait_until(
    lambda: programs.cpu_secs(pid) >= seconds, harness.TIMEOUT_SECS
  )


def _stop(
  job: harness.Job, number: signal.Signals, wait: Callable[[int], None]
) -> str:
  """Sends a signal to a new start after a wait; returns the phase it met.

  Args:
    job: The job.
    number: The signal.
    wait: The wait; takes the number of the process.
  """
  process = _start(job)
  wait(process.pid)
  process.send_signal(number)
  _, err = process.communicate(timeout=harness.TIMEOUT_SECS)
  name, step = stop_signals.name_of(number), job.newest_step()
  context = (job.directory, number, process.returncode, step, err)
  messages = [
    line.removeprefix(f'pax: {name}: ').strip() for line in _messages(err)
  ]
  if process.returncode == harness.DONE:
    assert step == NUM_STEPS, context
    assert not messages or messages[0] in (IN_LOOP, *AT_END), context
    return 'at_end'
  assert process.returncode == harness.PREEMPTED, context
  (message,) = messages
  if message == AT_START:
    assert step == 0, context
    return 'at_start'
  assert message == IN_LOOP, context
  assert step == len(binary.losses(job.directory)), context
  return 'in_loop'


def _messages(err: str) -> list[str]:
  """Returns the lines about signals."""
  starts = tuple(f'pax: {name}' for name in NAMES)
  return [line for line in err.splitlines() if line.startswith(starts)]
