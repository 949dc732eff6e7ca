# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Processes that are launched together, with programs that need no JAX."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from pax.runner import command_line
from pax.tools import commands
from pax.tools.launching import job, launcher, process_group
from tests.testing import polling, programs

RUN = ['--', '--exp=E', '--job_log_dir=/tmp/d e']


def command(name, code, **environment):
  """A process that runs Python code."""
  return process_group.Command(
    name=name,
    words=[sys.executable, '-I', '-c', code],
    environment=environment,
  )


def test_lines_tell_who_wrote_them(capfd):
  code = process_group.run(
    [
      command('0', "print('one\\ntwo')"),
      command('1', "import sys; sys.stderr.write('three')"),
    ]
  )
  out, err = capfd.readouterr()
  assert code == 0
  assert out == '[0] one\n[0] two\n' and err == '[1] three\n'


def test_the_first_that_fails_ends_all(capfd):
  sleep = 'import time; time.sleep(60)'
  began = time.monotonic()
  code = process_group.run([command('0', sleep), command('1', 'exit(3)')])
  assert code == 3 and time.monotonic() - began < 10
  told = 'pax launch: 1 failed with exit code 3; ending 0\n'
  assert told in capfd.readouterr().err


def test_who_does_not_listen_is_killed(capfd):
  deaf = (
    'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);'
    "print('deaf', flush=True); time.sleep(60)"
  )
  dies = 'import os, time; time.sleep(0.5); os.kill(os.getpid(), 9)'
  commands_ = [command('0', deaf), command('1', dies)]
  assert process_group.run(commands_, grace_secs=0.5) == 128 + 9
  err = capfd.readouterr().err
  assert '1 was ended by SIGKILL; ending 0' in err
  assert 'killed 0' in err


def test_a_stop_that_saves_stays_one(capfd):
  """Code 75 of one lets the others save, however long."""
  saves = (
    "import signal, sys, time; print('up', flush=True)\n"
    'def save(*_): time.sleep(0.5); sys.exit(75)\n'
    'signal.signal(signal.SIGTERM, save); time.sleep(60)'
  )
  stops = 'import time; time.sleep(0.5); exit(75)'
  commands_ = [command('0', saves), command('1', stops)]
  assert process_group.run(commands_, grace_secs=0.1) == 75
  err = capfd.readouterr().err
  assert '1 was stopped by a signal; ending 0' in err and 'killed' not in err


def test_the_cause_of_a_lost_peer_is_awaited(capfd):
  """Code 76 is that of a process which lost another."""
  dies = 'import os, time; time.sleep(0.5); os.kill(os.getpid(), 9)'
  assert (
    process_group.run([command('0', 'exit(76)'), command('1', dies)]) == 128 + 9
  )
  err = capfd.readouterr().err
  assert '0 has lost another process\n' in err
  assert '1 was ended by SIGKILL\n' in err


def test_those_that_do_not_notice_a_loss_are_ended(capfd):
  sleep = 'import time; time.sleep(60)'
  commands_ = [command('0', 'exit(76)'), command('1', sleep)]
  assert process_group.run(commands_, grace_secs=0.5) == 76
  assert 'pax launch: ending 1\n' in capfd.readouterr().err


def test_what_does_not_exist_leaves_nothing_behind():
  missing = process_group.Command(name='1', words=['/does/not/exist'])
  with pytest.raises(FileNotFoundError):
    process_group.run([command('0', 'import time; time.sleep(60)'), missing])


LAUNCH = """
import sys
sys.path[:0] = {path}
from pax.tools import launch
sys.exit(launch.main(['launch', *sys.argv[1:]]))
"""
# Says who it is, and ends by a signal or when its starter is gone.
WATCHED = """
import os, sys, time
sys.path[:0] = {path}
from pax.runner import parent_death
def stop(number, frame):
  os.write(1, b'stopped by %d\\n' % number)
  sys.exit(75)
import signal
for number in (signal.SIGTERM, signal.SIGINT):
  signal.signal(number, stop)
parent_death.watch()
os.write(1, b'pid %d\\n' % os.getpid())
time.sleep(60)
"""


