# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: shards=2
# bazel: tags=nightly
"""A day of a job: fifty lives under faults of every kind, in random order.

Every loss of every life equals that of an uninterrupted run, bit by bit, and no
files of unfinished writes remain.
"""

from __future__ import annotations

import errno
import random
import re
import shlex
import signal
import subprocess

import pytest

from tests.faults import harness

SEED = 20261122
NUM_LIVES = 50
LAYOUTS = {'spmd': 'TinySpmd', 'one_file': 'TinyPmap'}
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SIDE_FILES = (
  '.lock',
  'config.json',
  'goodput.jsonl',
  'input_specs.json',
  'logs/train_0.log',
  'loss_curve.png',
  'metrics.jsonl',
  'model_params.txt',
  'run.json',
  'train_state_provenance.txt',
)
_STRAY_FILES = (
  '20261122',
  'checkpoint_00000000.bak',
  'checkpoint_',
  'notes.txt',
  'tmp_checkpoint_00000007',
)
# Files that a user or a message moved aside.
_EXPLAINED = re.compile(r'^checkpoints/corrupt_|\.damaged(\.\d+)?$')
# A call of the first and of the last writes of a life.
_MAX_CALL = 200


class _Day:
  """A job, and the faults of its lives."""

  def __init__(self, job, chance):
    self.job, self._chance = job, chance
    # Lives that could not write their losses for a moment.
    self.unwritten = 0

  def kill_at_a_call(self):
    """SIGKILL before a call that changes a file, or amid a write."""
    action = self._chance.choice(['kill', 'torn'])
    codes = (harness.KILLED, harness.DONE)
    self._live(codes, fault=self._fault(action))

  def kill_at_a_moment(self):
    life = self._start()
    self._wait_for_a_step(life)
    life.signal(signal.SIGKILL)
    (completed,) = life.wait()
    assert completed.returncode in (harness.KILLED, harness.DONE), completed

  def signal(self):
    """The state is saved: no step is computed twice."""
    life = self._start('--set=SECONDS=0.05')
    self._wait_for_a_step(life)
    life.signal(self._chance.choice(SIGNALS))
    (completed,) = life.wait()
    assert completed.returncode in (harness.PREEMPTED, harness.DONE), completed

  def disk_full(self):
    """From one call to the end of the life."""
    fault = self._fault(str(errno.ENOSPC), count=0)
    self._fail('No space left on device', fault)

  def io_error(self):
    """One call fails."""
    self._fail('Input/output error', self._fault(str(errno.EIO)))

  def short_writes(self):
    """All writes need several calls, which is no error."""
    self._live([harness.DONE], fault=self._fault('short', count=0))

  def damaged_side_file(self):
    """Side files never stop a run."""
    paths = [self.job.directory / name for name in _SIDE_FILES]
    path = self._chance.choice([path for path in paths if path.exists()])
    content = path.read_bytes()
    noise = self._chance.randbytes(40)
    if path.name == 'metrics.jsonl':
      # It holds the losses that the end of the test compares.
      path.write_bytes(content + noise)
    else:
      damaged = [b'', content[: len(content) // 2], noise, content + noise]
      path.write_bytes(self._chance.choice(damaged))
    self._live([harness.DONE])

  def stray_file(self):
    """Files of other names among the checkpoints are no checkpoints."""
    path = (
      self.job.directory / 'checkpoints' / self._chance.choice(_STRAY_FILES)
    )
    path.write_bytes(self._chance.randbytes(40))
    self._live([harness.DONE])
    path.unlink(missing_ok=True)

  def damaged_checkpoint(self):
    """The run does not start; the command of its message lets it continue."""
    newest = self.job.checkpoints()[self.job.newest_step()]
    files = [newest, *newest.rglob('*')]
    file = self._chance.choice(sorted(f for f in files if f.is_file()))
    content = bytearray(file.read_bytes())
    content[self._chance.randrange(len(content))] ^= (
      1 << self._chance.randrange(8)
    )
    file.write_bytes(content)
    completed = self._live([harness.ERROR])
    command = re.search(r'mv \S+ \S+', completed.stderr)
    assert command, completed.stderr
    subprocess.run(shlex.split(command[0]), check=True)
    self._live([harness.DONE])

  def _live(self, codes, fault=None):
    (completed,) = self._start(fault=fault).wait()
    assert completed.returncode in codes, (fault, completed)
    return completed

  def _fail(self, message, fault):
    """The run ends with one line of an error, or does not need the call."""
    completed = self._live((harness.ERROR, harness.DONE), fault=fault)
    self.unwritten += 'metrics.jsonl: ' in completed.stderr
    if completed.returncode == harness.ERROR:
      assert message in completed.stderr.splitlines()[-1], completed.stderr
    assert 'Logging error' not in completed.stderr

  def _fault(self, action, count=1):
    at = self._chance.randint(1, _MAX_CALL)
    return harness.Fault(at=at, count=count, action=action)

  def _start(self, *flags, fault=None):
    last = self.job.newest_step() + self._chance.randint(5, 10)
    return self.job.start(f'--set=NUM_STEPS={last}', *flags, fault=fault)

  def _wait_for_a_step(self, life):
    """Waits for a loss of this life."""
    metrics = self.job.directory / 'metrics.jsonl'
    size = metrics.stat().st_size
    harness.wait_until(lambda: metrics.stat().st_size > size, life)


FAULTS = tuple(name for name in vars(_Day) if not name.startswith('_'))


@pytest.mark.parametrize('layout', LAYOUTS)
def test_a_day(tmp_path, report, layout):
  chance = random.Random(SEED)
  flags = ['--set=SAVE_EVERY=2', '--set=task.train.save_max_to_keep=3']
  job = harness.Job(tmp_path / 'job', exp=LAYOUTS[layout], flags=flags)
  # Until after the first evaluation of training, which writes too.
  job.finish('--set=NUM_STEPS=12')
  files = _files(job.directory)
  day = _Day(job, chance)
  order = [FAULTS[i % len(FAULTS)] for i in range(NUM_LIVES)]
  chance.shuffle(order)
  for number, fault in enumerate(order):
    print(f'life {number} from step {job.newest_step()}: {fault}')
    getattr(day, fault)()
  num_steps = job.newest_step() + 4
  job.finish(f'--set=NUM_STEPS={num_steps}')
  # An error of a side file is a warning, and costs the records of one save.
  losses = harness.check_losses(job, num_steps, 2 * day.unwritten)
  assert not harness.leftovers(job.directory)
  assert job.newest_step() == num_steps
  assert len(job.checkpoints().keys() - {0}) == 3
  new = [n for n in _files(job.directory) - files if not _EXPLAINED.search(n)]
  assert not new
  report(lives=job.num_lives, faults=len(order), losses=losses)


def _files(directory):
  """Returns the files by name; those of one kind have one name."""
  names = {
    str(path.relative_to(directory))
    for path in directory.rglob('*')
    if path.is_file()
  }
  names = {re.sub(r'events\.out\.\S+', 'events', name) for name in names}
  # OCDBT names its files at random.
  names = {re.sub(r'(?<=/d/)[0-9a-f]{32}', 'DATA', name) for name in names}
  return {re.sub(r'(?<=checkpoint_)\d+', 'STEP', name) for name in names}
