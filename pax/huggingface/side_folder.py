# SPDX-License-Identifier: Apache-2.0
"""The folder `huggingface` of a job: what its model has besides variables.

It has config.json and the tokenizer. That of an imported model also has tensors
that are no variables, and the headers of the safetensors files, so that an
export gives the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any, overload

from pax.files import atomic_file, side_files, storage
from pax.huggingface import model_folder, safetensors, tensor_entries

Path = pathlib.Path

FOLDER = 'huggingface'
# Headers by file name; without any in the folder of an experiment, whose model
# has no original files.
_HEADERS = 'safetensors_headers.json'
_NO_HEADERS = '{}'
# Tensors that are no variables.
_EXTRA = 'extra.safetensors'
# A tokenizer has some of them.
_TOKENIZER_FILES = (
  '*token*',
  'chat_template*',
  'merges.txt',
  'spiece.model',
  'vocab.*',
)
# Weights in other formats, which are not taken along.
_OTHER_WEIGHTS = (
  '.bin',
  '.gguf',
  '.h5',
  '.msgpack',
  '.onnx',
  '.ot',
  '.pt',
  '.pth',
  '.safetensors',
  '.tflite',
)


def write(
  model: model_folder.ModelFolder, job_log_dir: storage.PathLike
) -> None:
  """Writes the folder `huggingface` of a directory.

  Args:
    model: The model.
    job_log_dir: The directory of a job, also in a bucket.
  """
  side = storage.to_path(job_log_dir) / FOLDER
  if isinstance(side, storage.BucketPath):
    with tempfile.TemporaryDirectory() as local:
      _write_files(model, Path(local))
      storage.upload_tree(Path(local), side, storage.files(Path(local)))
    return
  atomic_file.make_folder(side, parents=True)
  _write_files(model, side)


def write_of_experiment(
  files: Mapping[str, str | Path], job_log_dir: Path
) -> None:
  """Writes the folder of a model that no other folder initialized.

  The folder of an imported model stays as it is; that of an experiment gets the
  files of the newest start. An error of the file system is a warning.

  Args:
    files: Contents or paths of the files, by name.
    job_log_dir: The directory of the job.
  """
  side = job_log_dir / FOLDER
  with side_files.tolerate_errors(side):
    if side.exists() and not _is_of_experiment(side):
      return
    side_files.make_directories(job_log_dir, FOLDER)
    atomic_file.write_text(side / _HEADERS, _NO_HEADERS)
    for name, content in files.items():
      if isinstance(content, Path):
        # Read first: it may be the file that is replaced.
        data = content.read_bytes()
      else:
        data = content.encode()
      with atomic_file.open_atomic(side / name) as file:
        file.write(data)


def _is_of_experiment(side: Path) -> bool:
  file = side / _HEADERS
  return file.exists() and file.read_text() == _NO_HEADERS


def copy_of_job(
  source: storage.PathLike, job_log_dir: storage.PathLike
) -> None:
  """Copies the folder of another job, if it has one and this job has none.

  Args:
    source: The directory of the other job or of its checkpoints.
    job_log_dir: The directory of the job.
  """
  side = _find(storage.to_path(source))
  target = storage.to_path(job_log_dir) / FOLDER
  if target.exists() or not side.exists():
    return
  with tempfile.TemporaryDirectory() as local:
    if isinstance(side, storage.BucketPath):
      storage.download_tree(side, Path(local), storage.files(side))
      side = Path(local)
    if isinstance(target, storage.BucketPath):
      storage.upload_tree(side, target, storage.files(side))
    else:
      shutil.copytree(side, target)


@overload
def _find(directory: Path) -> Path: ...
@overload
def _find(directory: storage.Path) -> storage.Path: ...
def _find(directory: storage.Path) -> storage.Path:
  """Returns the folder of a job; `directory` may be that of checkpoints."""
  folders = [directory / FOLDER, directory.parent / FOLDER]
  return next((x for x in folders if x.exists()), folders[0])


def _write_files(model: model_folder.ModelFolder, side: Path) -> None:
  for file in sorted(model.path.iterdir()):
    if file.is_file() and not file.name.endswith(_OTHER_WEIGHTS):
      shutil.copyfile(file, side / file.name)
  if not model.is_quantized:
    headers = {
      file.name: safetensors.read_header(file)
      for file in safetensors.weight_files(model.path)
    }
    (side / _HEADERS).write_text(json.dumps(headers))
  extra = {
    name: entry
    for name, entry in model.entries.items()
    if name not in model.layouts and name not in model.copies
  }
  if extra and not model.is_quantized:
    shapes = {name: (e.shape, e.dtype) for name, e in extra.items()}
    safetensors.write(
      side / _EXTRA,
      safetensors.make_header(shapes),
      (entry.read() for entry in extra.values()),
    )


@dataclasses.dataclass(frozen=True)
class SideFolder:
  """The folder of a job, or another with config.json and the tokenizer."""

  path: Path

  @classmethod
  def of_job(cls, directory: Path) -> SideFolder:
    """Returns the folder of a job.

    Args:
      directory: That of the job or of its checkpoints.
    """
    return cls(_find(directory))

  def config(self) -> dict[str, Any]:
    """Returns the contents of config.json, of weights that are not quantized.

    Raises:
      ValueError: There is none.
    """
    file = self.path / model_folder.CONFIG_FILE
    if not file.exists():
      raise ValueError(
        f'{self.path} must have {model_folder.CONFIG_FILE}, got none; pass'
        ' --config=FOLDER with that of the model'
      )
    config = model_folder.read_object(file)
    config.pop(tensor_entries.QUANTIZATION_CONFIG, None)
    return config

  def headers(self) -> dict[str, str]:
    """Returns the headers of the original files by name; {} without them."""
    file = self.path / _HEADERS
    return json.loads(file.read_text()) if file.exists() else {}

  def tensor_names(self) -> list[str] | None:
    """Returns the tensors of the original files; None without them."""
    headers = self.headers()
    if not headers:
      return None
    return [
      name
      for header in headers.values()
      for name in safetensors.header_tensors(header)[0]
    ]

  def extra(self) -> Mapping[str, safetensors.TensorEntry]:
    """Returns the tensors of the original files that are no variables."""
    file = self.path / _EXTRA
    if not self.headers() or not file.exists():
      return {}
    return safetensors.read_entries(file)

  def copy_to(self, output: Path, config: Mapping[str, Any]) -> None:
    """Copies the files that a folder of Hugging Face has besides weights.

    Args:
      output: The folder.
      config: Contents of its config.json.
    """
    self._copy('*', output)
    file = output / model_folder.CONFIG_FILE
    if config != model_folder.read_object(file):
      file.write_text(json.dumps(config, indent=2) + '\n')

  def copy_tokenizer_to(self, output: Path) -> None:
    """Copies the files of the tokenizer and of chats to another folder."""
    for pattern in _TOKENIZER_FILES:
      self._copy(pattern, output)

  def _copy(self, pattern: str, output: Path) -> None:
    for file in sorted(self.path.glob(pattern)):
      is_weights = file.name.endswith(_OTHER_WEIGHTS)
      if file.is_file() and not is_weights and file.name != _HEADERS:
        shutil.copyfile(file, output / file.name)
