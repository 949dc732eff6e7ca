# SPDX-License-Identifier: Apache-2.0
"""Data sets in files of JSON lines, and their builders of TFDS."""

from __future__ import annotations

import abc
import dataclasses
import importlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

_VERSION = '1.0.0'
_MODE = 'lm'


def json_parser(x: str | bytes) -> Any:
  """Returns the value of a line; the line itself if it is not JSON."""
  try:
    return json.loads(x)
  except ValueError:
    return x


class JsonLinesReader(abc.ABC):
  """Iterates over the examples in files, some compressed with Zstandard."""

  def __init__(self, filenames: Sequence[str] | str, para_joiner: str = '\n\n'):
    """Stores the names.

    Args:
      filenames: One file, or a list; those that end in `.zst` are compressed.
      para_joiner: Joins the paragraphs of a text.
    """
    if isinstance(filenames, str | os.PathLike):
      filenames = [filenames]
    self.filenames = list(filenames)
    self.para_joiner = para_joiner

  def __iter__(self) -> Iterator[dict[str, str]]:
    for filename in self.filenames:
      with open(filename, 'rb') as file:
        for line in _decompressed(str(filename), file):
          if line.strip():
            yield self._example(self._text(json_parser(line)))

  @abc.abstractmethod
  def _example(self, text: str) -> dict[str, str]:
    """Returns the features of a text."""

  def _text(self, item: Any) -> str:
    if isinstance(item, bytes):
      return item.decode()
    text = item['text']
    return self.para_joiner.join(text) if isinstance(text, list) else text


@dataclasses.dataclass(frozen=True)
class DataSet:
  """A data set that TFDS downloads and prepares."""

  # Names of the classes of its builder, and of the builder's configuration.
  builder_name: str
  config_name: str
  description: str
  homepage: str
  # Files of each split.
  urls: Mapping[str, str | list[str]]
  # The reader, and the features of TFDS by those of the reader.
  reader: type[JsonLinesReader]
  features: Mapping[str, str]
  # Features of a supervised example.
  supervised_keys: tuple[str, str] | None = None


def define_builder(data_set: DataSet, module: str) -> dict[str, type]:
  """Returns the classes of a builder by name; none where TFDS is absent.

  Args:
    data_set: The data set.
    module: The module that has the classes.
  """
  try:
    tfds = importlib.import_module('tensorflow_datasets')
  except ModuleNotFoundError:
    return {}

  def init(self: Any, *, mode: str | None = None, **kwargs: Any) -> None:
    tfds.core.BuilderConfig.__init__(
      self, name=mode, description=data_set.description, **kwargs
    )

  config = type(
    data_set.config_name,
    (tfds.core.BuilderConfig,),
    {'__module__': module, '__init__': init},
  )

  def info(self: Any) -> Any:
    return tfds.core.DatasetInfo(
      builder=self,
      description=data_set.description,
      features=tfds.features.FeaturesDict(
        {name: tfds.features.Text() for name in data_set.features.values()}
      ),
      supervised_keys=data_set.supervised_keys,
      homepage=data_set.homepage,
    )

  def split_generators(self: Any, dl_manager: Any) -> dict[str, Any]:
    paths = dl_manager.download(dict(data_set.urls))
    return {name: self._generate_examples(paths[name]) for name in paths}

  def generate_examples(self: Any, paths: Any) -> Iterator[tuple[str, Any]]:
    del self
    files = paths if isinstance(paths, list) else [paths]
    for index, example in enumerate(data_set.reader(files)):
      features = {
        theirs: example[ours] for ours, theirs in data_set.features.items()
      }
      yield f'{index}_{data_set.builder_name}', features

  builder = type(
    data_set.builder_name,
    (tfds.core.GeneratorBasedBuilder,),
    {
      '__module__': module,
      'VERSION': tfds.core.Version(_VERSION),
      'BUILDER_CONFIGS': [config(version=_VERSION, mode=_MODE)],
      '_info': info,
      '_split_generators': split_generators,
      '_generate_examples': generate_examples,
    },
  )
  return {data_set.config_name: config, data_set.builder_name: builder}


def _decompressed(filename: str, file: IO[bytes]) -> IO[bytes]:
  if not filename.endswith('.zst'):
    return file
  try:
    zstandard = importlib.import_module('zstandard')
  except ModuleNotFoundError as error:
    raise ValueError(
      f'{filename} needs the package zstandard: {error}; run `pip install'
      ' zstandard`'
    ) from error
  return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file))
