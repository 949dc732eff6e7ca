# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Data, schedules and early stopping of the C4 experiments."""

from __future__ import annotations

import sys

import jax
import pytest

from pax.inputs.seqio import seqio_input
from pax.tasks.lm import input_generator
from pax.tasks.lm.params import c4, optimal_scaling
from praxis import schedules


def _made(base, **constants):
  return type('Made', (base,), constants)()


@pytest.mark.parametrize(
  ('per_core', 'devices', 'hosts', 'batch_size', 'infeed_hosts'),
  [
    (2, 4, 3, 8, 3),
    (1.5, 4, 4, 8, 3),
    (0.5, 4, 1, 2, 1),
    (0.5, 4, 8, 4, 4),
  ],
)
def test_rows_of_a_host(
  per_core, devices, hosts, batch_size, infeed_hosts, monkeypatch
):
  monkeypatch.setattr(jax, 'local_device_count', lambda: devices)
  monkeypatch.setattr(jax, 'process_count', lambda: hosts)
  made = _made(
    c4.C4SpmdAdam, PERCORE_BATCH_SIZE=per_core, PERCORE_EVAL_BATCH_SIZE=1
  )
  train, test = made.datasets()
  assert (train.batch_size, train.num_infeed_hosts) == (
    batch_size,
    infeed_hosts,
  )
  assert (test.batch_size, test.num_infeed_hosts) == (devices, hosts)
  specs = made.get_input_specs_provider_params().Instantiate()
  found = specs.get_input_specs()
  assert found.ids.shape == (batch_size, 1024)
  assert found.eval_sample_weights.shape == (batch_size,)


@pytest.mark.parametrize(('per_core', 'hosts'), [(1.5, 3), (0.1, 1)])
def test_rows_that_do_not_divide(per_core, hosts, monkeypatch):
  monkeypatch.setattr(jax, 'local_device_count', lambda: 4)
  monkeypatch.setattr(jax, 'process_count', lambda: hosts)
  made = _made(c4.C4SpmdAdam, PERCORE_BATCH_SIZE=per_core)
  with pytest.raises(ValueError, match=f'PERCORE_BATCH_SIZE={per_core} on'):
    made.datasets()


def test_data():
  train, test = c4.C4SpmdAdam().datasets()
  assert (train.cls, test.cls) == (seqio_input.SeqIOInput,) * 2
  assert (train.mixture_name, train.split_name) == ('c4_lm_v301_gpt', 'train2')
  assert test.mixture_name == 'c4_lm_v301_gpt_eval_tokenized'
  assert test.split_name == 'validation_tokenized_5662seqs'
  assert (train.input_random_seed, test.input_random_seed) == (9876, 4321)
  assert (train.repeat, test.repeat) == (True, False)
  assert (train.drop_remainder, test.drop_remainder) == (True, False)
  assert (train.reset_for_eval, test.reset_for_eval) == (False, True)
  for config, packed in ((train, True), (test, False)):
    converter = config.feature_converter
    assert converter.pack == packed and converter.reverse_bos_padding
    assert (converter.bos_id, converter.eos_id) == (0, 1)
    assert config.annotate_padding_fields
    assert config.task_feature_lengths == {'targets': 1024}


def test_made_up_data():
  made = _made(c4.C4SpmdAdam, SYNTHETIC_DATA=True, MAX_SEQ_LEN=8)
  train, test = made.datasets()
  assert (train.cls, test.cls) == (input_generator.SyntheticLmData,) * 2
  batch = train.Instantiate().get_next()
  found = made.get_input_specs_provider_params().Instantiate().get_input_specs()
  assert {k: (x.shape, x.dtype) for k, x in batch.items()} == {
    k: (x.shape, x.dtype) for k, x in found.items()
  }


