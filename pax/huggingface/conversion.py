# SPDX-License-Identifier: Apache-2.0
"""Conversion of models between Hugging Face's folders and checkpoints.

A conversion has one variable in memory at a time. The checkpoint's directory
has a folder `huggingface` with what is no variable: config.json, the tokenizer,
and the headers of the safetensors files, so that the way back gives the
same bytes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pax import atomic_file, storage
from pax.checkpoints import (
  byte_groups,
  leaf_writer,
  paths,
  policy_networks,
  reading,
)
from pax.checkpoints.checkpoint_reader import CheckpointReader
from pax.checkpoints.types import CheckpointError, CheckpointType, Shapes
from pax.huggingface import (
  families,
  model_folder,
  mtp_modules,
  safetensors,
  stacked_variables,
  tensor_entries,
  weight_layouts,
)
from pax.huggingface.stacked_variables import Repetition, Variable
from pax.huggingface.weight_layouts import WeightLayout

Path = pathlib.Path
# Shape and dtype of tensors by name.
Tensors = Mapping[str, tuple[tuple[int, ...], np.dtype]]

FOLDER = 'huggingface'
_HEADERS = 'safetensors_headers.json'
# Tensors that are no variables.
_EXTRA = 'extra.safetensors'
_LEAF = 'mdl_vars.'
_TRAINABLE = f'{_LEAF}params.'
# Variables of praxis.layers.injection.fp8_nvidia_gpu, which are no weights.
_FP8_STATISTICS = re.compile(
  r'.*\.(input|kernel|output_grad)_(scale|amax_history)\w*'
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
_MAX_FILE_BYTES = 5 * 10**9
# Bytes of small leaves that are read together.
_GROUP_BYTES = 16 * 2**20


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
  copy_files(folder, output)
  leaf_writer.write_leaves(final, _leaves(folder, repetition), step=0)
  entries = [folder.entries[name] for name in folder.layouts]
  return Summary(final, len(entries), sum(e.num_bytes for e in entries))


def copy_files(
  folder: model_folder.ModelFolder, output: storage.PathLike
) -> None:
  """Copies what is no variable to the folder `huggingface` of a directory.

  Args:
    folder: The model.
    output: The directory of a job, also in a bucket.
  """
  side = storage.to_path(output) / FOLDER
  if isinstance(side, storage.BucketPath):
    with tempfile.TemporaryDirectory() as local:
      _write_side_files(folder, Path(local))
      storage.upload_tree(Path(local), side, storage.files(Path(local)))
    return
  atomic_file.make_folder(side, parents=True)
  _write_side_files(folder, side)


def _write_side_files(folder: model_folder.ModelFolder, side: Path) -> None:
  for file in sorted(folder.path.iterdir()):
    if file.is_file() and not file.name.endswith(_OTHER_WEIGHTS):
      shutil.copyfile(file, side / file.name)
  if not folder.is_quantized:
    headers = {
      file.name: safetensors.read_header(file)
      for file in safetensors.weight_files(folder.path)
    }
    (side / _HEADERS).write_text(json.dumps(headers))
  extra = {
    name: entry
    for name, entry in folder.entries.items()
    if name not in folder.layouts and name not in folder.copies
  }
  if extra and not folder.is_quantized:
    shapes = {name: (e.shape, e.dtype) for name, e in extra.items()}
    safetensors.write(
      side / _EXTRA,
      safetensors.make_header(shapes),
      (entry.read() for entry in extra.values()),
    )


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
  directory, output = Path(directory), Path(output)
  side = Path(config_folder) if config_folder else _side_folder(directory)
  _, path = reading.find_checkpoint(directory, step)
  if output.exists() and any(output.iterdir()):
    raise ValueError(f'{output} must be a new or empty folder, got files in it')
  config = model_folder.read_object(_config_file(side))
  config.pop(tensor_entries.QUANTIZATION_CONFIG, None)
  source = _CheckpointTensors.open(side, config, path, dtype)
  headers = source.headers(side, max_shard_size)
  if headers != _original_headers(side):
    config = source.set_dtype(config)
  atomic_file.make_folder(output, parents=True)
  files = {output / name: header for name, header in headers.items()}
  safetensors.write_files(files, source.read())
  _copy_side_files(side, output, config)
  _write_index(output, headers)
  return Summary(output, len(source.shapes), source.num_bytes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _CheckpointTensors:
  """The tensors of a checkpoint, and those that are no variables."""

  checkpoint: CheckpointReader
  # The layouts of each tensor that has variables.
  layouts: Mapping[str, Sequence[WeightLayout]]
  variables: Sequence[Variable]
  # Tensors that are copies of weights, and the tensors of those.
  copies: Mapping[str, str]
  extra: Mapping[str, safetensors.TensorEntry]
  # By tensor, in the order of files.
  shapes: Tensors

  @classmethod
  def open(
    cls,
    side: Path,
    config: Mapping[str, Any],
    path: storage.Path,
    dtype: str | None,
  ) -> _CheckpointTensors:
    checkpoint = CheckpointReader(path)
    saved = checkpoint.shapes
    names: Collection[str] | None
    names, extra = _tensor_names(side)
    if config.get('model_type') == 't5':
      # The variables have what newer files of transformers do not record.
      is_tied = f'{_LEAF}params.model.softmax.w' in saved
      config = {
        'scale_decoder_outputs': config.get('tie_word_embeddings', True),
        **config,
        'tie_word_embeddings': is_tied,
      }
    learned = {
      leaf: x
      for leaf, x in saved.items()
      if not policy_networks.is_frozen(leaf)
    }
    has_mtp = mtp_modules.are_in(learned)
    family = families.find_family(config, has_mtp=has_mtp)
    model = families.read_model(config, has_mtp=has_mtp)
    if names is None:
      layouts = weight_layouts.by_tensor(model.weights())
      names = family.new_copies
    else:
      layouts = families.find_tensors(family, model, names)
    variables = stacked_variables.of_layouts(
      layouts, stacked_variables.find_repetition(learned)
    )
    variables = in_network(variables, policy_networks.policy_of(learned))
    _check_leaves(variables, learned, path)
    dtypes: dict[str, np.dtype] = {}
    for variable in variables:
      tensor_dtype = jax.numpy.dtype(dtype or saved[leaf_name(variable)][1])
      dtypes |= dict.fromkeys(variable.tensors, tensor_dtype)
    shapes = {
      name: (parts[0].tensor_shape, dtypes[name])
      for name, parts in layouts.items()
    }
    copies = families.find_copies(family, layouts, names)
    extra = {name: e for name, e in extra.items() if name not in copies}
    shapes |= {copy: shapes[source] for copy, source in copies.items()}
    shapes |= {name: (e.shape, e.dtype) for name, e in extra.items()}
    return cls(
      checkpoint=checkpoint,
      layouts=layouts,
      variables=variables,
      copies=copies,
      extra=extra,
      shapes=shapes,
    )

  @property
  def num_bytes(self) -> int:
    """Size of all tensors."""
    return sum(map(_num_bytes, self.shapes.values()))

  def headers(
    self, side: Path, max_shard_size: int | None = None
  ) -> dict[str, str]:
    """Returns the headers of the files by name: those of the original model.

    Where dtypes differ from it, only the order and the files are its.

    Args:
      side: The folder with what is no variable.
      max_shard_size: Maximum number of bytes of tensors in a file; None keeps
        the files of the original model.
    """
    original = _original_headers(side)
    if max_shard_size or not original:
      return _new_headers(self.shapes, max_shard_size or _MAX_FILE_BYTES)
    headers = {}
    for name, header in original.items():
      tensors, metadata = safetensors.header_tensors(header)
      shapes = {tensor: self.shapes[tensor] for tensor in tensors}
      headers[name] = (
        header
        if shapes == tensors
        else safetensors.make_header(shapes, metadata)
      )
    return headers

  def set_dtype(self, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config with the dtype of the weights, if all have one.

    Transformers converts the weights to the dtype of the config.

    Args:
      config: Contents of config.json.
    """
    dtypes = {
      self.shapes[name][1].name
      for variable in self.variables
      for name in variable.tensors
    }
    key = 'torch_dtype' if 'torch_dtype' in config else 'dtype'
    if len(dtypes) > 1 or config.get(key) in dtypes:
      return dict(config)
    return {**config, key: dtypes.pop()}

  def read(self) -> Iterator[tuple[str, np.ndarray]]:
    """Yields all tensors by name; small variables are read together."""
    partial = weight_layouts.PartialTensors(self.layouts)
    for group in byte_groups.split_by_bytes(
      self.variables, self._saved_bytes, _GROUP_BYTES
    ):
      leaves = self._read_leaves(group)
      for variable in group:
        value = np.asarray(leaves.pop(leaf_name(variable)))
        for name, layout, part in variable.unstack(value):
          tensor = partial.add(name, layout, part)
          if tensor is None:
            continue
          tensor = tensor.astype(self.shapes[name][1], copy=False)
          yield name, tensor
          yield from ((x, tensor) for x in self._copies_of(name))
        del value
    for name, entry in self.extra.items():
      yield name, entry.read()

  def _copies_of(self, name: str) -> list[str]:
    return [copy for copy, source in self.copies.items() if source == name]

  def _saved_bytes(self, variable: Variable) -> int:
    shape, dtype = self.checkpoint.shapes[leaf_name(variable)]
    return _num_bytes((shape, jax.numpy.dtype(dtype)))

  def _read_leaves(self, variables: Sequence[Variable]) -> dict[str, jax.Array]:
    sharding = jax.sharding.SingleDeviceSharding(
      jax.local_devices(backend='cpu')[0]
    )
    abstract = {}
    for variable in variables:
      shape, dtype = self.checkpoint.shapes[leaf_name(variable)]
      abstract[leaf_name(variable)] = jax.ShapeDtypeStruct(
        shape, jax.numpy.dtype(dtype), sharding=sharding
      )
    return dict(self.checkpoint.read(abstract))


