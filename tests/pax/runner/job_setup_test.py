# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""What an experiment declares of its batches, programs and averages."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from pax import programs
from pax.programs import batch_shapes
from pax.programs.jobs import JobCallbacks
from pax.runner import build_train, job_setup, options
from praxis import base_input, pax_fiddle
from praxis.pytypes import NestedMap
from tests.integration import experiments


class Provider(base_input.BaseInputSpecsProvider):
  """Says that a batch has an x of 8 rows."""

  def get_input_specs(self):
    return NestedMap(x=jax.ShapeDtypeStruct((8, 2), np.float32))


class Provided(experiments.TinySpmd):
  def get_input_specs_provider_params(self):
    return pax_fiddle.Config(Provider)


class FromData(experiments.TinySpmd):
  def get_input_specs_provider_params(self):
    return super().get_input_specs_provider_params()


def test_only_a_provider_of_its_own_is_asked():
  assert job_setup.declared_spec(experiments.TinySpmd()) is None
  assert job_setup.declared_spec(FromData()) is None
  assert job_setup.declared_spec(Provided()).x.shape == (8, 2)


def test_a_batch_must_be_as_declared():
  spec = Provider.config().Instantiate().get_input_specs()
  batch_shapes.check_spec(spec, spec)
  other = NestedMap(x=jax.ShapeDtypeStruct((8, 3), np.float32))
  with pytest.raises(ValueError, match=r"must be \{'x': 'float32\[8, 2\]'\}"):
    batch_shapes.check_spec(other, spec)


def test_a_training_batch_has_no_text():
  spec = Provider.config().Instantiate().get_input_specs()
  batch_shapes.check_numbers('rows', spec)
  spec.text = jax.ShapeDtypeStruct((8,), np.dtype('O'))
  with pytest.raises(ValueError, match=r"'rows' must .* text in \['text'\]"):
    batch_shapes.check_numbers('rows', spec)


def _plan(tmp_path, experiment, *settings):
  made = options.RunOptions(job_log_dir=str(tmp_path), set=settings)
  return made, job_setup.resolve(made, experiment)


def test_the_plan_of_an_experiment_at_hand(tmp_path):
  _, planned = _plan(
    tmp_path, experiments.TinySpmd(), 'decode_inputs[0].num_batches=5'
  )
  assert planned.tree.decode_inputs[0].num_batches == 5
  assert planned.tree.eval_inputs[0].num_infeed_hosts == 1


def test_profiled_steps_are_steps_of_the_job(tmp_path):
  def plan(profile_steps):
    made = options.RunOptions(
      job_log_dir=str(tmp_path),
      set=('task.train.num_train_steps=12',),
      profile_steps=profile_steps,
    )
    return job_setup.resolve(made, experiments.TinySpmd()).tree.task.train

  # The end may be later.
  train = plan('11:30')
  assert train.profiler_capture_step == 11 and train.profiler_num_steps == 19
  with pytest.raises(ValueError, match=r'=12:13 has no step.*steps is 12;'):
    plan('12:13')


class HeldOut(experiments.TinySpmd):
  EVAL_DATA = 'held_out.bin'


class Named(HeldOut):
  EVAL_DATA = {'web': 'web.bin', 'code': 'code.bin'}


class Decided(HeldOut):
  EVAL_ON_TEST = False


@pytest.mark.parametrize(
  ('fields', 'is_reported'),
  [
    ({}, True),
    ({'eval_on_test': True}, False),
    ({'eval_on_test': False}, False),
    ({'mode': 'eval'}, False),
  ],
)
def test_data_that_training_does_not_evaluate(
  tmp_path, caplog, fields, is_reported
):
  made = options.RunOptions(job_log_dir=str(tmp_path), **fields)
  job_setup.resolve(made, HeldOut())
  text = 'EVAL_DATA=held_out.bin is not evaluated during training; pass --eval'
  assert (text in caplog.text) == is_reported
  caplog.clear()
  assert job_setup.resolve(made, Decided()).eval_on_test == (
    fields.get('eval_on_test') is True
  )
  assert text not in caplog.text
  job_setup.resolve(made, Named())
  assert ("EVAL_DATA={'web': 'web.bin', 'code'" in caplog.text) == is_reported


