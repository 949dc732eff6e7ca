# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Tasks are declared once, on demand."""

from __future__ import annotations

import importlib
import types

import pytest

from pax.inputs.seqio import tasks as seqio_tasks


class Registry:
  """The part of SeqIO's registry that declarations use."""

  def __init__(self):
    self.tasks = {}

  def names(self):
    return self.tasks.keys()

  def add(self, name, task):
    self.tasks[name] = task


def registries():
  tasks = Registry()
  return types.SimpleNamespace(
    TaskRegistry=tasks,
    MixtureRegistry=Registry(),
    get_mixture_or_task=tasks.tasks.__getitem__,
  )


def test_a_task_is_declared_when_it_is_asked_for(monkeypatch):
  monkeypatch.setattr(seqio_tasks, '_declarations', {})
  seqio, made = registries(), []

  @seqio_tasks.provides('first', 'second')
  def add(into):
    made.append(into)
    for name in ('first', 'second'):
      into.TaskRegistry.add(name, object())

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


@pytest.fixture
def seqio(monkeypatch):
  """A stand-in of the module, which notes the folder of TFDS."""
  module = registries()
  module.folders = []
  module.set_tfds_data_dir_override = module.folders.append
  module.Task = lambda name, **fields: (name, fields)
  module.SentencePieceVocabulary = lambda path: path
  monkeypatch.setattr(importlib, 'import_module', lambda name: module)
  monkeypatch.setattr(seqio_tasks, '_declarations', {})
  monkeypatch.setattr(seqio_tasks, '_task_fields', {})
  return module


def test_a_task_has_another_vocabulary(seqio, tmp_path):
  @seqio_tasks.provides_task('plain', 'plain_1.0.0')
  def fields(module, model):
    path = model or 'default.model'
    vocabulary = seqio_tasks.sentencepiece_vocabulary(module, path)
    return {'vocabulary': vocabulary}

  path = tmp_path / 'a.model'
  path.touch()
  for name in ('plain', 'plain_1.0.0'):
    made = seqio_tasks.task_with_vocabulary(name, str(path))
    assert made == (name, {'vocabulary': str(path)})
  assert not seqio.TaskRegistry.names()
  with pytest.raises(ValueError, match=r"'default.model'; set TOKENIZER"):
    seqio_tasks.find(seqio, 'plain')
  with pytest.raises(ValueError, match="'other'.*leave TOKENIZER out"):
    seqio_tasks.task_with_vocabulary('other', str(path))


def test_urls_of_vocabularies_are_read_later(seqio):
  url = 'gs://bucket/a.model'
  assert seqio_tasks.sentencepiece_vocabulary(seqio, url) == url


def test_the_folder_of_tfds_is_that_of_the_flag(seqio, monkeypatch):
  monkeypatch.setattr(seqio_tasks, '_tfds_data_dir', None)
  seqio_tasks.load('this test')
  assert not seqio.folders
  seqio_tasks.set_tfds_data_dir('/data')
  seqio_tasks.load('this test')
  assert seqio.folders == ['/data']
