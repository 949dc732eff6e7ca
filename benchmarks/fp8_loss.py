# SPDX-License-Identifier: Apache-2.0
"""Losses of a small language model in fp8 and in bfloat16.

    python -m benchmarks.fp8_loss

Trains `quickstart.TinyLmBytes` with smaller sizes, from the same initial
weights and on the same batches, with `fp8_scaling` of None, 'delayed' and
'current'. Devices without fp8 products convert the operands: the same rounding.
"""

# bazel: deps=//pax/tasks:experiments
# bazel: deps=//pax:main_lib
from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from benchmarks import measure

_SIZES = {
  'MODEL_DIMS': 64,
  'HIDDEN_DIMS': 256,
  'NUM_LAYERS': 2,
  'BATCH_SIZE': 16,
  'MAX_SEQ_LEN': 64,
  'USE_REPEATED_LAYER': True,
  'FPROP_DTYPE': 'bfloat16',
}
# Held-out loss that fp8 may add to that of bfloat16, in nats per byte.
_BOUND = 0.02


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--steps', type=int, default=2000)
  parser.add_argument('--evals', type=int, default=4)
  args = parser.parse_args()
  losses = {
    name: _held_out_losses(args.steps, args.steps // args.evals, scaling)
    for name, scaling in (
      ('bfloat16', None),
      ('fp8_delayed', 'delayed'),
      ('fp8_current', 'current'),
    )
  }
  last = {name: list(curve.values())[-1] for name, curve in losses.items()}
  added = {
    name: round(loss - last['bfloat16'], 5)
    for name, loss in last.items()
    if name != 'bfloat16'
  }
  measure.report(
    'fp8_loss',
    {
      'sizes': _SIZES,
      'held_out_nats_per_byte': losses,
      'added_to_bfloat16': added,
    },
  )
  if max(added.values()) > _BOUND:
    raise SystemExit(f'fp8 adds more than {_BOUND} nats per byte: {added}')


def _held_out_losses(
  steps: int, interval: int, scaling: str | None
) -> dict[int, float]:
  """Trains and returns the held-out losses by step."""
  with tempfile.TemporaryDirectory() as job_log_dir:
    subprocess.run(
      [
        *(sys.executable, '-m', 'pax.main'),
        '--exp=tasks.lm.params.quickstart.TinyLmBytes',
        f'--job_log_dir={job_log_dir}',
        *(f'--set={name}={value}' for name, value in _SIZES.items()),
        f'--set=NUM_TRAIN_STEPS={steps}',
        f'--set=EVAL_INTERVAL_STEPS={interval}',
        f'--set=CHECKPOINT_EVERY_N_STEPS={steps}',
        f'--set=task.model.lm_tpl.fp8_scaling={scaling}',
      ],
      check=True,
    )
    (metrics,) = pathlib.Path(job_log_dir).rglob('metrics.jsonl')
    lines = map(json.loads, metrics.read_text().splitlines())
    return {
      line['step']: round(line['loss'], 5)
      for line in lines
      if line['split'] == 'eval_test_held_out'
    }


if __name__ == '__main__':
  main()
