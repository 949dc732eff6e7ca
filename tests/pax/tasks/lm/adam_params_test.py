# bazel: size=small
# SPDX-License-Identifier: Apache-2.0
"""Adam and its schedules from constants; those of GPT-3 from the batch size."""

from __future__ import annotations

import pytest

from pax.tasks.lm import adam_params
from pax.tasks.lm.params import lm_cloud
from praxis import schedules


class _Lm(adam_params.TransformerLmSpmdAdam, lm_cloud.SyntheticDataset):
  NUM_LAYERS = 1
  MODEL_DIMS = 2048
  ICI_MESH_SHAPE = [1, 64, 1]
  PERCORE_BATCH_SIZE = 1


class _Gpt3(_Lm):
  LEARNING_RATE = None
  LR_SCHEDULE = 'linear_rampup_cosine_decay'
  LR_COS_WARMUP = None
  LR_COS_DECAY_START = None
  LR_COS_DECAY_END = None


def _adam(base=_Lm, **constants):
  made = type('Made', (base,), constants)()
  return made.task().train.learner.optimizer


def test_zero_is_zero_and_none_the_default():
  given = {'ADAM_BETA1': 0, 'WEIGHT_DECAY': 0, 'ADAM_BETA2': None}
  adam_p = _adam(**given, CLIP_GRADIENT_NORM_TO_VALUE=None)
  assert (adam_p.beta1, adam_p.beta2, adam_p.weight_decay) == (0, 0.999, 0)
  assert adam_p.clip_gradient_norm_to_value == 5.0


@pytest.mark.parametrize(
  ('slices', 'per_core', 'rate', 'warmup', 'end'),
  [
    # GPT-3's own 1536 rows, and as many tokens in fewer and more of them.
    (1, 24, 2e-5, 265, 108600),
    (1, 12, 2e-5, 530, 217200),
    (2, 28, 2e-5, 114, 46543),
    (2, 32, 3e-5, 100, 40725),
    (4, 32, 3e-5, 50, 20363),
  ],
)
def test_schedule_of_gpt3_is_that_of_its_tokens(
  slices, per_core, rate, warmup, end
):
  mesh = {'DCN_MESH_SHAPE': [slices, 1, 1], 'PERCORE_BATCH_SIZE': per_core}
  adam_p = _adam(_Gpt3, **mesh)
  schedule_p = adam_p.lr_schedule
  assert adam_p.learning_rate == rate
  assert schedule_p.warmup_steps == warmup
  assert schedule_p.decay_start == warmup + 1
  assert schedule_p.decay_end == end


@pytest.mark.parametrize('per_core', [0.001, 129])
def test_says_which_number_does_not_follow(per_core):
  with pytest.raises(ValueError, match='LEARNING_RATE=None needs .* 1 to 8192'):
    _adam(_Gpt3, PERCORE_BATCH_SIZE=per_core)
  # What is given needs not follow.
  given = {'LR_COS_WARMUP': 1, 'LR_COS_DECAY_END': 9, 'LEARNING_RATE': 0.1}
  schedule_p = _adam(_Gpt3, PERCORE_BATCH_SIZE=per_core, **given).lr_schedule
  assert schedule_p.decay_start == 2


def test_schedules_by_name():
  assert _adam().lr_schedule.cls is schedules.LinearRampupExponentialDecay
  assert _adam(LR_SCHEDULE='constant').lr_schedule.cls is schedules.Constant
  with pytest.raises(ValueError, match="LR_SCHEDULE must be .*'linear'"):
    _adam(LR_SCHEDULE='linear')


@pytest.mark.parametrize('use_bias', [True, False])
def test_attention_has_biases_if_asked_for(use_bias):
  task_p = type('Made', (_Lm,), {'USE_BIAS': use_bias})().task()
  layer_p = task_p.model.lm_tpl.stacked_transformer_tpl
  atten_p = layer_p.transformer_layer_params_tpl.tr_atten_tpl
  assert atten_p.use_bias == use_bias
