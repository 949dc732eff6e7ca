# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
# bazel: deps=//paxml:modules
"""Programs and executors written for paxml run as they are."""

from __future__ import annotations

import json
import pathlib

import pytest

from pax import jobs
from tests.integration import binary
from tests.paxml import experiment_of_paxml

_MODULE = 'tests.paxml.experiment_of_paxml'
_MESHES = {'eight devices': [2, 2, 2], 'pmap': None}


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
  params=['eight devices', pytest.param('pmap', marks=pytest.mark.nightly)],
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
  again = binary.run(name, tmp_path / 'endless', '--set=MAX_BAD_STEPS=0')
  assert again.returncode == 0, again.stderr
