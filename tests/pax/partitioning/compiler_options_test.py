# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Compiler options of steps: by platform, named by users, at the compiler."""

from __future__ import annotations

import re
import types

import jax
import pytest

from pax import partitioning
from pax.partitioning import compiler_options
from tests.pax import tiny

ASYNC = 'xla_enable_async_all_gather'


def _options(platform, of_task, kind=''):
  device = types.SimpleNamespace(platform=platform, device_kind=kind)
  return compiler_options.step_options(device, of_task)


@pytest.mark.parametrize('platform', ['cpu', 'gpu'])
def test_only_tpus_have_defaults(platform):
  assert _options(platform, {}) == {}
  assert _options('tpu', {})[ASYNC] is True


@pytest.mark.parametrize(
  ('kind', 'fuses'),
  [
    ('TPU v4', False),
    ('TPU v5 lite', False),
    ('TPU v5', True),
    ('TPU v6 lite', True),
    ('TPU7x', False),
  ],
)
def test_all_gathers_of_some_chips_are_fused(kind, fuses):
  options = _options('tpu', {}, kind)
  name = 'xla_tpu_enable_async_collective_fusion_fuse_all_gather'
  assert options.get(name, False) is fuses
  assert _options('tpu', {'tpu': {name: 0}}, kind)[name] == 0


def test_the_task_overrides_defaults_and_adds_options():
  of_task = {'tpu': {ASYNC: False, 'xla_other': 2}, 'gpu': {'xla_gpu': 'on'}}
  expected = _options('tpu', {})
  expected |= {ASYNC: False, 'xla_other': 2}
  assert _options('tpu', of_task) == expected
  assert _options('gpu', of_task) == {'xla_gpu': 'on'}
  assert _options('cpu', of_task) == {}


@pytest.mark.parametrize('variable', ['LIBTPU_INIT_ARGS', 'XLA_FLAGS'])
def test_options_of_the_environment_are_left_to_it(variable, monkeypatch):
  monkeypatch.setenv(variable, f'--xla_other=1 --{ASYNC}=false')
  of_task = {'tpu': {ASYNC: True, 'xla_third': 3}}
  options = _options('tpu', of_task)
  assert options['xla_third'] == 3 and ASYNC not in options


def test_an_unknown_platform_is_an_error():
  with pytest.raises(ValueError, match="compiler_options must .* 'xla_a'"):
    _options('tpu', {'xla_a': {}})


def test_a_choice_is_logged_once(caplog):
  caplog.set_level('INFO')
  of_task = {'gpu': {'xla_logged': 1}}
  for _ in range(2):
    _options('gpu', of_task)
  messages = [m for m in caplog.messages if 'xla_logged' in m]
  assert messages == ['Compiler options of steps on gpu: xla_logged=1.']


def _partitioner(options):
  """The partitioner of a task with options for CPUs."""
  task_p = tiny.task()
  task_p.train.compiler_options = {'cpu': options}
  return partitioning.partition_task(task_p, tiny.spec(tiny.batch()))


def _invalid(option, reason):
  """The pattern of the message of a wrong option."""
  return re.escape(
    'task.train.compiler_options must have options of XLA for the platform, got'
    f' {option}: {reason}; correct or remove it, in COMPILER_OPTIONS'
  )


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    (
      {'xla_unknown': True},
      _invalid('xla_unknown=True', 'the name is unknown'),
    ),
    (
      {'xla_cpu_enable_fast_math': 'yes'},
      _invalid("xla_cpu_enable_fast_math='yes'", 'the value is not valid'),
    ),
  ],
)
def test_options_that_xla_does_not_take_are_named(options, message):
  step = _partitioner(options).train_step()
  with pytest.raises(ValueError, match=message):
    step.compile()


def test_values_that_the_compiler_of_tpus_does_not_take_are_named():
  # As libtpu 0.0.42 words it.
  error = jax.errors.JaxRuntimeError(
    "INVALID_ARGUMENT: Failed to parse 'x' into flag xla_jf_limit: "
  )
  with pytest.raises(ValueError, match="xla_jf_limit='x': the value is not"):
    with compiler_options.checked({'xla_jf_limit': 'x'}):
      raise error


def test_errors_of_other_options_are_left_as_they_are():
  error = jax.errors.JaxRuntimeError("No such compile option: 'xla_other'")
  with pytest.raises(jax.errors.JaxRuntimeError, match='xla_other'):
    with compiler_options.checked({'xla_unknown': 1}):
      raise error
