# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Experiment files in YAML and TOML, and their errors."""

from __future__ import annotations

import pytest

from pax.runner import command_line, options
from pax.tools import abstract_experiment

YAML = """\
exp: lm_cloud.LmCloudSpmdTest
set:
  NUM_LAYERS: 2
  CHECKPOINT_POLICY: AutodiffCheckpointType.SAVE_NOTHING
  ICI_MESH_SHAPE: [1, 2, 1]
  task:
    train:
      num_train_steps: 20
      eval_skip_train: true
  task.train.variable_norm_summary: null
"""
TOML = """\
exp = "lm_cloud.LmCloudSpmdTest"
[set]
NUM_LAYERS = 2
CHECKPOINT_POLICY = "AutodiffCheckpointType.SAVE_NOTHING"
ICI_MESH_SHAPE = [1, 2, 1]
task.train.num_train_steps = 20
task.train.eval_skip_train = true
"""
SETTINGS = (
  'NUM_LAYERS=2',
  'CHECKPOINT_POLICY=AutodiffCheckpointType.SAVE_NOTHING',
  'ICI_MESH_SHAPE=[1, 2, 1]',
  'task.train.num_train_steps=20',
  'task.train.eval_skip_train=True',
)


@pytest.mark.parametrize(
  ('name', 'text', 'settings'),
  [
    ('a.yaml', YAML, (*SETTINGS, 'task.train.variable_norm_summary=None')),
    ('a.toml', TOML, SETTINGS),
    ('a.yml', 'exp: lm_cloud.LmCloudSpmdTest', ()),
  ],
)
def test_a_file_is_an_experiment_and_settings(tmp_path, name, text, settings):
  path = tmp_path / name
  path.write_text(text)
  words = ['pax', f'--exp={path}', '--set', 'NUM_LAYERS=3', '--mode=eval']
  parsed = options.parse(words)
  assert parsed.exp == 'lm_cloud.LmCloudSpmdTest' and parsed.mode == 'eval'
  assert parsed.set == (*settings, 'NUM_LAYERS=3')


@pytest.mark.parametrize(
  ('name', 'text'),
  [
    ('a.yaml', 'exp: E\nset:\n  TRAIN_DATA:\n    a.bin: 0.8\n    b.bin: 0.2'),
    ('a.toml', 'exp = "E"\n[set.TRAIN_DATA]\n"a.bin" = 0.8\n"b.bin" = 0.2'),
  ],
)
def test_a_table_is_the_value_of_a_constant(tmp_path, name, text):
  path = tmp_path / name
  path.write_text(text)
  [setting] = options.parse(['pax', f'--exp={path}']).set
  assert setting == "TRAIN_DATA={'a.bin': 0.8, 'b.bin': 0.2}"


def test_the_settings_of_the_command_line_win(tmp_path):
  path = tmp_path / 'a.yaml'
  path.write_text('exp: TinyLm\nset: {NUM_LAYERS: 2, VOCAB_SIZE: 4096}')
  flags = abstract_experiment.ExperimentOptions(
    exp=str(path), set=('NUM_LAYERS=3',)
  )
  experiment = abstract_experiment.declare(flags.expand_files()).experiment
  assert (experiment.NUM_LAYERS, experiment.VOCAB_SIZE) == (3, 4096)


def test_a_file_that_others_can_write_is_refused(tmp_path):
  path = tmp_path / 'a.yaml'
  path.write_text('exp: TinyLm')
  path.chmod(0o666)
  words = ['pax', f'--exp={path}']
  with pytest.raises(command_line.UsageError, match='--trust_foreign_files'):
    options.parse(words)
  assert options.parse([*words, '--trust_foreign_files']).exp == 'TinyLm'


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    (None, 'cannot read the file'),
    ('set: {NUM_LAYERS: 2}', 'must have the key exp'),
    ('exp: A\nNUM_LAYERS: 2', 'got also NUM_LAYERS; move'),
    ('exp: A\nset: 3', 'set must be a table, got 3'),
    ('exp: A\nset: [', r'must be YAML, got an error in line 2, column 7: .*;'),
    ('exp: *b', "in line 1, column 6: found undefined alias 'b'; correct"),
    ('exp: A\n\tset: 3', 'in line 2, column 1: found character'),
    ('exp: A\n---\nexp: B', 'in line 2, column 1: but found another document'),
    ('exp: "\x01"', 'got an error at character 7: special'),
    (
      'exp: A\nset: {B: 1, C: 2, B: 3}',
      'a.yaml: line 2 repeats the key B; correct',
    ),
  ],
)
def test_errors_name_the_file(tmp_path, text, message):
  path = tmp_path / 'a.yaml'
  if text is not None:
    path.write_text(text)
  with pytest.raises(command_line.UsageError, match=message) as error:
    options.parse(['pax', f'--exp={path}'])
  assert str(error.value).startswith(f'--exp={path}: ')
  assert '\n' not in str(error.value)


def test_an_error_in_toml_names_its_place(tmp_path):
  path = tmp_path / 'a.toml'
  path.write_text('exp = A')
  message = r'a.toml: the file must be TOML, got an error: .*line 1.*; correct'
  with pytest.raises(command_line.UsageError, match=message):
    options.parse(['pax', f'--exp={path}'])
