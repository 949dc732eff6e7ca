# SPDX-License-Identifier: Apache-2.0
"""Lazy declaration of SeqIO tasks by name.

Importing SeqIO imports TensorFlow and takes seconds. A module therefore
registers a function for each task, which the input that reads the task calls.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable
from typing import Any

from praxis import base_input

# Adds tasks to the registry of the module `seqio`.
AddTasks = Callable[[Any], None]
# Returns the fields of a task from the module `seqio` and the path of a
# SentencePiece model, which is None for the model of the task.
TaskFields = Callable[[Any, str | None], dict[str, Any]]

_declarations: dict[str, AddTasks] = {}
_task_fields: dict[str, TaskFields] = {}
# Directory of the data sets of TFDS; None is that of each task.
_tfds_data_dir: str | None = None


def set_tfds_data_dir(directory: str | None) -> None:
  """Sets the directory of the data sets of TFDS; None leaves that of tasks."""
  global _tfds_data_dir
  _tfds_data_dir = directory


def provides(*names: str) -> Callable[[AddTasks], AddTasks]:
  """Registers the decorated function as the declaration of tasks `names`."""

  def register(add_tasks: AddTasks) -> AddTasks:
    _declarations.update(dict.fromkeys(names, add_tasks))
    return add_tasks

  return register


def provides_task(*names: str) -> Callable[[TaskFields], TaskFields]:
  """Registers the decorated function as the fields of a task with `names`."""

  def register(task_fields: TaskFields) -> TaskFields:
    def add(seqio: Any) -> None:
      fields = task_fields(seqio, None)
      for name in names:
        seqio.TaskRegistry.add(name, **fields)

    provides(*names)(add)
    _task_fields.update(dict.fromkeys(names, task_fields))
    return task_fields

  return register


def task_with_vocabulary(name: str, sentencepiece_model: str) -> Any:
  """Returns the task `name` with another vocabulary; it is not registered.

  Args:
    name: A name of `provides_task`.
    sentencepiece_model: Path of the vocabulary, a SentencePiece model.

  Raises:
    ValueError: The task or the file is unknown, or SeqIO is not installed.
  """
  if name not in _task_fields:
    raise ValueError(
      f'the vocabulary of the task {name!r} cannot be replaced, only those of'
      f' {sorted(_task_fields)}; leave TOKENIZER out'
    )
  seqio = load(f'the task {name!r}')
  return seqio.Task(name, **_task_fields[name](seqio, sentencepiece_model))


def sentencepiece_vocabulary(seqio: Any, path: str) -> Any:
  """Returns the vocabulary of a SentencePiece model.

  Args:
    seqio: The module.
    path: A local file, or a URL, which is read when it is first used.

  Raises:
    ValueError: There is no such file.
  """
  if '://' not in path and not os.path.isfile(path):
    raise ValueError(
      f'the vocabulary must be the file of a SentencePiece model, got {path!r};'
      ' set TOKENIZER=/path/of/a.model, or VOCAB_PATH for the tasks of the GPU'
      ' experiments'
    )
  return seqio.SentencePieceVocabulary(path)


def load(wanted_by: str) -> Any:
  """Returns the module `seqio`, with the directory of `set_tfds_data_dir`.

  Args:
    wanted_by: The name of the object that needs it, for the message.

  Raises:
    ValueError: SeqIO is not installed.
  """
  try:
    seqio = importlib.import_module('seqio')
  except ModuleNotFoundError as error:
    raise ValueError(
      f'{wanted_by} needs the package seqio: {error}; run `pip install seqio`'
      ' (pax-jax[seqio]), or train without it: --set SYNTHETIC_DATA=True (one'
      " constant batch, in experiments on C4) or --set TRAIN_DATA='/data/*.txt'"
      ' (text files, in any language model; the quickstart experiments have'
      ' TRAIN_FILES)'
    ) from error
  if _tfds_data_dir is not None:
    seqio.set_tfds_data_dir_override(_tfds_data_dir)
  return seqio


def load_tensorflow() -> Any:
  """Returns the module `tensorflow`, of which SeqIO's datasets are."""
  # AutoGraph, which reads functions of datasets, takes only this form.
  import tensorflow as tf

  return tf


def find(seqio: Any, name: str) -> Any:
  """Returns the task or mixture `name`, declaring it first if necessary.

  Args:
    seqio: The module.
    name: The name in SeqIO's registry.

  Raises:
    ValueError: no module declares it.
  """
  known = (*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names())
  if name not in known:
    if name not in _declarations:
      raise ValueError(
        f'mixture_name must be one of {sorted({*known, *_declarations})}, got '
        f'{name!r}; import the module that adds it to seqio.TaskRegistry'
      )
    _declarations[name](seqio)
  return seqio.get_mixture_or_task(name)


def files(task: Any, split: str) -> list[str]:
  """Returns the files of a split of a task or mixture."""
  subtasks = load('the files of a task').get_subtasks(task)
  return [x for sub in subtasks for x in sub.source.list_shards(split)]


def vocabularies(task: Any) -> dict[str, base_input.Vocabulary]:
  """Returns the vocabularies of the features of a task or mixture.

  Features that are token ids already have none.
  """
  return {
    name: _comparable_vocabulary(vocabulary)
    for name, vocabulary in _tokenizers(task).items()
  }


def vocabulary_sizes(task: Any) -> dict[str, int]:
  """Returns the number of ids of `inputs` and `targets`, as in batches."""
  return {
    name: vocabulary.vocab_size
    for name, vocabulary in _tokenizers(task).items()
    if name in ('inputs', 'targets')
  }


def _tokenizers(task: Any) -> dict[str, Any]:
  """Returns the vocabularies of features that are text."""
  pass_through = load('a vocabulary').PassThroughVocabulary
  return {
    name: feature.vocabulary
    for name, feature in task.output_features.items()
    if not isinstance(feature.vocabulary, pass_through)
  }


def _comparable_vocabulary(vocabulary: Any) -> base_input.Vocabulary:
  """Returns the SentencePiece model of a vocabulary, else its type and size."""
  name = f'{type(vocabulary).__name__} of {vocabulary.vocab_size} ids'
  model = getattr(vocabulary, 'sp_model', None)
  if not isinstance(model, bytes):
    return base_input.Vocabulary(name, name)
  path = getattr(vocabulary, 'sentencepiece_model_file', name)
  digest = hashlib.sha256(model).hexdigest()
  return base_input.Vocabulary(f'sha256:{digest}', str(path))
