# SPDX-License-Identifier: Apache-2.0
"""What `pax launch --print` prints, run: two processes train two steps."""

# bazel: size=large
from __future__ import annotations

import os
import re
import subprocess

import numpy as np
import pytest
import yaml

from pax.tools import commands
from tests.integration import binary
from tests.multiprocess import standins
from tests.testing import nightly

STEPS = 2


@pytest.fixture(scope='module')
def found():
  with standins.StandIns() as programs:
    yield programs


@pytest.fixture(scope='module')
def single(tmp_path_factory):
  """The losses of one process."""
  directory = tmp_path_factory.mktemp('single')
  ended = binary.run(
    'TinySpmd',
    directory,
    '--set=ICI_MESH_SHAPE=[1,2,1]',
    f'--set=NUM_STEPS={STEPS}',
    devices=2,
  )
  assert ended.returncode == 0, ended.stderr
  return binary.losses(directory)


@pytest.fixture
def recipe(tmp_path, capsys):
  """Prints one for a tiny run in `tmp_path / 'job'`."""

  def make(*flags, words=()):
    code = commands.run(
      [
        *('pax', 'launch', *flags, '--devices_per_host=1', '--'),
        f'--exp={binary.EXPERIMENTS}.TinySpmd',
        f'--job_log_dir={tmp_path / "job"}',
        *(binary.compilation_cache(), '--set=ICI_MESH_SHAPE=[1,2,1]'),
        *('--set=BATCH_SIZE=4', f'--set=NUM_STEPS={STEPS}', *words),
      ]
    )
    printed = capsys.readouterr()
    assert code == 0, printed.err
    file = tmp_path / 'recipe'
    file.write_text(printed.out)
    return file

  return make


def run(file, *words, env, cwd=None):
  return subprocess.run(
    ['bash', str(file), *words],
    env=env,
    cwd=cwd,
    capture_output=True,
    text=True,
    timeout=binary.TIMEOUT_SECS,
    check=False,
  )


def assert_trained(tmp_path, ended, single):
  assert ended.returncode == 0, ended.stderr
  losses = binary.losses(tmp_path / 'job')
  assert losses.keys() == single.keys()
  np.testing.assert_allclose(
    list(losses.values()), [single[step] for step in losses], rtol=1e-5
  )
  # Of each process.
  assert len(list((tmp_path / 'job/logs').iterdir())) == 2


def slurm(found, file):
  """What sbatch sets for the lines that it reads."""
  lines = re.findall(r'^#SBATCH --([\w-]+)=(.*)', file.read_text(), re.M)
  options = dict(lines)
  return found.environment | {
    'SLURM_JOB_ID': str(binary.free_port() % 4096),
    'SLURM_NNODES': options['nodes'],
    'SLURM_NTASKS': options['nodes'],
    'SLURM_NTASKS_PER_NODE': options['ntasks-per-node'],
  }


def test_slurm(tmp_path, found, recipe, single):
  """JAX finds the processes by itself."""
  file = recipe('--print=slurm', '--hosts=2', '--slices=2')
  assert_trained(tmp_path, run(file, env=slurm(found, file)), single)


@pytest.mark.parametrize(
  ('code', 'restarts'),
  [(1, False), (3, False), (75, True), (76, True), (124, True), (137, True)],
)
def test_slurm_begins_again_unless_it_failed(
  tmp_path, found, recipe, code, restarts
):
  program = ends_with(tmp_path, code)
  file = recipe('--print=slurm', '--hosts=2', f'--program={program}')
  env = slurm(found, file) | {'SLURM_JOB_ID': '77'}
  ended = run(file, env=env)
  assert ended.returncode == code
  assert ended.stdout == 'scontrol requeue 77\n' * restarts
  ended = run(file, env=env | {'SLURM_RESTART_COUNT': '100'})
  assert (ended.returncode, ended.stdout) == (code, '')


def ends_with(tmp_path, code):
  """A program that exits with a code."""
  file = tmp_path / 'program'
  file.write_text(f'#!/bin/bash\nexit {code}\n')
  file.chmod(0o755)
  return file


def test_ssh(tmp_path, found, recipe, single):
  port = binary.free_port()
  file = recipe('--print=ssh', '--ssh=alpha,me@beta', f'--port={port}')
  assert_trained(tmp_path, run(file, env=found.environment), single)


def test_ssh_ends_all_when_one_fails(tmp_path, found, recipe):
  program = tmp_path / 'program'
  # The second fails, and the first ends when it is told.
  program.write_text(
    '#!/bin/bash\n[[ "$*" == *host_idx=1 ]] && exit 3\ncat; exit 75\n'
  )
  program.chmod(0o755)
  file = recipe('--print=ssh', '--ssh=alpha,beta', f'--program={program}')
  assert run(file, env=found.environment).returncode == 3


