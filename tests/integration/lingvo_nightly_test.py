# SPDX-License-Identifier: Apache-2.0
# bazel: deps=@pypi_seqio//lingvo,//tests/integration:lingvo_experiments
# bazel: size=large
# bazel: tags=nightly
"""A job trains, evaluates and decodes on generators of Lingvo."""

from __future__ import annotations

import importlib

import pytest

from pax.runner import artifacts
from tests.integration import binary

pytest.importorskip('lingvo')
lingvo_experiments = importlib.import_module(
  'tests.integration.lingvo_experiments'
)
_NAME = 'tests.integration.lingvo_experiments.TinyLingvo'


def _run(experiment, directory, *flags, devices=2):
  completed = binary.run(experiment, directory, *flags, devices=devices)
  assert completed.returncode == 0, completed.stderr
  return completed


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  directory = tmp_path_factory.mktemp('lingvo')
  _run(_NAME, directory, '--eval_on_test', '--set=ICI_MESH_SHAPE=[1,2,1]')
  return directory


def test_losses_are_those_of_the_same_batches(trained, tmp_path):
  _run('TinySpmd', tmp_path, '--set=ICI_MESH_SHAPE=[1,2,1]')
  assert binary.losses(trained) == binary.losses(tmp_path)


def test_the_configuration_is_restored(trained):
  text = (trained / 'config.json').read_text()
  tree = artifacts.load_config(text)
  assert tree.eval_inputs[0].input.args.num == lingvo_experiments.NUM_EVAL_ROWS
  assert artifacts.dump_config(tree) == text


def test_evaluations_read_an_epoch_with_padding(trained):
  evaluations = [
    r for r in binary.records(trained) if r['split'] == 'eval_test_held_out'
  ]
  # Rows of weight 1 of three batches: the eighth of two weighs nothing.
  mean = (7 + 7 + 5) / 3
  rows = [(r['step'], r['Metrics/rows']) for r in evaluations]
  assert rows == [(10, mean), (20, mean)]


def test_two_processes_evaluate_and_decode(trained, tmp_path):
  processes = binary.start_processes(
    _NAME,
    tmp_path,
    '--set=ICI_MESH_SHAPE=[1,2,1]',
    '--set=BATCH_SIZE=4',
    '--mode=decode',
    '--eval_during_decode',
    f'--restore_checkpoint_dir={trained}',
    count=2,
    devices=1,
  )
  ended = binary.wait(processes)
  assert [p.returncode for p in ended] == [0, 0], ended
  found = [r for r in binary.records(tmp_path) if 'Metrics/rows' in r]
  assert [r['Metrics/rows'] for r in found] == [(7 + 7 + 5) / 3]
  lines = {
    p.name: len(p.read_text().splitlines())
    for p in tmp_path.rglob('*_out_20_*.jsonl')
  }
  assert sorted(lines.values()) == [8, 24]
