# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Processes with different programs are named before they run them."""

from __future__ import annotations

import functools
import pathlib
import re
import types
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

from pax.partitioning import program_agreement
from tests.testing import coordination_store


def _mesh(*processes):
  """The mesh of one device of each process."""
  devices = [types.SimpleNamespace(process_index=i) for i in processes]
  return mock.Mock(devices=types.SimpleNamespace(flat=devices))


def _lowered(function):
  return jax.jit(function).lower(jnp.zeros(3))


def _check(*programs):
  """Compares the programs of the processes of one job; returns the errors."""
  mesh = _mesh(*range(len(programs)))
  return coordination_store.errors_of_processes(
    [
      functools.partial(program_agreement.check, 'train_step', program, mesh)
      for program in programs
    ]
  )


def test_processes_with_one_program_go_on():
  assert _check(*map(_lowered, [jnp.sin] * 2)) == [None, None]


def test_each_process_writes_a_program_that_differs(tmp_path, monkeypatch):
  monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
  errors = _check(*map(_lowered, [jnp.sin, jnp.cos]))
  operations = []
  for error in errors:
    assert isinstance(error, program_agreement.ProgramsDifferError)
    message = 'that of process 1 is not that of process 0. Start all with'
    assert message in str(error)
    file = re.search(r'in (\S+train_step_\S+\.mlir);', str(error))[1]
    text = pathlib.Path(file).read_text()
    operations.append(re.search(r'stablehlo\.(sine|cosine)', text)[1])
  assert operations == ['sine', 'cosine']


def test_payloads_of_custom_calls_are_no_difference():
  # As the address of a `jax.experimental.custom_partitioning`.
  programs = [
    mock.Mock(as_text=lambda i=i: f'@Partition {{backend_config = "{i}"}}')
    for i in (140234, 140999)
  ]
  assert _check(*programs) == [None, None]


@pytest.mark.parametrize('processes', [(0,), (0, 1)])
def test_the_mesh_of_some_processes_waits_for_none(processes, monkeypatch):
  monkeypatch.setattr(jax, 'process_count', lambda: 3)
  barriers = mock.Mock()
  program_agreement.check(
    'step', _lowered(jnp.sin), _mesh(*processes), barriers
  )
  assert not barriers.mock_calls
