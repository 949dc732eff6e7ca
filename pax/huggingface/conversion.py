# SPDX-License-Identifier: Apache-2.0
"""Conversion of models between Hugging Face's folders and checkpoints.

A conversion has one variable in memory at a time. The checkpoint's directory
has a folder with what is no variable (`side_folder`), so that the way back
gives the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping

import numpy as np

from pax.checkpoints import leaf_writer, paths, reading
from pax.checkpoints.types import CheckpointError, CheckpointType
from pax.files import atomic_file
from pax.huggingface import (
  checkpoint_tensors,
  model_folder,
  peft_adapters,
  safetensors,
  side_folder,
  stacked_variables,
)
from pax.huggingface.stacked_variables import Repetition

Path = pathlib.Path


@dataclasses.dataclass(frozen=True)
class Summary:
  """The result of a conversion."""

  path: Path
  num_tensors: int
  num_bytes: int


def to_pax(
  source: str | Path,
  output: str | Path,
  *,
  repeated_layers: bool = False,
  has_mtp: bool = False,
) -> Summary:
  """Writes a checkpoint of step 0 with the weights of a folder.

  The variables have the dtypes of the tensors.

  Args:
    source: The folder.
    output: The directory of a job; the checkpoint is in its `checkpoints`.
    repeated_layers: Whether the variables are those of a repeated stack.
    has_mtp: Whether to read the modules of multi-token prediction.

  Raises:
    ValueError: The folder has no model that is supported, or its layers cannot
      be repeated.
    CheckpointError: The checkpoint exists already.
  """
  folder = model_folder.ModelFolder.open(source, has_mtp=has_mtp)
  repetition = None
  if repeated_layers:
    repetition = stacked_variables.repetition_of(folder.model.model())
  output = Path(output)
  name = paths.checkpoint_name(0, CheckpointType.GDA)
  final = output / paths.CHECKPOINTS / name
  if final.exists():
    raise CheckpointError(f'{final} exists already; choose another directory')
  side_folder.write(folder, output)
  leaf_writer.write_leaves(final, _leaves(folder, repetition), step=0)
  entries = [folder.entries[name] for name in folder.layouts]
  return Summary(final, len(entries), sum(e.num_bytes for e in entries))


def to_huggingface(
  directory: str | Path,
  output: str | Path,
  *,
  step: int | None = None,
  config_folder: str | Path | None = None,
  dtype: str | None = None,
  max_shard_size: int | None = None,
) -> Summary:
  """Writes a checkpoint as a folder of Hugging Face.

  Args:
    directory: The directory of a job or of its checkpoints.
    output: The folder, which is new or empty.
    step: Step of the checkpoint; None is the newest.
    config_folder: Folder with config.json and the tokenizer; None is
      `huggingface` in the directory of the job.
    dtype: Name of the dtype of the tensors, such as bfloat16; None keeps those
      of the checkpoint.
    max_shard_size: Maximum number of bytes of tensors in a file, unless one
      tensor is larger; None keeps the files of the original model.

  Raises:
    ValueError: There is no config.json, or the checkpoint is of another model.
    CheckpointError: There is no checkpoint.
  """
  output = _new_folder(output)
  side = _side_folder(directory, config_folder)
  config = side.config()
  _, path = reading.find_checkpoint(Path(directory), step)
  source = checkpoint_tensors.CheckpointTensors.open(side, config, path, dtype)
  headers = source.headers(side, max_shard_size)
  if headers != side.headers():
    config = source.set_dtype(config)
  atomic_file.make_folder(output, parents=True)
  files = {output / name: header for name, header in headers.items()}
  safetensors.write_files(files, source.read())
  side.copy_to(output, config)
  _write_index(output, headers)
  return Summary(output, len(source.shapes), source.num_bytes)


def to_peft(
  directory: str | Path,
  output: str | Path,
  *,
  step: int | None = None,
  config_folder: str | Path | None = None,
) -> Summary:
  """Writes the low-rank updates of a checkpoint as a folder of PEFT.

  Its tensors are float32. The weights may be quantized.

  Args:
    directory: The directory of a job or of its checkpoints.
    output: The folder, which is new or empty.
    step: Step of the checkpoint; None is the newest.
    config_folder: See `to_huggingface`.

  Raises:
    ValueError: The checkpoint has no such updates, or see `to_huggingface`.
    CheckpointError: There is no checkpoint.
  """
  output = _new_folder(output)
  side = _side_folder(directory, config_folder)
  config = side.config()
  _, path = reading.find_checkpoint(Path(directory), step)
  source = checkpoint_tensors.CheckpointVariables.open(side, config, path)
  modules = peft_adapters.of_modules(source.low_rank_factors(), source.family)
  atomic_file.make_folder(output, parents=True)
  peft_adapters.write(
    output,
    modules,
    peft_adapters.make_config(modules, source.layouts, source.family, config),
  )
  side.copy_tokenizer_to(output)
  num_bytes = sum(x.a.nbytes + x.b.nbytes for x in modules.values())
  return Summary(output, 2 * len(modules), num_bytes)


def _new_folder(output: str | Path) -> Path:
  output = Path(output)
  if output.exists() and any(output.iterdir()):
    raise ValueError(f'{output} must be a new or empty folder, got files in it')
  return output


def _side_folder(
  directory: str | Path, config_folder: str | Path | None
) -> side_folder.SideFolder:
  if config_folder is None:
    return side_folder.SideFolder.of_job(Path(directory))
  return side_folder.SideFolder(Path(config_folder))


def _leaves(
  folder: model_folder.ModelFolder, repetition: Repetition | None
) -> Iterator[tuple[str, np.ndarray]]:
  yield 'step', np.zeros((), np.uint32)
  dtypes = folder.dtypes
  for variable in stacked_variables.of_layouts(folder.layouts, repetition):
    variable.dtype(dtypes)
    yield (
      checkpoint_tensors.leaf_name(variable),
      variable.from_tensors(lambda name: folder.entries[name].read()),
    )


def _write_index(output: Path, headers: Mapping[str, str]) -> None:
  """Writes the index of several files, unless that of the model fits."""
  file = output / safetensors.INDEX_FILE
  files: dict[str, str] = {}
  size = 0
  for name, header in headers.items():
    tensors, _ = safetensors.header_tensors(header)
    files |= dict.fromkeys(tensors, name)
    size += sum(map(checkpoint_tensors.tensor_bytes, tensors.values()))
  if file.exists():
    index = json.loads(file.read_text())
    is_same = index.get('weight_map') == files
    if is_same and index.get('metadata', {}).get('total_size') == size:
      return
  if len(headers) == 1:
    # That of the model lists files that were not written.
    file.unlink(missing_ok=True)
    return
  index = {'metadata': {'total_size': size}, 'weight_map': files}
  file.write_text(json.dumps(index, indent=2) + '\n')
