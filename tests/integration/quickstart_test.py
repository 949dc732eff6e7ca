# SPDX-License-Identifier: Apache-2.0
"""The quickstart: what a newcomer sees, and finds."""

# bazel: size=medium
from __future__ import annotations

from tests.integration import quickstart

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


def test_a_small_run_shows_and_leaves_what_it_should(tmp_path):
  done = quickstart.train('TinyLmBytes', tmp_path, *SMALL, timeout=300)
  shown = done.stdout + done.stderr
  for part in ('step 40/40', 'tokens/s', 'MFU', 'ETA', 'sample: def '):
    assert part in shown
  train_bits = quickstart.bits_per_byte(tmp_path, 'train')
  [held_out_bits] = quickstart.bits_per_byte(tmp_path, 'eval_test_held_out')
  assert 7 < train_bits[0] < 10
  assert held_out_bits < 5
  assert f'bits_per_byte {held_out_bits:.4f}' in shown
  assert (tmp_path / 'loss_curve.png').read_bytes().startswith(b'\x89PNG')
  splits = {p.name for p in (tmp_path / 'summaries').iterdir()}
  assert splits == {'train', 'eval_test_held_out'}
  for split in splits:
    assert list((tmp_path / 'summaries' / split).glob('events.*'))