def test_a_number_of_batches_of_a_full_epoch(tmp_path):
  count = 'eval_inputs[0].eval_loop_num_batches='
  resets, continues = (f'eval_inputs[0].reset_for_eval={x}' for x in (1, 0))
  with pytest.raises(
    ValueError, match=r'eval_inputs\[0\]\.eval_loop_num_batches must be None'
  ):
    _plan(tmp_path, experiments.TinySpmd(), f'{count}3', resets)
  for settings in (
    (f'{count}3', continues),
    (f'{count}None', resets),
    (f'{count}-1', resets),
  ):
    _plan(tmp_path, experiments.TinySpmd(), *settings)


def test_averages_that_nobody_keeps(tmp_path):
  made, planned = _plan(
    tmp_path,
    experiments.TinySpmd(),
    'task.train.eval_use_ema_states=True',
    'task.model.ici_mesh_shape=[1,1,1]',
  )
  with (
    pytest.raises(ValueError, match='eval_use_ema_states is set'),
    build_train.build(made, planned, None, None),
  ):
    pass


def test_programs_of_a_super_class_and_more(tmp_path):
  class Evaluated(programs.SingleTaskEvalProgram):
    pass

  class More(experiments.TinySpmd):
    def eval_programs(self):
      own = [Evaluated(config) for config in self.eval_datasets()]
      return super().eval_programs() + own

    def decode_programs(self):
      return []

  made, planned = _plan(tmp_path, More(), 'eval_inputs[0].batch_size=3')
  made = dataclasses.replace(made, decode_during_train=True)
  planned = dataclasses.replace(planned, eval_on_test=True)
  evals, decodes = job_setup.create_eval_programs(made, planned)
  assert [type(p).__name__ for p in evals] == [
    'SingleTaskEvalProgram',
    'Evaluated',
  ]
  # Both have the overridden input.
  assert [p._input_p.batch_size for p in evals] == [3, 3]
  assert decodes == []
  (decode_program,) = experiments.TinySpmd().decode_programs()
  assert isinstance(decode_program, programs.SingleTaskDecodeProgram)


@pytest.mark.parametrize(
  ('change', 'warning'),
  [
    (
      'task.train.decode_interval_steps=None',
      'decode_interval_steps is not set',
    ),
    ('decode_inputs=[]', 'decode_datasets() of TinySpmd returns none'),
    ('task.train.decode_interval_steps=4', ''),
  ],
)
def test_decoding_nothing_is_said(tmp_path, caplog, change, warning):
  made, planned = _plan(tmp_path, experiments.TinySpmd(), change)
  made = dataclasses.replace(made, decode_during_train=True)
  job_setup.create_eval_programs(made, planned)
  said = [r.message for r in caplog.records if 'decodes nothing' in r.message]
  assert [warning in message for message in said] == [True] * bool(warning)


def test_one_train_program(tmp_path):
  class Two(experiments.TinySpmd):
    def train_programs(self):
      return [programs.SingleTaskTrainProgram() for _ in range(2)]

  with pytest.raises(ValueError, match='1 program, got 2'):
    build_train._train_program(_plan(tmp_path, Two())[1])


def test_one_early_stopping_function(tmp_path):
  callbacks = JobCallbacks(early_stopping_fn=len)
  made = options.RunOptions(job_log_dir=str(tmp_path))

  def function_of(stop_at):
    spec = job_setup.resolve(
      made,
      type('Own', (experiments.TinySpmd,), {'STOP_AT': stop_at})(),
      callbacks,
    )
    return job_setup.early_stopping_fn(spec, spec.tree.task.Instantiate())

  assert function_of(None) is len
  with pytest.raises(ValueError, match='both the task and the argument'):
    function_of(3)
