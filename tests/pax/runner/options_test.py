# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The command line: which flags there are, and what a wrong one says."""

from __future__ import annotations

import dataclasses

import pytest

from pax.runner import options

# A new knob is a field of a config. A flag is for what no config can say.
FLAGS = [
  'exp',
  'job_log_dir',
  'mode',
  'set',
  'eval_on_test',
  'enable_checkpoint_saving',
  'pmap_use_tensorstore',
  'jax_fully_async_checkpoint',
  'async_timeout_secs',
  'host_device_count',
  'compilation_cache_dir',
  'multiprocess_gpu',
  'server_addr',
  'num_hosts',
  'host_idx',
  'enable_summary_writer',
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


def test_defaults_are_those_of_the_dataclass():
  assert options.parse(['pax']) == options.RunOptions()


@pytest.mark.parametrize(
  ('word', 'message'),
  [
    ('--job_logdir=x', 'there is no flag --job_logdir; did you mean --job_log'),
    ('--zzz', 'there is no flag --zzz; see --help'),
    ('tasks.X', "'tasks.X' belongs to no flag"),
    ('--num_hosts=two', '--num_hosts=two'),
  ],
)
def test_a_wrong_word(word, message):
  with pytest.raises(options.UsageError, match=message):
    options.parse(['pax', word])


def test_help_names_every_flag_within_the_line():
  with pytest.raises(options.HelpRequested) as help_requested:
    options.parse(['pax', '--exp=x', '--help'])
  text = str(help_requested.value)
  assert all(f'--{name}' in text for name in FLAGS)
  assert max(map(len, text.splitlines())) <= 80
