# SPDX-License-Identifier: Apache-2.0
"""A folder as `save_pretrained` of transformers writes it."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pax.huggingface import (
  families,
  safetensors,
  tensor_entries,
  tied_tables,
)
from pax.huggingface.weight_layouts import WeightLayout

CONFIG_FILE = 'config.json'
GENERATION_CONFIG_FILE = 'generation_config.json'
# Dtypes of weights.
DTYPES = ('bfloat16', 'float16', 'float32')
_EOS = 'eos_token_id'
# Rows of tensors that are compared at once.
_ROWS = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFolder:
  """Configuration and tensors of a model; reads headers and copies only."""

  path: pathlib.Path
  # Contents of config.json, see `read_config`.
  config: Mapping[str, Any]
  model: families.Model
  # Weights by the names of their tensors.
  layouts: Mapping[str, Sequence[WeightLayout]]
  # Tensors that are copies of tied weights, and the tensors of those.
  copies: Mapping[str, str]
  # All tensors, in the order of the files.
  entries: Mapping[str, tensor_entries.Entry]

  @classmethod
  def open(
    cls, path: str | pathlib.Path, *, has_mtp: bool = False
  ) -> ModelFolder:
    """Returns the model of a folder.

    Args:
      path: The folder.
      has_mtp: Whether to read its modules of multi-token prediction.

    Raises:
      ValueError: The folder has no model, or one that is not supported.
    """
    path = pathlib.Path(path)
    config = read_config(path)
    entries = tensor_entries.read(path, config)
    family = families.find_family(config, has_mtp=has_mtp)
    model = families.read_model(config, has_mtp=has_mtp, names=entries)
    layouts = families.find_tensors(family, model, entries)
    for name, parts in layouts.items():
      parts[0].check_shape(entries[name].shape)
      if entries[name].dtype.name not in DTYPES:
        raise ValueError(
          f'{name} in {path} must have one of the dtypes {list(DTYPES)}, got'
          f' {entries[name].dtype.name}; use a model that is not quantized, and'
          ' save it with one of them'
        )
    copies = families.find_copies(family, layouts, entries)
    for name, source in copies.items():
      _check_copy(name, entries[name], source, entries[source])
    ignored = re.compile('|'.join(family.ignored))
    unknown = [
      name
      for name in entries
      if name not in layouts
      and name not in copies
      and not ignored.fullmatch(name)
    ]
    if unknown:
      raise ValueError(
        f'{len(unknown)} tensors in {path} do not belong to a'
        f' {config["model_type"]} with this config.json, such as'
        f' {unknown[:3]}; config.json and the files must be of one model'
      )
    return cls(
      path=path,
      config=config,
      model=model,
      layouts=layouts,
      copies=copies,
      entries=entries,
    )

  @property
  def is_quantized(self) -> bool:
    """Whether a tensor is not in the files as it is read."""
    return any(map(tensor_entries.is_quantized, self.entries.values()))

  @property
  def dtypes(self) -> dict[str, np.dtype]:
    """Dtypes by the names of tensors."""
    return {name: entry.dtype for name, entry in self.entries.items()}


def _check_copy(
  name: str,
  copy: tensor_entries.Entry,
  source_name: str,
  source: tensor_entries.Entry,
) -> None:
  """Checks that a copy has the values of a tied weight.

  Transformers does not tie tensors whose values differ.

  Args:
    name: Name of the copy.
    copy: The copy.
    source_name: Name of the weight.
    source: The weight.

  Raises:
    ValueError: It has others.
  """
  is_equal = copy.shape == source.shape
  rows = source.shape[0] if is_equal else 0
  values = copy.memory_map(), source.memory_map()
  for first in range(0, rows, _ROWS):
    part, want = (x[first : first + _ROWS].astype(np.float32) for x in values)
    is_equal = is_equal and np.array_equal(part, want, equal_nan=True)
  if not is_equal:
    raise ValueError(
      f'{name} in {copy.file} must be equal to {source_name}, as config.json'
      ' ties them, got other values; set tie_word_embeddings to false if the'
      ' model has both, else remove the copy'
    )


def read_eos_ids(path: pathlib.Path, config: Mapping[str, Any]) -> list[int]:
  """Returns the ids at which transformers ends a text; [] for none.

  Args:
    path: The folder.
    config: Contents of config.json, for a folder without generation_config.json
      or without these ids in it.

  Raises:
    ValueError: generation_config.json is damaged.
  """
  file = path / GENERATION_CONFIG_FILE
  settings = read_object(file) if file.exists() else {}
  ids = settings.get(_EOS, config.get(_EOS))
  if ids is None:
    return []
  return list(ids) if isinstance(ids, list) else [ids]


def read_config(path: pathlib.Path) -> dict[str, Any]:
  """Returns the contents of config.json.

  Whether embedding and softmax share a table is decided by the files, if there
  are any, for the models of `tied_tables`.

  Args:
    path: The folder.

  Raises:
    ValueError: There is none, or it is damaged.
  """
  file = path / CONFIG_FILE
  try:
    config = read_object(file)
  except (FileNotFoundError, NotADirectoryError) as e:
    raise ValueError(
      f'{path} must be a folder with {CONFIG_FILE} and *.safetensors, got none;'
      ' save the model with save_pretrained(folder)'
    ) from e
  if tied_tables.are_undeclared(config) and any(path.glob('*.safetensors')):
    return tied_tables.declare_by_tensors(config, safetensors.read_folder(path))
  return config


def read_object(file: pathlib.Path) -> dict[str, Any]:
  """Returns the object in a file of JSON.

  Raises:
    ValueError: The file has something else.
  """
  next_step = 'copy it from the model again'
  try:
    content = json.loads(file.read_text())
  except ValueError as e:
    raise ValueError(f'{file} must be JSON, got: {e}; {next_step}') from e
  if not isinstance(content, dict):
    kind = type(content).__name__
    raise ValueError(f'{file} must be a JSON object, got a {kind}; {next_step}')
  return content
