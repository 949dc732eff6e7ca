# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: tags=nightly
"""Jobs that continue on another number of processes and devices after SIGKILL.

The global batches stay the same; the losses are those of an uninterrupted run
of one process but for the order of sums.
"""

from __future__ import annotations

import random
import signal

import numpy as np
import pytest

from tests.faults import harness
from tests.testing import bucket_server

bucket_directory, proxy = bucket_server.job, bucket_server.proxy

# Processes of each life, with one device each; all but the last are killed.
COUNTS = (2, 4, 1, 4, 2)
LAYOUTS = {
  'spmd': ('TinySpmd', ()),
  'spmd_leaves': ('TinySpmd', ('--notensorstore_use_ocdbt',)),
  # Each replica of pmap draws noise of its own.
  'pmap_one_file': ('TinyPmap', ('--set=NOISE=0.0',)),
  'pmap_tensorstore': (
    'TinyPmap',
    ('--set=NOISE=0.0', '--pmap_use_tensorstore'),
  ),
}


def _kill_one(job, victim, *flags):
  """Runs a life until a checkpoint more is complete, then kills a process.

  Args:
    job: The job.
    victim: Index of the process.
    *flags: Flags of the life.
  """
  before = job.newest_step()
  life = job.start(*flags)
  harness.wait_until(lambda: job.newest_step() > before, life)
  life.signal(signal.SIGKILL, victim)
  codes = [completed.returncode for completed in life.wait()]
  lost = 76
  assert codes.pop(victim) == harness.KILLED
  assert set(codes) <= {lost}, codes


@pytest.mark.parametrize('layout', LAYOUTS)
def test_every_restart_has_another_number_of_processes(
  tmp_path, report, layout
):
  _check_restarts(tmp_path / 'job', tmp_path, report, layout)


@bucket_server.SCHEMES
@pytest.mark.parametrize('layout', LAYOUTS)
def test_restarts_in_a_bucket(bucket_directory, tmp_path, report, layout):
  _check_restarts(bucket_directory, tmp_path, report, layout)
  assert not harness.leftovers(bucket_directory)


def _check_restarts(directory, tmp_path, report, layout):
  exp, flags = LAYOUTS[layout]
  job = harness.Job(directory, exp=exp, flags=[*flags, '--set=SAVE_EVERY=3'])
  for life, count in enumerate(COUNTS[:-1]):
    job.num_processes = count
    _kill_one(
      job,
      (count - 1) * (life % 2),
      f'--set=NUM_STEPS={10**6}',
      '--set=SECONDS=0.05',
    )
  job.num_processes = COUNTS[-1]
  num_steps = job.newest_step() + 8
  job.finish(f'--set=NUM_STEPS={num_steps}')
  reference = harness.Job(tmp_path / 'reference', exp=exp, flags=flags)
  reference.finish(f'--set=NUM_STEPS={num_steps}')
  num_losses = _check_losses(job, reference, num_steps)
  report(kills=len(COUNTS) - 1, losses=num_losses)


def _check_losses(job, reference, num_steps):
  """Checks that all lives have the losses of the reference; counts them.

  Args:
    job: The job.
    reference: A job of the same steps that nothing interrupted.
    num_steps: Number of steps.
  """
  expected = dict(harness.loss_bits(reference.directory))
  written = [
    (step, bits)
    for step, bits in harness.loss_bits(job.directory)
    # A life may have been killed some steps after its last checkpoint.
    if step < num_steps
  ]
  assert {step for step, _ in written} == set(range(num_steps))
  np.testing.assert_allclose(
    [np.frombuffer(bits, np.float32)[0] for _, bits in written],
    [np.frombuffer(expected[step], np.float32)[0] for step, _ in written],
    rtol=1e-5,
  )
  return len(written)


# Processes and mesh of each life.
TEXT_LIVES = (
  (2, '[1,2,1]'),
  (1, '[1,1,1]'),
  (4, '[1,2,2]'),
  (2, '[1,1,2]'),
  (4, '[2,2,1]'),
)


def _text_flags(tmp_path):
  """Returns the flags of a small language model on packed rows of text."""
  file = tmp_path / 'text.txt'
  if not file.exists():
    words = random.Random(0).choices(['one', 'two', 'three', 'four'], k=20000)
    lines = (' '.join(words[i : i + 7]) for i in range(0, len(words), 7))
    file.write_text('\n\n'.join(lines))
  return [
    f'--set=TRAIN_DATA={file}',
    '--set=EVAL_ON_TEST=False',
    '--set=MAX_SEQ_LEN=64',
    '--set=MODEL_DIMS=16',
    '--set=HIDDEN_DIMS=32',
    '--set=NUM_LAYERS=1',
    # The global batch.
    '--set=BATCH_SIZE=8',
    '--set=CHECKPOINT_EVERY_N_STEPS=3',
    '--set=SUMMARY_INTERVAL_STEPS=1',
  ]


@pytest.mark.parametrize(
  'lives', [TEXT_LIVES[:2], TEXT_LIVES], ids=['two_to_one', 'many']
)
def test_text_goes_on_with_other_processes_and_meshes(tmp_path, report, lives):
  exp = 'tasks.lm.params.quickstart.TinyLmBytes'
  flags = _text_flags(tmp_path)
  last = lambda mesh, steps: (
    f'--set=ICI_MESH_SHAPE={mesh}',
    f'--set=task.train.num_train_steps={steps}',
  )
  job = harness.Job(tmp_path / 'job', exp=exp, flags=flags)
  for life, (count, mesh) in enumerate(lives[:-1]):
    job.num_processes = count
    _kill_one(job, (count - 1) * (life % 2), *last(mesh, 10**6))
  job.num_processes, mesh = lives[-1]
  num_steps = job.newest_step() + 8
  job.finish(*last(mesh, num_steps))
  reference = harness.Job(tmp_path / 'reference', exp=exp, flags=flags)
  reference.finish(*last('[1,1,1]', num_steps))
  num_losses = _check_losses(job, reference, num_steps)
  report(kills=len(lives) - 1, losses=num_losses)
