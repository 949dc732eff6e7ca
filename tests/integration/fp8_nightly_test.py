# SPDX-License-Identifier: Apache-2.0
"""A run in fp8 that stops and resumes equals one without a stop, bit by bit."""

# bazel: size=large
# bazel: tags=nightly
from __future__ import annotations

import pytest

from tests.integration import binary

_SIZES = {
  'ICI_MESH_SHAPE': '[1,2,1]',
  'FPROP_DTYPE': 'bfloat16',
  'MODEL_DIMS': 32,
  'HIDDEN_DIMS': 64,
  'NUM_LAYERS': 2,
  'USE_REPEATED_LAYER': True,
  'MAX_SEQ_LEN': 16,
  'EVAL_ON_TEST': False,
  'SUMMARY_INTERVAL_STEPS': 1,
}


def _train(job_log_dir, scaling, steps):
  settings = _SIZES | {
    'task.model.lm_tpl.fp8_scaling': scaling,
    'task.train.num_train_steps': steps,
  }
  completed = binary.run(
    'tasks.lm.params.quickstart.TinyLmBytes',
    job_log_dir,
    *(f'--set={name}={value}' for name, value in settings.items()),
    devices=2,
  )
  assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize('scaling', ['delayed', 'current'])
def test_resumed_losses_are_bit_identical(tmp_path, scaling):
  _train(tmp_path / 'straight', scaling, 8)
  for steps in (4, 8):
    _train(tmp_path / 'resumed', scaling, steps)
  losses = binary.loss_bits(tmp_path / 'straight')
  assert sorted(losses) == list(range(8))
  assert binary.loss_bits(tmp_path / 'resumed') == losses
