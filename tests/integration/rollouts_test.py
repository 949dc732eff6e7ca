# SPDX-License-Identifier: Apache-2.0
"""Jobs that are stopped while they learn from a rollout."""

# bazel: deps=//pax:main_lib,//pax/tasks:experiments
# bazel: size=medium
# bazel: tags=nightly
from __future__ import annotations

import json
import os
import signal

import numpy as np

from pax import exit_codes
from pax.checkpoints import reading
from tests.pax.huggingface import job_runs, reference_models

# What the next call of the reward function sends to the job.
_SIGNALS: list[signal.Signals] = []


def mean_code(examples, responses):
  """A reward that differs for almost all responses."""
  del examples
  for number in _SIGNALS:
    os.kill(os.getpid(), number)
  _SIGNALS.clear()
  return [sum(map(ord, x)) / 256 / max(len(x), 1) for x in responses]


def test_a_job_ends_its_rollout_before_it_stops(tmp_path, capfd):
  source = reference_models.write_byte_model(tmp_path / 'source', 'qwen3')
  lines = [{'prompt': f'{i}'} for i in range(5)]
  (tmp_path / 'prompts.jsonl').write_text('\n'.join(map(json.dumps, lines)))
  words = [
    '--set=OBJECTIVE=rewards',
    f'--set=REWARDS={__name__}:mean_code',
    f'--set=TRAIN_FILES={tmp_path}/prompts.jsonl',
    '--set=BATCH_SIZE=8',
    '--set=ROLLOUT_BATCHES=2',
    '--set=ROLLOUT_EPOCHS=2',
    '--set=MAX_PROMPT_LEN=8',
    '--set=NUM_TRAIN_STEPS=8',
    '--set=LEARNING_RATE=0.02',
    '--set=WARMUP_STEPS=0',
    '--set=HELD_OUT_PERCENT=0',
    '--set=EVAL_ON_TEST=False',
    '--set=CHECKPOINT_EVERY_N_STEPS=8',
  ]
  job, cut = tmp_path / 'job', tmp_path / 'cut'
  assert job_runs.run('Qwen3', source, job, *words) == 0, capfd.readouterr().err
  _SIGNALS.append(signal.SIGTERM)
  assert job_runs.run('Qwen3', source, cut, *words) == exit_codes.PREEMPTED
  assert not _SIGNALS
  assert list(reading.checkpoint_steps(cut / 'checkpoints')) == [0, 4]
  assert job_runs.run('Qwen3', source, cut, *words) == 0
  resumed = job_runs.read_leaves(cut)
  for name, value in job_runs.read_leaves(job).items():
    np.testing.assert_array_equal(resumed[name], value, err_msg=name)
