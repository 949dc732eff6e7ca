# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Tasks are declared once, on demand."""

from __future__ import annotations

import importlib

import pytest

from pax.inputs import seqio_tasks
from tests.pax.inputs import stand_in_seqio


def test_a_task_is_declared_when_it_is_asked_for(monkeypatch):
  monkeypatch.setattr(seqio_tasks, '_declarations', {})
  seqio, made = stand_in_seqio.module(), []

  @seqio_tasks.provides('first', 'second')
  def add(into):
    made.append(into)
    for name in ('first', 'second'):
      into.TaskRegistry.add(name, stand_in_seqio.Task())

  assert not made
  first = seqio_tasks.find(seqio, 'first')
  assert seqio_tasks.find(seqio, 'first') is first
  assert seqio_tasks.find(seqio, 'second') is not first
  assert made == [seqio]
  with pytest.raises(ValueError, match=r"'first', 'second'.*got 'third'"):
    seqio_tasks.find(seqio, 'third')


def test_seqio_that_is_missing(monkeypatch):
  def missing(name):
    raise ModuleNotFoundError(f'No module named {name!r}')

  monkeypatch.setattr(importlib, 'import_module', missing)
  with pytest.raises(ValueError, match='the input .* `pip install seqio`'):
    seqio_tasks.load('the input of this test')
