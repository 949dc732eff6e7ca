# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
# bazel: deps=//paxml:modules
"""Programs and executors written for paxml run as they are."""

from __future__ import annotations

import json
import pathlib

import jax
import numpy as np
import pytest

from pax import jobs, partitioning, programs, steps
from praxis import base_input
from tests.integration import binary
from tests.pax import tiny
from tests.paxml import experiment_of_paxml
from tests.testing import nightly

_MODULE = 'tests.paxml.experiment_of_paxml'
_MESHES = {'eight devices': [2, 2, 2], 'pmap': None}


class _Rows(base_input.BaseInput):
  def get_next(self):
    return tiny.batch(rows=self.batch_size)


def _step_losses(tmp_path, **options):
  """Losses of steps that are called with the batches of the host."""
  task = tiny.task([2, 2, 2]).Instantiate()
  partitioner = partitioning.create_partitioner(task, **options)
  input_p = _Rows.config(name='rows', batch_size=8)
  rows, key = input_p.Instantiate(), jax.random.key(7)
  partitioner.setup(task, key, None, rows)
  _, state, _ = partitioner.initialize_prng_key_and_train_state(key, None, None)
  train = programs.SingleTaskTrainProgram()
  train.setup(task, rows, partitioner, tmp_path, key, key, 0)
  test = programs.SingleTaskEvalProgram(input_p)
  test.setup(task, partitioner, tmp_path, key)
  batch = rows.get_next()
  batch = partitioner.preprocess_inputs(
    rows, batch, train.train_input_partition_spec(batch)
  )
  args = steps.BaseStepFnStaticArgs(unpadded_global_batch_size=8)
  evaluated = test.eval_step(state.to_eval_state(), key, batch, args)
  step, state, trained = train.train_step(0, state, key, batch, args)
  again = train.eval_train_step(state.to_eval_state(), key, batch, args)
  assert step == 1
  return [float(x.loss) for x in (evaluated, trained, again)]


def _train(name, path, mesh, **flags):
  base = getattr(experiment_of_paxml, name)
  cls = type(name, (base,), {'ICI_MESH_SHAPE': _MESHES[mesh]})
  return jobs.train_and_evaluate(
    cls(), path, eval_on_test=True, compilation_cache_dir='', **flags
  )


def _records(path: pathlib.Path, split: str) -> dict[int, dict[str, float]]:
  records = binary.records(path)
  return {r['step']: r for r in records if r['split'] == split}


@pytest.fixture(
  scope='module',
  params=['eight devices', *nightly.cases('pmap')],
)
def default(request, tmp_path_factory):
  """(mesh, directory of a job of the default programs)."""
  path = tmp_path_factory.mktemp('default')
  assert _train('Default', path, request.param) == 0
  return request.param, path


def test_a_program_with_a_step_function_of_its_own(default, tmp_path):
  mesh, expected = default
  assert _train('Partitioning', tmp_path, mesh) == 0
  train = _records(tmp_path, 'train')
  assert {step: r['loss'] for step, r in train.items()} == pytest.approx(
    {s: r['loss'] for s, r in _records(expected, 'train').items()}, rel=1e-5
  )
  assert train[2]['twice_loss_scalar'] == pytest.approx(2 * train[2]['loss'])
  for step, record in _records(expected, 'eval_test_held_out').items():
    own = _records(tmp_path, 'eval_test_held_out')[step]
    assert own['loss'] == pytest.approx(record['loss'], rel=1e-5)
  assert (tmp_path / 'init_step').read_text() == '0'
  # It continues from its checkpoint.
  assert _train('Partitioning', tmp_path, mesh, set=('NUM_STEPS=8',)) == 0
  assert (tmp_path / 'init_step').read_text() == '6'


def test_a_program_with_run_and_an_executor_around_the_loop(default, tmp_path):
  mesh, expected = default
  assert _train('Running', tmp_path, mesh) == 0
  losses = {s: r['loss'] for s, r in _records(tmp_path, 'train').items()}
  assert losses == pytest.approx(
    {s: r['loss'] for s, r in _records(expected, 'train').items()}, rel=1e-5
  )
  assert int((tmp_path / 'set_up').read_text()) > 0
  assert (tmp_path / 'ended').exists()
  events = (tmp_path / 'summaries' / 'train').iterdir()
  assert any(b'own_scalar' in file.read_bytes() for file in events)


def test_an_executor_with_a_loop_of_its_own(default, tmp_path):
  mesh, expected = default
  assert _train('Looping', tmp_path, mesh, run_decode=True) == 0
  train = _records(tmp_path, 'train')
  assert {step: r['loss'] for step, r in train.items()} == pytest.approx(
    {s: r['loss'] for s, r in _records(expected, 'train').items()}, rel=1e-5
  )
  assert set(_records(tmp_path, 'eval_train')) == {3, 6}
  evals = _records(tmp_path, 'eval_test_held_out')
  assert {step: r['loss'] for step, r in evals.items()} == pytest.approx(
    {
      step: r['loss']
      for step, r in _records(expected, 'eval_test_held_out').items()
    },
    rel=1e-5,
  )
  assert set(_records(tmp_path, 'decode_test_prompts')) == {3, 6}
  assert binary.checkpoint_names(tmp_path) == binary.checkpoint_names(expected)
  assert (tmp_path / 'decoder_out' / 'prompts').is_dir()


@pytest.mark.nightly
def test_a_signal_stops_a_loop_of_its_own_with_its_state_saved(tmp_path):
  name = f'{_MODULE}.LoopingStopped'
  stopped = binary.run(name, tmp_path, '--eval_on_test')
  assert stopped.returncode == 75, stopped.stderr
  step = int(binary.checkpoint_names(tmp_path)[-1].removeprefix('checkpoint_'))
  assert 0 < step < experiment_of_paxml.LoopingStopped.NUM_STEPS
  # The fifth batch does not come again.
  resumed = binary.run(name, tmp_path, '--eval_on_test')
  assert resumed.returncode == 0, resumed.stderr
  assert sorted(binary.losses(tmp_path)) == list(
    range(experiment_of_paxml.LoopingStopped.NUM_STEPS)
  )
  goodput = (tmp_path / 'goodput.jsonl').read_text().splitlines()
  records = [json.loads(line) for line in goodput]
  assert {r['attempt'] for r in records} == {0, 1}
  assert any(r.get('resumed') and r['step'] == step for r in records)


def test_a_loop_of_its_own_ends_when_it_diverges(tmp_path):
  name = f'{_MODULE}.LoopingDiverging'
  ended = binary.run(name, tmp_path)
  assert ended.returncode == 3, ended.stderr
  # Steps 7 to 11, of a run of 20.
  assert '5 steps in a row, since step 7' in ended.stderr


@pytest.mark.nightly
def test_a_loop_of_its_own_may_go_on_as_it_diverges(tmp_path):
  name = f'{_MODULE}.LoopingDiverging'
  ended = binary.run(name, tmp_path, '--set=MAX_BAD_STEPS=0')
  assert ended.returncode == 0, ended.stderr


def test_steps_of_programs_take_batches_of_the_host(tmp_path):
  # The default, as in paxml, leaves batches on the host.
  losses = _step_losses(tmp_path / 'host')
  assert losses == _step_losses(tmp_path / 'mesh', reshard_inputs=True)
  assert losses[0] == pytest.approx(losses[1], rel=1e-5)
  assert np.isfinite(losses).all() and losses[2] < losses[1]
