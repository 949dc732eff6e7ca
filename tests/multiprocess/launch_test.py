# SPDX-License-Identifier: Apache-2.0
"""`pax launch` trains; a job that loses a process ends, and goes on later."""

# bazel: size=large
# bazel: deps=//tests/multiprocess:experiments,//pax/tools:launch_lib
from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tests.integration import binary
from tests.multiprocess import standins

EXPERIMENTS = 'tests.multiprocess.experiments'
LAUNCH = 'import sys; from pax.tools import launch; sys.exit(launch.main())'
MESH = '--set=ICI_MESH_SHAPE=[1,4,1]'


@pytest.fixture(scope='module')
def found():
  with standins.StandIns() as programs:
    yield programs


def launch(found, directory, *words, flags):
  return subprocess.run(
    [
      *(sys.executable, '-c', LAUNCH, *flags, '--devices_per_host=2'),
      *('--', f'--exp={EXPERIMENTS}.TinyKilled', f'--job_log_dir={directory}'),
      *(binary.compilation_cache(), MESH, *words),
    ],
    env=found.environment,
    capture_output=True,
    text=True,
    timeout=binary.TIMEOUT_SECS,
    check=False,
  )


def test_who_loses_a_process_ends_at_once_and_goes_on_later(tmp_path, found):
  words = ['--set=BATCH_SIZE=4', '--set=SAVE_EVERY=2', '--set=NUM_STEPS=16']
  words += [f'--set=train_input.done={tmp_path / "done"}', '--set=SECONDS=0.1']
  # Real ones: who hangs in an exchange ends with its stand-in no sooner than
  # its lifeline says.
  ended = launch(found, tmp_path / 'job', *words, flags=['--hosts=2'])
  assert ended.returncode == 128 + 9, ended.stderr
  # It ends process 0, unless that has noticed the loss before.
  assert 'pax launch: 1 was ended by SIGKILL' in ended.stderr
  ends = (
    'pax launch: 1 was ended by SIGKILL; ending 0\n',
    'pax launch: 0 has lost another process\n',
  )
  assert any(end in ended.stderr for end in ends), ended.stderr
  names = binary.checkpoint_names(tmp_path / 'job')
  assert 'checkpoint_00000002' in names
  # The same command again, over ssh.
  flags = ['--ssh=alpha,beta', f'--port={binary.free_port()}']
  ended = launch(found, tmp_path / 'job', *words, flags=flags)
  assert ended.returncode == 0, ended.stderr
  assert '[alpha] step 16/16' in ended.stderr
  assert 'step 1/16' not in ended.stderr
  single = binary.run(
    'TinySpmd', tmp_path / 'single', MESH, '--set=NUM_STEPS=16', devices=4
  )
  assert single.returncode == 0, single.stderr
  got, wanted = (binary.losses(tmp_path / name) for name in ('job', 'single'))
  assert sorted(got) == list(range(16))
  np.testing.assert_allclose(
    [got[step] for step in range(16)],
    [wanted[step] for step in range(16)],
    rtol=1e-5,
  )


def test_an_error_of_one_is_the_error_of_all(tmp_path, found):
  ended = launch(
    found,
    tmp_path,
    '--set=NO_SUCH=1',
    flags=['--hosts=2', f'--program={found.pax}'],
  )
  assert ended.returncode == 1
  assert 'pax: error: ' in ended.stderr and 'NO_SUCH' in ended.stderr
