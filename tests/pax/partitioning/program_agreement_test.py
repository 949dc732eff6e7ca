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

from pax.partitioning import program_agreement
from tests.testing import coordination_store

# Of two processes.
_MESH = mock.Mock(
  devices=types.SimpleNamespace(
    flat=[types.SimpleNamespace(process_index=i) for i in range(2)]
  )
)


def _lowered(function):
  return jax.jit(function).lower(jnp.zeros(3))


def _check(*functions):
  """Compares the programs of the processes of one job; returns the errors."""
  return coordination_store.errors_of_processes(
    [
      functools.partial(
        program_agreement.check, 'train_step', _lowered(function), _MESH
      )
      for function in functions
    ]
  )


def test_processes_with_one_program_go_on():
  assert _check(jnp.sin, jnp.sin) == [None, None]


def test_each_process_writes_a_program_that_differs(tmp_path, monkeypatch):
  monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
  errors = _check(jnp.sin, jnp.cos)
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
  errors = coordination_store.errors_of_processes(
    [
      functools.partial(program_agreement.check, 'step', program, _MESH)
      for program in programs
    ]
  )
  assert errors == [None, None]


def test_one_process_has_nothing_to_compare():
  mesh = jax.make_mesh((1,), ('x',), devices=jax.devices()[:1])
  program_agreement.check('step', _lowered(jnp.sin), mesh)
