# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Flags of processes that do not fit together are named."""

from __future__ import annotations

import functools

import pytest

from pax.runner import common_flags
from pax.runner.options import RunOptions, UsageError
from tests.testing import coordination_store


def _check(*options):
  """Compares the flags of the processes of one job; returns the errors."""
  return coordination_store.errors_of_processes(
    [functools.partial(common_flags.check, own) for own in options]
  )


def test_the_place_and_the_paths_of_a_process_are_its_own(caplog):
  first = RunOptions(exp='A', set=('X=1',), host_idx=0, job_log_dir='/a')
  second = RunOptions(exp='A', set=('X=1',), host_idx=1, job_log_dir='/b')
  assert _check(first, second) == [None, None]
  assert not caplog.records


def test_another_constant_is_a_warning(caplog):
  first, second = (RunOptions(exp='A', set=(f'X={i}',)) for i in range(2))
  assert _check(first, second) == [None, None]
  (record,) = caplog.records
  assert record.getMessage().endswith(
    'Here: --mode=train --exp=A --set=X=1; process 0: --mode=train --exp=A'
    ' --set=X=0'
  )


def test_another_mode_is_an_error():
  error, *others = _check(*(RunOptions(mode=m) for m in ('train', 'eval')))[
    ::-1
  ]
  assert others == [None] and isinstance(error, UsageError)
  message = 'need the same --mode, got --mode=eval here and --mode=train in pro'
  with pytest.raises(UsageError, match=message):
    raise error
