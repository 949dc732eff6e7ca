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
def test_only_tpus_have_options(platform):
  assert compiler_options.step_options(platform) == {}
  assert compiler_options.step_options('tpu')[ASYNC] is True


@pytest.mark.parametrize('variable', ['LIBTPU_INIT_ARGS', 'XLA_FLAGS'])
def test_options_of_the_environment_are_left_to_it(variable, monkeypatch):
  monkeypatch.setenv(variable, f'--xla_other=1 --{ASYNC}=false')
  options = compiler_options.step_options('tpu')
  assert options and ASYNC not in options


def test_options_reach_the_compiler(monkeypatch):
  monkeypatch.setattr(
    compiler_options, 'step_options', lambda platform: {'xla_unknown': True}
  )
  made = partitioning.partition_task(tiny.task(), tiny.spec(tiny.batch()))
  step = made.train_step()
  with pytest.raises(jax.errors.JaxRuntimeError, match='xla_unknown'):
    step.compile()
