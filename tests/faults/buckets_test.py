# SPDX-License-Identifier: Apache-2.0
# bazel: size=enormous
# bazel: shards=3
# bazel: tags=nightly
"""Jobs whose directory is in a bucket: kills, faults of the server, damage."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import signal
import threading

import pytest

from pax.checkpoints import paths, reading
from pax.files import storage
from pax.tools import plot
from tests.faults import harness
from tests.integration import binary
from tests.testing import bucket_damage, bucket_server, polling, programs

SEED = 20261122
NUM_KILLS = int(os.environ.get('PAX_BUCKET_KILLS', '12'))
LAYOUTS = {
  'spmd': ('TinySpmd',),
  'pmap_one_file': ('TinyPmap',),
  'pmap_tensorstore': ('TinyPmap', '--pmap_use_tensorstore'),
}


job, proxy = bucket_server.job, bucket_server.proxy
pytestmark = bucket_server.SCHEMES


def run(job, exp, *flags):
  completed = binary.start(exp, job, *flags).wait(harness.TIMEOUT_SECS)
  assert completed.returncode == 0, completed.stderr
  return completed


def committed(job):
  return sorted(paths.steps(job / paths.CHECKPOINTS))


def kill_when(process, condition):
  """Kills a job at the moment a condition holds."""
  polling.wait_until(condition, binary.TIMEOUT_SECS)
  process.send_signal(signal.SIGKILL)
  assert process.wait().returncode == -signal.SIGKILL


@pytest.mark.parametrize('layout', LAYOUTS)
def test_a_killed_job_continues_bit_for_bit(tmp_path, job, proxy, layout):
  exp, *flags = LAYOUTS[layout]
  # The job blocks in its second save, half of which is in the bucket.
  uploads = []

  def policy(method, path):
    if method == 'PUT' and re.search(r'/checkpoint_0*10\b', path):
      uploads.append(path)
      is_last = path.endswith((storage.MARKER, 'checkpoint_10'))
      return bucket_server.HANG if is_last else bucket_server.FORWARD
    return bucket_server.FORWARD

  proxy.policy = policy
  process = binary.start(exp, job, *flags)
  kill_when(
    process,
    lambda: uploads and uploads[-1].endswith((storage.MARKER, 'checkpoint_10')),
  )
  assert committed(job) == [0]
  proxy.policy = lambda method, path: bucket_server.FORWARD
  completed = run(job, exp, *flags)
  assert 'locked' not in completed.stderr
  assert committed(job) == [0, 10, 20]
  run(tmp_path, exp, *flags)
  assert binary.loss_bits(job) == binary.loss_bits(tmp_path)
  files = job.files()
  assert not [name for name in files if name.endswith(('.part', '.lock'))]
  assert not any(name.startswith(('s3:', 'gs:')) for name in os.listdir())


def test_kills_at_requests_that_change_the_bucket(tmp_path, job, proxy, report):
  """Each life blocks at another request, first or random, and is killed."""
  flags = ('--set=task.train.save_max_to_keep=2', '--set=SAVE_EVERY=2')
  run(job, 'TinySpmd', *flags, '--set=NUM_STEPS=4')
  count, target = itertools.count(1), [0]
  is_blocked = threading.Event()

  def policy(method, path):
    if method in ('PUT', 'POST', 'DELETE') and next(count) == target[0]:
      is_blocked.set()
      return bucket_server.HANG
    return bucket_server.FORWARD

  proxy.policy = policy
  run(job, 'TinySpmd', *flags, '--set=NUM_STEPS=8')
  num_requests = next(count)
  chance = random.Random(SEED)
  points = sorted(chance.sample(range(1, num_requests), NUM_KILLS))
  num_kills = 0
  for point in points:
    newest = max(committed(job))
    count, target[0] = itertools.count(1), point
    is_blocked.clear()
    process = binary.start(
      'TinySpmd', job, *flags, f'--set=NUM_STEPS={newest + 4}'
    )
    polling.wait_until(
      lambda process=process: (
        is_blocked.is_set() or not programs.is_running(process.pid)
      ),
      binary.TIMEOUT_SECS,
    )
    with contextlib.suppress(ProcessLookupError):
      process.send_signal(signal.SIGKILL)
    num_kills += process.wait().returncode == -signal.SIGKILL
    # No half-written checkpoint is visible, and none is lost.
    assert max(committed(job)) >= newest
  target[0] = 0
  steps = max(committed(job)) + 4
  run(job, 'TinySpmd', *flags, f'--set=NUM_STEPS={steps}')
  run(tmp_path, 'TinySpmd', *flags, f'--set=NUM_STEPS={steps}')
  assert binary.loss_bits(job) == binary.loss_bits(tmp_path)
  assert num_kills > NUM_KILLS / 2
  report(kills=num_kills, requests=num_requests)


def test_jobs_that_read_a_bucket(tmp_path, job, capsys, monkeypatch):
  run(job, 'TinySpmd')
  # Continues with the optimizer, the input and the metrics.
  run(job, 'TinySpmd', '--set=task.train.num_train_steps=24')
  assert committed(job) == [0, 10, 20, 24]
  assert len(binary.loss_bits(job)) == 24
  run(job, 'TinySpmd', '--mode=eval', '--set=task.train.num_train_steps=24')
  outputs = [name for name in job.files() if name.startswith('eval_out/')]
  assert [name.rpartition('/')[2] for name in outputs] == [
    'eval_out_24_shard_0.jsonl', 'eval_out_24_shard_0.npz'
  ]  # fmt: skip
  evals = (job / 'eval_metrics.jsonl').read_text().splitlines()
  assert [json.loads(line)['step'] for line in evals] == [24]
  # From another job, and onto a local disk.
  run(tmp_path / 'local', 'TinySpmd', f'--init_from={job}@10')
  step, path = reading.find_checkpoint(str(job))
  assert (step, path.name) == (24, 'checkpoint_00000024')
  monkeypatch.chdir(tmp_path)
  plot.main(['plot', str(job)])
  assert f'{job.name}: step 24' in capsys.readouterr().out
  assert (tmp_path / 'curves.png').exists()


def test_a_second_job_is_refused(job, proxy):
  """The first one is stopped at its first save."""
  uploads = []

  def policy(method, path):
    # Repeated requests hang, too.
    if method == 'PUT' and 'checkpoint_' in path:
      uploads.append(path)
      return bucket_server.HANG
    return bucket_server.FORWARD

  proxy.policy = policy
  first = binary.start('TinySpmd', job)
  polling.wait_until(lambda: bool(uploads), binary.TIMEOUT_SECS)
  holder = json.loads((job / '.lock').read_text())
  assert holder['pid'] == first.pid
  second = binary.run('TinySpmd', job)
  assert second.returncode == 1
  assert f'another process trains in --job_log_dir={job}' in second.stderr
  assert f'(pid {first.pid} on' in second.stderr
  first.send_signal(signal.SIGKILL)
  first.wait()


@pytest.mark.parametrize(
  ('fault', 'interval'),
  [
    (bucket_server.ERROR_500, 10),
    (bucket_server.CUT, 10),
    # Each takes as long as the client waits for an answer: with 10 these are
    # 70 s in all, more on a slow machine, which renews its lock more often.
    (bucket_server.HANG, 25),
  ],
)
def test_faults_that_pass_are_not_noticed(
  tmp_path, job, proxy, fault, interval
):
  """Requests at an interval fail, each once."""
  failed = set()
  count = [0]

  def policy(method, path):
    count[0] += 1
    if count[0] % interval == 0 and (method, path) not in failed:
      failed.add((method, path))
      return fault
    return bucket_server.FORWARD

  proxy.policy = policy
  run(job, 'TinySpmd')
  assert failed
  proxy.policy = lambda method, path: bucket_server.FORWARD
  assert committed(job) == [0, 10, 20]
  run(tmp_path, 'TinySpmd')
  assert binary.loss_bits(job) == binary.loss_bits(tmp_path)


def test_a_server_that_stays_broken_ends_the_job(job, proxy):
  def policy(method, path):
    is_fault = 'checkpoint_00000010' in path and 'ocdbt' in path
    is_fault = is_fault and method == 'PUT'
    return bucket_server.ERROR_500 if is_fault else bucket_server.FORWARD

  proxy.policy = policy
  completed = binary.run('TinySpmd', job)
  assert completed.returncode == 1
  (line,) = [line for line in completed.stderr.splitlines() if 'error:' in line]
  assert f'cannot write {job}/checkpoints/checkpoint_00000010' in line
  assert 'the checkpoints before it are untouched' in line
  assert committed(job) == [0]
  proxy.policy = lambda method, path: bucket_server.FORWARD
  run(job, 'TinySpmd')
  assert committed(job) == [0, 10, 20]


def test_flipped_bits_are_found_and_set_aside(job):
  run(job, 'TinySpmd')
  newest = job / paths.CHECKPOINTS / 'checkpoint_00000020'
  (name,) = [
    name for name in newest.files() if name.endswith('process_0/manifest.ocdbt')
  ]
  data = bytearray((newest / name).read_bytes())
  data[-1] ^= 1
  (newest / name).write_bytes(bytes(data))
  more = '--set=task.train.num_train_steps=22'
  completed = binary.run('TinySpmd', job, more)
  assert completed.returncode == 1
  assert f'{newest / name} is not what was written' in completed.stderr
  move = {'s3': 'aws s3 mv --recursive', 'gs': 'gcloud storage mv'}[job.scheme]
  assert f'{move} {newest}' in completed.stderr
  run(job, 'TinySpmd', more, '--on_corrupt_checkpoint=fallback')
  assert committed(job) == [0, 10, 20, 22]
  assert (job / paths.CHECKPOINTS / 'corrupt_checkpoint_00000020').exists()


@pytest.mark.parametrize('damage', bucket_damage.DAMAGES)
@pytest.mark.parametrize('layout', bucket_damage.LAYOUTS)
def test_damage_of_any_object(job, report, layout, damage):
  objects = bucket_damage.check_damage(job, layout, damage)
  report(damaged_objects=objects)
