# SPDX-License-Identifier: Apache-2.0
"""`vocabularies.json`: the vocabularies that a job was trained with.

The ids of another tokenizer are other text, without any error. So training
records the digest of each vocabulary of its input, and every later job that
continues, evaluates or decodes its checkpoints compares its own.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pax.checkpoints import paths
from pax.files import side_files, storage, working_copy
from praxis import base_input

FILE = 'vocabularies.json'

Vocabularies = Mapping[str, base_input.Vocabulary]


class VocabularyError(ValueError):
  """A vocabulary is another than that of the trained model."""


def record(
  job_log_dir: str, train_input: base_input.BaseInput, *, has_checkpoints: bool
) -> None:
  """Records the vocabularies of a training job, or compares them.

  Args:
    job_log_dir: the directory of the job.
    train_input: its training input.
    has_checkpoints: whether the job continues; before the first checkpoint no
      variable depends on the record, so it is replaced.

  Raises:
    VocabularyError: the job was trained with another vocabulary, or the
      processes have different ones.
  """
  current = dict(train_input.vocabularies())
  _check_processes(train_input.name, current)
  recorded = _read(job_log_dir) if has_checkpoints else {}
  _compare(job_log_dir, recorded, train_input.name, current)
  vocabularies = current | recorded
  if jax.process_index() == 0 and vocabularies != _read(job_log_dir):
    _write(job_log_dir, vocabularies)


def check(
  directories: Iterable[storage.PathLike | None],
  inputs: Sequence[base_input.BaseInput],
) -> None:
  """Compares the vocabularies of inputs with those of the trained model.

  Args:
    directories: job directories, or directories of checkpoints in them; None,
      and directories without a record, are ignored.
    inputs: inputs to evaluate or to decode.

  Raises:
    VocabularyError: one differs, or the processes have different ones.
  """
  for inp in inputs:
    current = dict(inp.vocabularies())
    _check_processes(inp.name, current)
    for directory in directories:
      if directory:
        path = _job_dir(directory)
        _compare(path, _read(path), inp.name, current)


def copy(source: storage.PathLike | None, job_log_dir: str) -> None:
  """Copies the record of the job whose variables another job converts.

  Args:
    source: the directory of the former job, or of its checkpoints; None, and a
      directory without a record, are ignored.
    job_log_dir: the directory of the latter job.
  """
  if source and jax.process_index() == 0 and (found := _read(_job_dir(source))):
    _write(job_log_dir, found)


def _job_dir(directory: storage.PathLike) -> storage.Path:
  """Returns the job directory of itself or of its folder of checkpoints."""
  path = working_copy.origin(directory)
  return path.parent if path.name == paths.CHECKPOINTS else path


def _compare(
  job_log_dir: storage.PathLike,
  recorded: Vocabularies,
  input_name: str,
  current: Vocabularies,
) -> None:
  for feature in sorted(recorded.keys() & current.keys()):
    old, new = recorded[feature], current[feature]
    if old.digest != new.digest:
      # Tokenizers without a file are named by their class.
      is_file = pathlib.PurePath(old.source).name != old.source
      setting = f'tokenizer.model_file={old.source}'
      how = f', such as with {setting} in the input,' if is_file else ''
      raise VocabularyError(
        f'the vocabulary of {feature} in input {input_name!r} is'
        f' {new.digest} ({new.source}), but the job was trained with'
        f' {old.digest} ({old.source}), according to'
        f' {working_copy.origin(job_log_dir) / FILE}: its ids would mean other'
        f' text. Use the old one{how} or train in another --job_log_dir'
      )


def _check_processes(input_name: str, current: Vocabularies) -> None:
  """Raises VocabularyError if the processes have different vocabularies."""
  if jax.process_count() == 1:
    return
  from jax.experimental import multihost_utils

  digests = {name: each.digest for name, each in current.items()}
  text = json.dumps(digests, sort_keys=True)
  own = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
  differs = (multihost_utils.process_allgather(own) != own).any(axis=-1)
  if differs.any():
    raise VocabularyError(
      f'the vocabularies of input {input_name!r} must be the same in all'
      f' processes; process {jax.process_index()} has {text}, and processes'
      f' {np.flatnonzero(differs).tolist()} have others: read the same text, or'
      ' set tokenizer.model_file to a file that all have'
    )


def _read(job_log_dir: storage.PathLike) -> dict[str, base_input.Vocabulary]:
  path = working_copy.origin(job_log_dir) / FILE
  return side_files.read_json(path, _parse) or {}


def _parse(content: Any) -> dict[str, base_input.Vocabulary]:
  side_files.check_fields(content, {'vocabularies': dict, 'sha256': str})
  vocabularies = content['vocabularies']
  if content['sha256'] != _checksum(vocabularies):
    raise ValueError('its checksum differs')
  return {
    name: base_input.Vocabulary(each['digest'], each['source'])
    for name, each in vocabularies.items()
  }


def _write(job_log_dir: str, vocabularies: Vocabularies) -> None:
  content = {name: each._asdict() for name, each in vocabularies.items()}
  text = json.dumps(
    {'vocabularies': content, 'sha256': _checksum(content)}, indent=1
  )
  side_files.write_text(working_copy.origin(job_log_dir) / FILE, f'{text}\n')


def _checksum(vocabularies: Any) -> str:
  text = json.dumps(vocabularies, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()
