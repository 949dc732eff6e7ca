# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: tags=nightly
"""Jobs that continue on another number of processes and devices after SIGKILL.

The global batches stay the same; the losses are those of an uninterrupted run
of one process but for the order of sums.
"""

from __future__ import annotations

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


def _kill_one(job, victim):
  """Runs a life until a checkpoint more is complete, then kills a process."""
  before = job.newest_step()
  life = job.start(f'--set=NUM_STEPS={10**6}', '--set=SECONDS=0.05')
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


@pytest.mark.parametrize('layout', LAYOUTS)
def test_restarts_in_a_bucket(bucket_directory, tmp_path, report, layout):
  _check_restarts(bucket_directory, tmp_path, report, layout)
  assert not harness.leftovers(bucket_directory)


def _check_restarts(directory, tmp_path, report, layout):
  exp, flags = LAYOUTS[layout]
  job = harness.Job(directory, exp=exp, flags=[*flags, '--set=SAVE_EVERY=3'])
  for life, count in enumerate(COUNTS[:-1]):
    job.num_processes = count
    _kill_one(job, victim=(count - 1) * (life % 2))
  job.num_processes = COUNTS[-1]
  num_steps = job.newest_step() + 8
  job.finish(f'--set=NUM_STEPS={num_steps}')
  reference = harness.Job(tmp_path / 'reference', exp=exp, flags=flags)
  reference.finish(f'--set=NUM_STEPS={num_steps}')
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
  report(kills=len(COUNTS) - 1, losses=len(written))