def _check_leaves(
  variables: Sequence[Variable], saved: Shapes, path: storage.Path
) -> None:
  """Checks that a checkpoint has the variables of a model, and no others.

  Args:
    variables: The variables.
    saved: Shapes and dtypes of the checkpoint.
    path: The checkpoint, for messages.

  Raises:
    ValueError: It is of another model.
  """
  next_step = 'use the config.json of the model of the checkpoint'
  for variable in variables:
    leaf = leaf_name(variable)
    shape, dtype = saved.get(leaf, (None, ''))
    if shape != variable.shape:
      raise ValueError(
        f'{leaf} in {path} must have shape {list(variable.shape)} by'
        f' config.json, got {None if shape is None else list(shape)};'
        f' {next_step}'
      )
    if dtype not in model_folder.DTYPES:
      raise ValueError(
        f'{leaf} in {path} must have one of the dtypes'
        f' {list(model_folder.DTYPES)}, got {dtype}; export the checkpoint'
        ' before its quantization'
      )
  others = {x for x in saved if x.startswith(_TRAINABLE)}.difference(
    map(leaf_name, variables)
  )
  if others := {x for x in others if not _FP8_STATISTICS.fullmatch(x)}:
    raise ValueError(
      f'each variable in {path} must have a tensor by config.json,'
      f' {len(others)} have none, such as {min(others)}; {next_step}.'
      ' Low-rank updates (LoRA) cannot be exported'
    )