def test_ssh_ends_with_the_cause_of_a_lost_peer(tmp_path, found, recipe):
  program = tmp_path / 'program'
  program.write_text(
    '#!/bin/bash\n[[ "$*" == *host_idx=1 ]] && exit 76\nsleep 0.5; exit 9\n'
  )
  program.chmod(0o755)
  file = recipe('--print=ssh', '--ssh=alpha,beta', f'--program={program}')
  assert run(file, env=found.environment).returncode == 9


def pods(file, env):
  """(command, environment) of each pod, as Kubernetes makes them."""
  spec = yaml.safe_load(file.read_text())
  (job,) = spec['spec']['replicatedJobs']
  made = job['template']['spec']
  pod = made['template']['spec']
  (container,) = pod['containers']
  assert made['completionMode'] == 'Indexed'
  # Errors that a new start would repeat end the job.
  (rule,) = made['podFailurePolicy']['rules']
  assert rule['action'] == 'FailJob'
  assert rule['onExitCodes']['values'] == [1, 2, 3]
  (rule,) = spec['spec']['failurePolicy']['rules']
  assert rule['action'] == 'FailJobSet'
  assert made['completions'] == made['parallelism']
  name = spec['metadata']['name']
  first = f'{name}-{job["name"]}-0-0.{name}'
  # Headless services give pods these names.
  command = [
    word.replace('$$(', '$(').replace(f'={first}:', '=localhost:')
    for word in container['command']
  ]
  for replica in range(job['replicas']):
    annotations = {'jobset.sigs.k8s.io/job-index': str(replica)}
    for index in range(made['completions']):
      own = {'JOB_COMPLETION_INDEX': str(index)}
      for variable in container['env']:
        if 'value' in variable:
          own[variable['name']] = variable['value'].replace('$$(', '$(')
          continue
        path = variable['valueFrom']['fieldRef']['fieldPath']
        key = re.fullmatch(r"metadata\.annotations\['(.*)'\]", path)[1]
        own[variable['name']] = annotations[key]
      yield command, env | own


@pytest.mark.parametrize('slices', [*nightly.cases(1), 2])
def test_jobset(tmp_path, found, recipe, single, slices):
  file = recipe(
    *('--print=jobset', '--image=example.com/pax:1', '--hosts=2'),
    *(f'--slices={slices}', '--env=PRICE=$(A)5'),
    f'--port={binary.free_port()}',
  )
  started = [
    subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    for command, env in pods(file, found.environment)
  ]
  assert len(started) == 2
  for process in started:
    with process:
      errors = process.stderr.read()
    assert process.returncode == 0, errors
  losses = binary.losses(tmp_path / 'job')
  assert losses == pytest.approx(single, rel=1e-5)


def test_a_jobset_for_tpus(recipe):
  """GKE tells its pods their places."""
  file = recipe(
    *('--print=jobset', '--image=i', '--hosts=32', '--slices=2'),
    *('--tpu=tpu-v4-podslice', '--topology=4x4x4', '--env=A=$(B) "c"'),
  )
  (job,) = yaml.safe_load(file.read_text())['spec']['replicatedJobs']
  made = job['template']['spec']
  assert (job['replicas'], made['completions']) == (2, 16)
  pod = made['template']['spec']
  assert pod['nodeSelector'] == {
    'cloud.google.com/gke-tpu-accelerator': 'tpu-v4-podslice',
    'cloud.google.com/gke-tpu-topology': '4x4x4',
  }
  (container,) = pod['containers']
  assert container['resources'] == {'limits': {'google.com/tpu': 4}}
  assert {'name': 'A', 'value': '$$(B) "c"'} in container['env']
  assert '--host_idx' not in container['command'][-1]


@pytest.mark.nightly
def test_queued_resources(tmp_path, found, recipe, single):
  """Each of two slices is one machine, which knows its place."""
  log = tmp_path / 'log'
  file = recipe(
    *('--print=gcloud', '--slices=2', '--tpu=v4-8', '--name=tiny'),
    *(f'--program={found.pax}', "--env=LIBTPU_INIT_ARGS=--a=1 --b='2'"),
  )
  env = found.environment | {
    'PROJECT': 'p',
    'ZONE': 'z',
    'GCLOUD_LOG': str(log),
    'JAX_COORDINATOR_ADDRESS': f'localhost:{binary.free_port()}',
    'JAX_NUM_PROCESSES': '2',
    'PYTHONPATH': os.getcwd(),
  }
  for step in ('create', 'wait', 'copy', 'run'):
    ended = run(file, step, env=env, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
  assert_trained(tmp_path, ended, single)
  create, describe, *_ = log.read_text().splitlines()
  assert create == (
    'compute tpus queued-resources create tiny --project=p --zone=z'
    ' --accelerator-type=v4-8 --runtime-version=tpu-ubuntu2204-base'
    ' --node-count=2 --node-prefix=tiny'
  )
  assert describe.startswith('compute tpus queued-resources describe tiny')
  assert run(file, env=env).returncode == 2


def test_one_slice_has_a_name(recipe):
  file = recipe('--print=gcloud', '--tpu=v4-8', '--program=a.par')
  assert '--node-id=pax-0\n' in file.read_text()
