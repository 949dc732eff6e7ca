# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Compiler options of steps: by platform, named by users, at the compiler."""

from __future__ import annotations

import jax
import pytest

from pax import partitioning
from pax.partitioning import compiler_options
from tests.pax import tiny

ASYNC = 'xla_enable_async_all_gather'


@pytest.mark.parametrize('platform', ['cpu', 'gpu'])
def test_only_tpus_have_defaults(platform):
  assert compiler_options.step_options(platform, {}) == {}
  assert compiler_options.step_options('tpu', {})[ASYNC] is True


def test_the_task_overrides_defaults_and_adds_options():
  of_task = {'tpu': {ASYNC: False, 'xla_other': 2}, 'gpu': {'xla_gpu': 'on'}}
  expected = compiler_options.step_options('tpu', {})
  expected |= {ASYNC: False, 'xla_other': 2}
  assert compiler_options.step_options('tpu', of_task) == expected
  assert compiler_options.step_options('gpu', of_task) == {'xla_gpu': 'on'}
  assert compiler_options.step_options('cpu', of_task) == {}


@pytest.mark.parametrize('variable', ['LIBTPU_INIT_ARGS', 'XLA_FLAGS'])
def test_options_of_the_environment_are_left_to_it(variable, monkeypatch):
  monkeypatch.setenv(variable, f'--xla_other=1 --{ASYNC}=false')
  of_task = {'tpu': {ASYNC: True, 'xla_third': 3}}
  options = compiler_options.step_options('tpu', of_task)
  assert options['xla_third'] == 3 and ASYNC not in options


def test_an_unknown_platform_is_an_error():
  with pytest.raises(ValueError, match="compiler_options must .* 'xla_a'"):
    compiler_options.step_options('tpu', {'xla_a': {}})


def test_a_choice_is_logged_once(caplog):
  caplog.set_level('INFO')
  of_task = {'gpu': {'xla_logged': 1}}
  for _ in range(2):
    compiler_options.step_options('gpu', of_task)
  messages = [m for m in caplog.messages if 'xla_logged' in m]
  assert messages == ['Compiler options of steps on gpu: xla_logged=1.']


def test_options_of_the_task_reach_the_compiler():
  task_p = tiny.task()
  task_p.train.compiler_options = {'cpu': {'xla_unknown': True}}
  made = partitioning.partition_task(task_p, tiny.spec(tiny.batch()))
  step = made.train_step()
  with pytest.raises(jax.errors.JaxRuntimeError, match='xla_unknown'):
    step.compile()