def _leaves(
  folder: model_folder.ModelFolder, repetition: Repetition | None
) -> Iterator[tuple[str, np.ndarray]]:
  yield 'step', np.zeros((), np.uint32)
  dtypes = folder.dtypes
  for variable in stacked_variables.of_layouts(folder.layouts, repetition):
    variable.dtype(dtypes)
    yield (
      leaf_name(variable),
      variable.from_tensors(lambda name: folder.entries[name].read()),
    )


def leaf_name(variable: Variable) -> str:
  """Returns the name of the leaf of a variable in checkpoints."""
  return _LEAF + variable.path.replace('/', '.')


def in_network(variables: Sequence[Variable], network: str) -> list[Variable]:
  """Returns the variables of a language model in a network of another name.

  Args:
    variables: Those of a LanguageModel.
    network: The name.
  """
  of_model = re.compile(rf'^(\w+)/{policy_networks.NETWORK}/')
  return [
    dataclasses.replace(x, path=of_model.sub(rf'\1/{network}/', x.path))
    for x in variables
  ]


def _side_folder(directory: Path) -> Path:
  folders = [directory / FOLDER, directory.parent / FOLDER]
  return next((folder for folder in folders if folder.exists()), folders[0])


def _config_file(side: Path) -> Path:
  file = side / model_folder.CONFIG_FILE
  if not file.exists():
    raise ValueError(
      f'{side} must have {model_folder.CONFIG_FILE}, got none; pass'
      ' --config=FOLDER with that of the model'
    )
  return file


