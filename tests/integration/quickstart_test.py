# SPDX-License-Identifier: Apache-2.0
"""The quickstart: what a newcomer sees, and finds."""

# bazel: size=large
# bazel: deps=//pax:main_lib,//pax/tasks:experiments
from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time

import pytest

from tests.integration import binary

SMALL = (
  'NUM_TRAIN_STEPS=40',
  'WARMUP_STEPS=5',
  'SUMMARY_INTERVAL_STEPS=5',
  'NUM_LAYERS=1',
  'MODEL_DIMS=64',
  'HIDDEN_DIMS=128',
  'MAX_SEQ_LEN=64',
  'HELD_OUT_PERCENT=0.5',
)


def train(
  exp: str, job_dir: pathlib.Path, *settings: str, timeout: float
) -> subprocess.CompletedProcess[str]:
  done = subprocess.run(
    [
      sys.executable,
      '-m',
      'pax.main',
      f'--exp=tasks.lm.params.quickstart.{exp}',
      f'--job_log_dir={job_dir}',
      '--compilation_cache_dir=',
      *(f'--set={setting}' for setting in settings),
    ],
    env=binary.environment(),
    capture_output=True,
    text=True,
    timeout=timeout,
  )
  assert done.returncode == 0, done.stderr
  return done


def bits_per_byte(job_dir: pathlib.Path, split: str) -> list[float]:
  tag = 'Metrics/bits_per_byte'
  return [r[tag] for r in binary.records(job_dir) if r['split'] == split]


def test_a_small_run_shows_and_leaves_what_it_should(tmp_path):
  done = train('TinyLmBytes', tmp_path, *SMALL, timeout=300)
  shown = done.stdout + done.stderr
  for part in ('step 40/40', 'tokens/s', 'MFU', 'ETA', 'sample: def '):
    assert part in shown
  train_bits = bits_per_byte(tmp_path, 'train')
  [held_out_bits] = bits_per_byte(tmp_path, 'eval_test_held_out')
  assert 7 < train_bits[0] < 10
  assert held_out_bits < 5
  assert f'bits_per_byte {held_out_bits:.4f}' in shown
  assert (tmp_path / 'loss_curve.png').read_bytes().startswith(b'\x89PNG')
  splits = {p.name for p in (tmp_path / 'summaries').iterdir()}
  assert splits == {'train', 'eval_test_held_out'}
  for split in splits:
    assert list((tmp_path / 'summaries' / split).glob('events.*'))


@pytest.mark.skipif(
  os.environ.get('PAX_NIGHTLY') != '1',
  reason='takes four minutes of two cores; PAX_NIGHTLY=1 runs it',
)
def test_four_minutes_are_enough(tmp_path):
  start = time.monotonic()
  train('TinyLm', tmp_path, timeout=600)
  assert time.monotonic() - start < 240
  assert bits_per_byte(tmp_path, 'eval_test_held_out')[-1] <= 2.1
