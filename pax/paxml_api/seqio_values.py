# SPDX-License-Identifier: Apache-2.0
"""Vocabularies and features of SeqIO that paxml's experiments define at import.

Here they are made when they are first read: SeqIO imports TensorFlow, and the
vocabularies read files.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from pax.inputs.seqio import c4_tasks, pile_lambada_boolq_tasks
from pax.inputs.seqio import tasks as seqio_tasks


def _task_registry() -> type:
  """Returns `seqio.TaskRegistry` with a method for versions of a TFDS."""
  seqio = seqio_tasks.load('TaskRegistry')
  # The types of SeqIO are not known where it is not installed.
  registry: Any = seqio.TaskRegistry

  class TaskRegistry(registry):
    """Registry of tasks that also adds several versions of a task."""

    # Names that users' programs list here; unused.
    TASK_NAMES: list[str] = []

    @classmethod
    def add_versioned_tfds_task(
      cls,
      name: str,
      *,
      versions: Sequence[str],
      pinned_version: str | None = None,
      tfds_name: str,
      tfds_data_dir: str | None = None,
      **kwargs: Any,
    ) -> list[Any]:
      """Adds a task for each version of a data set of TFDS.

      Args:
        name: Name of the tasks; `_<version>` is appended.
        versions: Versions of the data set.
        pinned_version: The version of the task `name` itself; None adds none.
        tfds_name: Name of the data set, without version.
        tfds_data_dir: Directory of the data set.
        **kwargs: Arguments of `seqio.Task`.

      Returns:
        The tasks.
      """
      names = {f'{name}_{version}': version for version in versions}
      if pinned_version is not None:
        names[name] = pinned_version
      return [
        cls.add(
          task_name,
          source=seqio.TfdsDataSource(
            tfds_name=f'{tfds_name}:{version}', tfds_data_dir=tfds_data_dir
          ),
          **kwargs,
        )
        for task_name, version in names.items()
      ]

  return TaskRegistry


@functools.cache
def _make(name: str) -> Any:
  return _CONSTRUCTORS[name]()


def _feature(name: str, vocabulary: str, **options: bool) -> Any:
  seqio = seqio_tasks.load(name)
  return seqio.Feature(vocabulary=_make(vocabulary), **options)


def _lambada_features() -> dict[str, Any]:
  name = 'LAMBADA_OUTPUT_FEATURES'
  return {
    'inputs': _feature(name, 'vocab', add_eos=True, required=False),
    'targets': _feature(name, 'vocab', add_eos=True),
  }


_CONSTRUCTORS: dict[str, Callable[[], Any]] = {
  'TaskRegistry': _task_registry,
  'GPT_VOCABULARY': lambda: seqio_tasks.load(
    'GPT_VOCABULARY'
  ).SentencePieceVocabulary(c4_tasks.GPT_SPM_PATH),
  'PASS_THROUGH_VOCABULARY': lambda: seqio_tasks.load(
    'PASS_THROUGH_VOCABULARY'
  ).PassThroughVocabulary(size=c4_tasks.VOCABULARY_SIZE),
  'C4_GPT_TRAIN_FEATURES_LM': lambda: {
    'targets': _feature(
      'C4_GPT_TRAIN_FEATURES_LM', 'GPT_VOCABULARY', add_eos=False
    )
  },
  'C4_GPT_EVAL_FEATURES_LM': lambda: {
    'targets': _feature(
      'C4_GPT_EVAL_FEATURES_LM', 'PASS_THROUGH_VOCABULARY', add_eos=False
    )
  },
  'vocab_path': lambda: pile_lambada_boolq_tasks.from_environment('VOCAB_PATH'),
  'vocab': lambda: seqio_tasks.load('vocab').SentencePieceVocabulary(
    _make('vocab_path')
  ),
  'GPT_OUTPUT_FEATURES_LM': lambda: {
    'targets': _feature('GPT_OUTPUT_FEATURES_LM', 'vocab', add_eos=True)
  },
  'LAMBADA_OUTPUT_FEATURES': _lambada_features,
  'BOOLQ_OUTPUT_FEATURES': lambda: {
    name: _feature('BOOLQ_OUTPUT_FEATURES', 'vocab', add_eos=False)
    for name in ('inputs', 'targets')
  },
}


def __getattr__(name: str) -> Any:
  if name not in _CONSTRUCTORS:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  try:
    return _make(name)
  except ValueError as error:
    raise AttributeError(f'{name} cannot be made: {error}') from error
