# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: deps=//pax:main_lib
"""The command line: which flags there are, and what a wrong one says."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest

from pax.runner import command_line, options, unsupported_flags

# A new knob is a field of a config. A flag is for what no config can say.
FLAGS = [
  'exp',
  'job_log_dir',
  'mode',
  'set',
  'eval_on_test',
  'tfds_data_dir',
  'decode_during_train',
  'eval_during_decode',
  'study',
  'num_trials',
  'parallel_trials',
  'sampler',
  'pruner',
  'metrics_from',
  'sub_experiment',
  'topology',
  'all',
  'aot_jobs',
  'aot_table',
  'check_level',
  'aot_full_effort',
  'aot_remat',
  'aot_save',
  'aot_load',
  'init_from',
  'restore_checkpoint_dir',
  'restore_checkpoint_step',
  'first_checkpoint_timeout_secs',
  'next_checkpoint_timeout_secs',
  'emergency_dir',
  'job_dir_wait_secs',
  'enable_checkpoint_saving',
  'checkpoint_todelete_subdir',
  'on_corrupt_checkpoint',
  'pmap_use_tensorstore',
  'tensorstore_use_ocdbt',
  'jax_fully_async_checkpoint',
  'single_replica_restore',
  'exit_after_ondemand_checkpoint',
  'accept_changed_data',
  'async_timeout_secs',
  'fdl',
  'fdl_config',
  'fdl_config_file',
  'fiddler',
  'fdl_set',
  'fdl_tags_set',
  'trust_foreign_files',
  'host_device_count',
  'compilation_cache_dir',
  'globally_use_hardware_rng',
  'pgle',
  'jax_enable_checks',
  'jax_traceback_filtering_option',
  'profile_steps',
  'jax_profiler_port',
  'startup_random_jitter_max_secs',
  'multiprocess_gpu',
  'server_addr',
  'num_hosts',
  'host_idx',
  'initialization_timeout_secs',
  'peer_timeout_secs',
  'enable_summary_writer',
  'pax_only_aggregate_summaries',
  'wandb_project',
  'mlflow_experiment',
  'decode_output_pickle',
  'hang_timeout_secs',
  'traceback',
]


def test_the_flags_are_these():
  assert [f.name for f in dataclasses.fields(options.RunOptions)] == FLAGS


def test_parse():
  found = options.parse([
    'pax', '--exp=a.B', '--job_log_dir', '/d', '--set', 'A=1',
    '--set=b.c=[1,2]',
    '--pmap_use_tensorstore=True', '--noenable_summary_writer',
    '--host_device_count=4',
  ])  # fmt: skip
  assert found == options.RunOptions(
    exp='a.B',
    job_log_dir='/d',
    set=('A=1', 'b.c=[1,2]'),
    pmap_use_tensorstore=True,
    enable_summary_writer=False,
    host_device_count=4,
  )


def test_paths_may_begin_with_the_home_directory(monkeypatch):
  monkeypatch.setenv('HOME', '/home/me')
  parsed = options.parse(
    ['pax', '--job_log_dir=~/job', '--init_from=~/old@7', '--set=A=~/x']
  )
  assert parsed.job_log_dir == '/home/me/job'
  assert parsed.init_from == '/home/me/old@7'
  assert parsed.set == ('A=~/x',)


def test_words_say_the_options_again():
  said = options.RunOptions(
    exp='a.B', set=('A=1', 'b=x y'), eval_on_test=True, num_trials=3,
    decode_output_pickle=False,
  )  # fmt: skip
  words = command_line.words_of(said)
  assert len(words) == 6
  assert options.parse(['pax', *words]) == said


def test_defaults_are_those_of_the_dataclass():
  assert options.parse(['pax']) == options.RunOptions()


@pytest.mark.parametrize(
  ('word', 'message'),
  [
    ('--job_logdir=x', 'there is no flag --job_logdir; did you mean --job_log'),
    ('--zzz', 'there is no flag --zzz; see --help'),
    ('tasks.X', "'tasks.X' belongs to no flag"),
    ('--num_hosts=two', "--num_hosts must be an integer at least 1, got 'two'"),
    ('--num_hosts', '--num_hosts needs a value'),
    ('--num_hosts=0', 'at least 1, got 0; e.g. --num_hosts=1$'),
    ('--host_idx=-1', '--host_idx must be an integer at least 0'),
    ('--jax_profiler_port=99999999', 'from 1 to 65535, got 99999999'),
    ('--server_addr=here:0', '--server_addr must be HOST:PORT'),
    ('--server_addr=here:1', 'several processes need --num_hosts and'),
    ('--restore_checkpoint_step=-1', 'step must be an integer at least 0'),
    ('--async_timeout_secs=nan', "from 1 to .*, got 'nan'"),
    ('--mode=dream', "--mode must be one of train, .* got 'dream'"),
    ('--traceback=perhaps', "must be true or false, got 'perhaps'"),
  ],
)
def test_a_wrong_word(word, message):
  with pytest.raises(options.UsageError, match=message):
    options.parse(['pax', word])


def test_flags_are_checked_together_and_when_options_are_made_in_python():
  words = ['--server_addr=a:1', '--num_hosts=2']
  assert options.parse(['pax', *words, '--host_idx=1']).host_idx == 1
  with pytest.raises(options.UsageError, match='below --num_hosts=2, got 2'):
    options.parse(['pax', *words, '--host_idx=2'])
  with pytest.raises(options.UsageError, match='hang_timeout_secs must be'):
    options.RunOptions(hang_timeout_secs=-1)
  with pytest.raises(
    options.UsageError, match='--aot_load is for --mode=train'
  ):
    options.RunOptions(mode='eval', aot_load='x')
  with pytest.raises(options.UsageError, match='--pgle is for --mode=train'):
    options.RunOptions(mode='eval', pgle='auto')
  with pytest.raises(options.UsageError, match='--aot_load has it compiled'):
    options.RunOptions(pgle='manual', aot_load='x')
  with pytest.raises(options.UsageError, match='--profile_steps is for'):
    options.RunOptions(mode='eval', profile_steps='1:2')
  with pytest.raises(options.UsageError, match='below END; .*=5:10'):
    options.RunOptions(profile_steps='5:5')


@pytest.mark.parametrize('mode', ['eval', 'decode', 'decode_once', 'quantize'])
@pytest.mark.parametrize(
  'word', ['--restore_checkpoint_dir=/a', '--restore_checkpoint_step=5']
)
def test_a_state_comes_from_one_place(mode, word):
  words = [f'--mode={mode}', '--restore_checkpoint_dir=/a', word]
  options.parse(['pax', *words])
  with pytest.raises(options.UsageError, match='have no effect; .*DIR@STEP'):
    options.parse(['pax', *words, '--init_from=/b'])


def test_a_job_that_follows_has_one_first_step():
  steps = ['--restore_checkpoint_step=5', '--restore_checkpoint_step=6']
  options.parse(['pax', '--mode=decode_once', *steps])
  for mode in ('eval', 'decode', 'quantize'):
    words = [f'--mode={mode}', '--restore_checkpoint_dir=/a', *steps]
    with pytest.raises(options.UsageError, match=r'one .*got \[5, 6\]'):
      options.parse(['pax', *words])


def test_a_conversion_has_a_source():
  with pytest.raises(
    options.UsageError, match='needs --restore_checkpoint_dir'
  ):
    options.parse(['pax', '--mode=quantize', '--restore_checkpoint_step=5'])
  options.parse(['pax', '--mode=quantize', '--init_from=hf:/a'])


def test_a_wrong_flag_is_reported_without_jax():
  code = (
    'import sys; from pax import main;'
    "code = main.main(['pax', '--num_hosts=0']);"
    "assert 'jax' not in sys.modules; sys.exit(code)"
  )
  completed = subprocess.run(
    [sys.executable, '-c', code],
    env=os.environ | {'PYTHONPATH': os.pathsep.join(filter(None, sys.path))},
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert completed.returncode == 1
  assert completed.stderr.startswith('pax: error: --num_hosts must be')


_HOSTILE = [
  '', ' ', '0', '-1', '1', '1.5', 'nan', 'inf', '-inf', '1e400', '9' * 400,
  '9' * 5000, '0x10', '1_0', 'None', 'true', 'x', 'a\nb', '\x1b[31m', 'é',
  '\u2028', '\udcff', '$(id)', "'", '"', '--', '-', '=', 'a=b', '[', '{}', '%s',
]  # fmt: skip


def _hostile_words(name):
  return (
    *(f'--{name}={value}' for value in _HOSTILE), f'--{name}', f'--no{name}',
    f'-{name}', f'--{name}x', f'--{name}\n',
  )  # fmt: skip


def test_hostile_words_of_all_flags():
  # Each flag with some of them, each of them with some flags.
  for i, name in enumerate(FLAGS):
    _check_hostile(name, _hostile_words(name)[i % 5 :: 5])


@pytest.mark.nightly
@pytest.mark.parametrize('name', FLAGS)
def test_hostile_words_of_a_flag(name):
  _check_hostile(name, _hostile_words(name))


def _check_hostile(name, words):
  """Checks that each is parsed, or refused in one short line."""
  for word in words:
    try:
      options.parse(['pax', word])
    except options.UsageError as e:
      message = str(e)
      assert '\n' not in message and len(message) < 500, message
      assert name in message


def test_help_names_every_flag_within_the_line():
  with pytest.raises(options.HelpRequested) as help_requested:
    options.parse(['pax', '--exp=x', '--help'])
  text = str(help_requested.value)
  assert all(f'--{name}' in text for name in FLAGS)
  assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize('name', unsupported_flags.FLAGS)
def test_a_flag_of_paxml_that_is_not_here_says_why(name):
  with pytest.raises(
    options.UsageError, match=f'^--{name} is not supported: .'
  ):
    options.parse(['pax', f'--{name}=1'])


@pytest.mark.parametrize('name', unsupported_flags.IGNORED)
def test_flags_of_paxml_without_a_meaning_are_ignored(name):
  for word in (f'--{name}', f'--no{name}', f'--{name}=true'):
    assert options.parse(['pax', word]) == options.RunOptions()


def test_older_spellings_of_fiddle_flags():
  words = ['--fdl.task.name=x', '--fdl_tag.Own=3', '--fdl=config:a.b']
  found = options.parse(['pax', *words])
  assert found.fdl_set == ('task.name=x',)
  assert found.fdl_tags_set == ('Own=3',)
  assert found.fdl == ('config:a.b',)