def test_the_schedule_of_mlperf_follows_from_the_rows_of_a_step():
  task_p = c4.C4SpmdPipelineGpt3AdamMLPerfHPBS3k768Replicas().task()
  optimizer_p = task_p.train.learner.optimizer
  schedule_p = optimizer_p.lr_schedule
  assert optimizer_p.learning_rate == 2e-5
  assert schedule_p.cls is schedules.LinearRampupCosineDecay
  # 3072 rows: half the steps of 1536.
  assert (schedule_p.warmup_steps, schedule_p.decay_start) == (133, 134)
  assert schedule_p.decay_end == 54300
  wide = c4.C4SpmdPipelineGpt3AdamMLPerfHPBS4k1024Replicas().task()
  assert wide.train.learner.optimizer.learning_rate == 3e-5


def test_every_evaluation_of_mlperf_is_after_so_many_rows():
  for name in ('1p5k768', '2k512', '3k768', '4k1024', '8k1024'):
    made = getattr(c4, f'C4SpmdPipelineGpt3AdamMLPerfHPBS{name}Replicas')
    stages, _, data, mdl = made.ICI_MESH_SHAPE
    rows = made.PERCORE_BATCH_SIZE * stages * data * mdl
    assert made.EVAL_INTERVAL_STEPS * rows == 24 * 1024
    assert rows % made.MICROBATCH_SIZE == 0


def test_training_ends_at_the_target():
  stops = c4.C4SpmdGpt3L16AdamOrgHP().task().early_stopping_fn.Instantiate()
  name = 'eval_test_C4Validation/metrics/log_pplx'
  for metrics, wanted in (
    ({name: 2.69}, True),
    ({name: 2.7}, False),
    ({}, False),
  ):
    assert stops(metrics, None, 1, False, '') == wanted
  never = c4.EarlyStoppingFn.config().Instantiate()
  assert not never({name: 0.0}, None, 1, False, '')


def test_an_own_end_stays():
  class Own(c4.C4SpmdGpt3L16AdamOrgHP):
    def task(self):
      task_p = super().task()
      task_p.early_stopping_fn = None
      return c4.configure_gpt3_task(
        _made(c4.C4SpmdGpt3L16AdamOrgHP, TARGET_LOG_PPLX=1.0), task_p
      )

  assert Own().task().early_stopping_fn.target_log_pplx == 1.0
  task_p = c4.C4SpmdGpt3L16AdamOrgHP().task()
  again = c4.configure_gpt3_task(Own(), task_p)
  assert again.early_stopping_fn.target_log_pplx == 2.69


def test_a_width_follows_from_the_depth():
  task_p = optimal_scaling.OptimalScaling2x2x1().task()
  assert task_p.model.lm_tpl.model_dims == 28 * 128
  with pytest.raises(ValueError, match='NUM_LAYERS must be set'):
    _made(optimal_scaling.OptimalScaling).task()
  with pytest.raises(ValueError, match='HIDDEN_DIMS must be 512 .* got 8'):
    _made(optimal_scaling.OptimalScaling, NUM_LAYERS=1, HIDDEN_DIMS=8).task()
  made = optimal_scaling.OptimalScaling2x2x1()
  made.task()
  assert made.task().model.lm_tpl.model_dims == made.MODEL_DIMS == 28 * 128


def test_to_declare_them_takes_neither_seqio_nor_tensorflow():
  made = c4.C4Spmd1BAdam4Replicas()
  made.task(), made.datasets()
  assert not {'seqio', 'tensorflow', 't5'} & set(sys.modules)


def test_the_vocabulary_of_text_is_the_tokenizer():
  train, test = _made(c4.C4SpmdAdam, TOKENIZER='/data/a.model').datasets()
  assert train.mixture_name is None
  task = train.mixture_or_task
  assert task.name == 'c4_lm_v301_gpt'
  assert task.sentencepiece_model == '/data/a.model'
  # Its data are tokens.
  assert test.mixture_name == 'c4_lm_v301_gpt_eval_tokenized'


def test_the_vocabulary_must_be_sentencepiece():
  made = _made(c4.C4SpmdAdam, TOKENIZER='bytes')
  with pytest.raises(ValueError, match=r"TOKENIZER .* \*.model, got 'bytes'"):
    made.datasets()
