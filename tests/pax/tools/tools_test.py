# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The tools that look at experiments, each through its command line."""

# bazel: deps=//pax:main_lib,//pax/tasks:experiments
from __future__ import annotations

import json
import pathlib
import re

import jax
import pytest

from pax import exit_codes, experiment_vars_summary, main
from pax.tools import catalog

TEST = 'lm_cloud.LmCloudSpmdTest'
_FDL = '--fdl=config:pax.tasks.lm.params.lm_cloud.LmCloudSpmdTest'
TWO_B = 'lm_cloud.LmCloudSpmd2B'


@pytest.fixture(scope='module', autouse=True)
def devices():
  """JAX has its devices before a tool asks for others."""
  return jax.devices()


@pytest.fixture
def tell(capsys):
  """Runs `pax WORDS...`, and returns what it prints."""

  def run(*words: str) -> str:
    code = main.main(['pax', *words])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    return shown.out

  return run


def fail(capsys, *words: str) -> str:
  assert main.main(['pax', *words]) == exit_codes.ERROR
  error = capsys.readouterr().err
  assert error.startswith('pax: error: ') and error.count('\n') == 1
  return error


def test_every_tool_has_help(tell):
  shown = tell('--help')
  for name, text in catalog.TOOLS.items():
    assert f'pax {name} ' in shown and text in shown
    assert tell(name.replace('_', '-'), '--help')


def test_parameters_of_two_billion(tell):
  lines = tell('model_analysis', f'--exp={TWO_B}', '--usage=params').split('\n')
  assert 'Total #params (trainable): 2137273856' in lines
  ffn = next(line for line in lines if 'ffn_layer1/linear/w' in line)
  # 18 layers of 3072 x 12288.
  assert ffn.split()[1:] == '(18, 3072, 12288) 679477248 trainable'.split()


def test_fiddle_makes_the_analysed_experiment(tell):
  by_name = tell('model_analysis', f'--exp={TEST}', '--usage=params')
  by_command = tell('model_analysis', _FDL, '--usage=params')
  assert by_command == by_name


def test_memory_is_a_share_of_adams_three_copies(tell):
  text = tell('model_analysis', f'--exp={TWO_B}', '--usage=memory')
  assert "'data': 4" in text
  gib = float(re.search(r'train state per device +([\d.]+) GiB', text)[1])
  assert gib == pytest.approx(3 * 4 * 2137273856 / 4 / 2**30, rel=0.01)


def test_flops_of_a_pass_are_twice_weights_times_tokens(tell):
  words = ['model_analysis', f'--exp={TEST}', '--usage=flops']
  small = ['--set=MAX_SEQ_LEN=64', '--bs=1', '--set=VOCAB_SIZE=512']
  text = tell(*words, *small)
  dot = float(re.search(r'dot_general +([\d.]+)', text)[1]) * 1e9
  rows, length, dim = jax.local_device_count(), 64, 64
  multiplied = 512 * dim + 2 * (4 * dim * dim + 2 * dim * 4 * dim)
  scores = 2 * 2 * length * dim
  want = 2 * rows * length * (multiplied + scores)
  # One-hot lookups and rotations come on top.
  assert want <= dot < 1.5 * want


def test_hlo_is_of_the_train_step(tell, tmp_path):
  words = ['--set=MAX_SEQ_LEN=16', '--set=VOCAB_SIZE=64', '--bs=1']
  file = tmp_path / 'step.mlir'
  tell(
    'model_analysis',
    f'--exp={TEST}',
    '--usage=hlo',
    f'--output={file}',
    *words,
  )
  text = file.read_text()
  assert 'stablehlo.dot_general' in text and 'train_step' in text