@pytest.fixture
def launched(tmp_path):
  """`pax launch` of two processes that wait; and their numbers."""
  program = tmp_path / 'program.py'
  program.write_text(WATCHED.format(path=sys.path))
  process = subprocess.Popen(
    [
      *(sys.executable, '-I', '-c', LAUNCH.format(path=sys.path)),
      *('--hosts=2', f'--program={sys.executable} -I {program}', *RUN),
    ],
    stdout=subprocess.PIPE,
    text=True,
  )
  lines = [process.stdout.readline() for _ in range(2)]
  yield process, [int(line.split()[-1]) for line in lines]
  process.stdout.close()
  process.kill()
  process.wait()


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_signals_go_to_all(launched, number):
  process, _ = launched
  process.send_signal(number)
  assert process.wait(20) == 75
  told = sorted(process.stdout.read().splitlines())
  assert told == [f'[{i}] stopped by {int(number)}' for i in (0, 1)]


def test_no_process_outlives_a_launcher_that_is_killed(launched):
  process, pids = launched
  process.kill()
  process.wait()
  polling.wait_until(lambda: not any(map(programs.is_running, pids)), 20)


def test_processes_here():
  parsed = job.parse(
    [
      'launch',
      *('--hosts=4', '--slices=2', '--devices_per_host=3'),
      *('--gpus_per_host=2', '--env=A=b=c', '--port=7', *RUN),
    ]
  )
  found = launcher.local_commands(parsed)
  assert [c.name for c in found] == ['0', '1', '2', '3']
  assert found[3].words == [
    *(sys.executable, '-m', 'pax.main', '--exp=E', '--job_log_dir=/tmp/d e'),
    *('--host_device_count=3', '--multiprocess_gpu'),
    *('--server_addr=localhost:7', '--num_hosts=4', '--host_idx=3'),
  ]
  told = [c.environment for c in found]
  assert [e['JAX_PARTITION_INDEX'] for e in told] == ['0', '0', '1', '1']
  assert [e['CUDA_VISIBLE_DEVICES'] for e in told[:2]] == ['0,1', '2,3']
  assert told[0]['A'] == 'b=c'


def test_processes_elsewhere():
  """The shell there sees what was typed here."""
  parsed = job.parse(['launch', '--ssh=alpha,me@beta', '--env=A=x y', *RUN])
  first, second = launcher.ssh_commands(parsed)
  assert (first.name, second.name) == ('alpha', 'me@beta')
  assert first.is_remote and second.words[0] == 'ssh'
  assert second.words[-2] == 'me@beta'
  show = 'import json, sys, os; print(json.dumps([os.environ["A"], sys.argv]))'
  line = second.words[-1].replace(
    ' pax ', f' {sys.executable} -I -c {shlex.quote(show)} '
  )
  done = subprocess.run(line, shell=True, capture_output=True, check=True)
  assert json.loads(done.stdout) == [
    'x y',
    [
      *('-c', '--exp=E', '--job_log_dir=/tmp/d e', '--multiprocess_gpu'),
      *('--server_addr=alpha:8476', '--num_hosts=2', '--host_idx=1'),
    ],
  ]
  assert 'PAX_LIFELINE=0' in second.words[-1]


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    (['--hosts=2'], 'flags of the run follow --'),
    (['--exp=E'], 'no flag --exp'),
    (['two', *RUN], "'two' belongs to no flag"),
    (['--hosts=0', *RUN], '--hosts must be an integer at least 1, got 0'),
    (['--hosts=3', '--slices=2', *RUN], '--slices=2 does not divide'),
    (['--ssh=a,', *RUN], 'has a machine'),
    (['--ssh=-oProxyCommand=x', *RUN], 'has a machine'),
    (['--ssh=a,b', '--hosts=3', *RUN], 'contradict each other'),
    (['--env=A', *RUN], 'NAME=VALUE'),
    (['--name=My_Job', *RUN], 'lower-case letters'),
    (['--print=pbs', *RUN], 'must be one of gcloud, jobset, slurm, ssh'),
    (['--print=jobset', *RUN], 'needs --image too'),
    (['--print=gcloud', *RUN], 'needs --tpu too'),
    (['--print=ssh', *RUN], 'needs --ssh too'),
  ],
)
def test_what_cannot_be_meant(words, message, capsys):
  assert commands.run(['pax', 'launch', *words]) == 1
  assert message in capsys.readouterr().err


def test_help_is_the_launchers_before_the_dashes_only():
  with pytest.raises(command_line.HelpRequested, match='--ssh'):
    job.parse(['launch', '--help'])
  assert job.parse(['launch', '--', '--help']).words == ('--help',)


def test_what_runs_here_is_this_pax():
  parsed = job.parse(['launch', *RUN])
  (only,) = launcher.local_commands(parsed)
  assert only.environment['PYTHONPATH'].split(os.pathsep) == sys.path