def _original_headers(side: Path) -> dict[str, str]:
  """Returns the headers of the original files by name; {} without them."""
  file = side / _HEADERS
  return json.loads(file.read_text()) if file.exists() else {}


def _tensor_names(
  side: Path,
) -> tuple[list[str] | None, dict[str, safetensors.TensorEntry]]:
  """Returns the tensors of the original files, and those without a variable."""
  headers = _original_headers(side)
  if not headers:
    return None, {}
  names = [
    name
    for header in headers.values()
    for name in safetensors.header_tensors(header)[0]
  ]
  extra = side / _EXTRA
  return names, safetensors.read_entries(extra) if extra.exists() else {}


def _num_bytes(shape_and_dtype: tuple[tuple[int, ...], np.dtype]) -> int:
  shape, dtype = shape_and_dtype
  return math.prod(shape) * dtype.itemsize


def _new_headers(shapes: Tensors, max_bytes: int) -> dict[str, str]:
  """Returns headers of files of at most `max_bytes`, if tensors fit."""
  files = [
    dict(tensors)
    for tensors in byte_groups.split_by_bytes(
      shapes.items(), lambda item: _num_bytes(item[1]), max_bytes
    )
  ]
  count = len(files)
  return {
    safetensors.SINGLE_FILE
    if count == 1
    else f'model-{i + 1:05d}-of-{count:05d}.safetensors': (
      safetensors.make_header(tensors, {'format': 'pt'})
    )
    for i, tensors in enumerate(files)
  }


def _copy_side_files(
  side: Path, output: Path, config: Mapping[str, Any]
) -> None:
  for file in sorted(side.iterdir()):
    is_weights = file.name.endswith(_OTHER_WEIGHTS)
    if file.is_file() and not is_weights and file.name != _HEADERS:
      shutil.copyfile(file, output / file.name)
  file = output / model_folder.CONFIG_FILE
  if config != model_folder.read_object(file):
    file.write_text(json.dumps(config, indent=2) + '\n')


def _write_index(output: Path, headers: Mapping[str, str]) -> None:
  """Writes the index of several files, unless that of the model fits."""
  file = output / safetensors.INDEX_FILE
  files: dict[str, str] = {}
  size = 0
  for name, header in headers.items():
    tensors, _ = safetensors.header_tensors(header)
    files |= dict.fromkeys(tensors, name)
    size += sum(map(_num_bytes, tensors.values()))
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