@pytest.mark.parametrize(
  'words',
  [
    ('graph', f'--exp={TEST}', '--output=gs://bucket/model.svg'),
    ('codegen', f'--exp={TEST}', '--output=gs://bucket/config.py'),
    ('prepare', __file__, 'gs://bucket/tokens'),
  ],
)
def test_an_output_in_a_bucket_is_refused(words, capsys, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  error = fail(capsys, *words)
  assert '=gs://bucket/' in error and 'is a URL, and only local' in error
  assert not any(tmp_path.iterdir())


def test_experiment_files_are_compared(tell, tmp_path):
  file = tmp_path / 'test.yaml'
  file.write_text(f'exp: {TEST}\nset: {{task.train.num_train_steps: 7}}')
  shown = tell('diff_configs', TEST, str(file))
  assert re.fullmatch(r' *task.train.num_train_steps : .* -> 7.0\n', shown)


def test_wrong_words(capsys):
  assert 'must be one of params' in fail(
    capsys, 'model_analysis', f'--exp={TEST}', '--usage=speed'
  )
  assert 'no experiment is called' in fail(
    capsys, 'dump_hparams', '--exp=lm_cloud.Nothing'
  )
  assert 'which experiment?' in fail(capsys, 'validate_config')
  assert 'there is no flag --deep' in fail(capsys, 'graph', '--deep=2')
  assert 'two experiments' in fail(capsys, 'diff_configs', TEST)


def test_dump_hparams_writes_three_files(tell, tmp_path):
  files = [tmp_path / name for name in ('before', 'after', 'constants')]
  before, after, constants = files
  assert not tell(
    'dump_hparams',
    f'--exp={TEST}',
    '--set=task.train.num_train_steps=7',
    f'--params_ofile={before}',
    f'--post_init_params_ofile={after}',
    f'--cls_vars_ofile={constants}',
  )
  text = before.read_text()
  assert text.startswith('Train input\n')
  assert '\ntrain.num_train_steps : 7.0\n' in text
  assert 'params.lm.final_ln.scale' in after.read_text()
  found = experiment_vars_summary.parse(constants.read_text())
  assert found['MODEL_DIMS'] == 64 and found['ICI_MESH_SHAPE'] == [1, 1, 1]


def test_dump_input_specs(tell):
  text = tell('dump_input_specs', f'--exp={TEST}')
  rows = 4 * jax.local_device_count()
  assert f"'ids': ShapeDtypeStruct(shape=({rows}, 1024), dtype=int32)" in text
  assert text.startswith(f'{TEST}\nFrom InputSpecsProvider:\nNone\n')


def test_validate_goes_as_deep_as_asked(tell, capsys):
  small = ['--set=MAX_SEQ_LEN=16', '--set=VOCAB_SIZE=64']
  words = ['validate_config', f'--exp={TEST}', *small]
  levels = re.findall(r'level +(\d+)', tell(*words, '--check_level=9'))
  assert levels == ['0', '1', '3', '5', '6', '7', '8', '9']
  assert tell(*words).count('\n') == 1
  error = fail(
    capsys, *words, '--check_level=10', '--set=ICI_MESH_SHAPE=[1,99,1]'
  )
  assert 'level 1 is not passed: the experiment wants 99 devices' in error


def test_differences(tell):
  text = tell('diff_configs', TEST, '--set=NUM_LAYERS=4')
  assert text.splitlines() == [
    '  task.model.lm_tpl.stacked_transformer_tpl.x_times : 2 -> 4'
  ]
  assert tell('diff_configs', TEST, TEST) == 'no difference\n'
  text = tell('diff_configs', TWO_B, 'lm_cloud.LmCloudTransformerAdam')
  assert re.search(r'^- task\.model\.lm_tpl\.\S+\.x_times : 18$', text, re.M)
  assert re.search(r'^\+ ', text, re.M)


def test_the_list_tells_sizes_and_meshes(tell):
  lines = tell('list_experiments', 'lm_cloud.LmCloudSpmd1', '--json')
  rows = {r['name']: r for r in map(json.loads, lines.splitlines())}
  name = 'tasks.lm.params.lm_cloud.LmCloudSpmd1024B'
  assert rows[name]['devices'] == 2048 and rows[name]['mesh'] == [1, 256, 8]
  assert 1.02e12 < rows[name]['parameters'] < 1.04e12
  table = tell('list_experiments', 'LmCloudTransformerAdamTest')
  assert re.search(r'Test +58M +replicas +2 layers of ', table)


def test_the_list_says_why_a_size_is_unknown(capsys):
  assert 'no experiment has Nothing' in fail(
    capsys, 'list_experiments', 'Nothing'
  )


def test_a_picture(tell, tmp_path, monkeypatch, capsys):
  file = tmp_path / 'model.dot'
  tell('graph', f'--exp={TEST}', f'--output={file}')
  assert 'TransformerLm' in file.read_text()
  monkeypatch.setenv('PATH', '')
  words = ['graph', f'--exp={TEST}', '--output=model.svg']
  assert 'needs the program `dot`' in fail(capsys, *words)
  assert 'is no Config' in fail(capsys, *words, '--part=task.nothing')


@pytest.mark.parametrize(
  ('word', 'name'),
  [
    ('--set=task.train.num_train_steps=3', '--set task.train.num_train_steps'),
    ('--sharding_apart', '--sharding_apart'),
    ('--keep_defaults', '--keep_defaults'),
    ('--fdl=config:my_config.experiment', '--fdl'),
  ],
)
def test_code_with_constants_has_nothing_else(word, name, capsys):
  error = fail(capsys, 'codegen', f'--exp={TEST}', '--keep_constants', word)
  assert f'{name} has no effect with --keep_constants' in error


def test_generated_code_makes_the_experiment_again(tell, tmp_path):
  file = pathlib.Path(tmp_path / 'mine.py')
  tell('codegen', f'--exp={TEST}', f'--output={file}', '--set=NUM_LAYERS=3')
  scope = {}
  exec(compile(file.read_text(), str(file), 'exec'), scope)
  config = scope['experiment']()
  assert config.task.model.lm_tpl.stacked_transformer_tpl.x_times == 3
  experiment = config.Instantiate()
  assert experiment.training_dataset().seq_len == 1024
