# SPDX-License-Identifier: Apache-2.0
"""The variables of a checkpoint as the tensors of Hugging Face."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pax.checkpoints import byte_groups, policy_networks
from pax.checkpoints.checkpoint_reader import CheckpointReader
from pax.files import storage
from pax.huggingface import (
  families,
  low_rank_leaves,
  model_folder,
  safetensors,
  side_folder,
  stacked_variables,
  tied_tables,
  weight_layouts,
)
from pax.huggingface.layers import mtp_modules
from pax.huggingface.low_rank_leaves import LowRankLeaves
from pax.huggingface.stacked_variables import Variable
from pax.huggingface.weight_layouts import WeightLayout

# Shape and dtype of tensors by name.
Tensors = Mapping[str, tuple[tuple[int, ...], np.dtype]]

_LEAF = 'mdl_vars.'
_TRAINABLE = f'{_LEAF}params.'
# Variables of praxis.layers.injection.fp8_nvidia_gpu, which are no weights.
_FP8_STATISTICS = re.compile(
  r'.*\.(input|kernel|output_grad)_(scale|amax_history)\w*'
)
_NEXT_STEP = 'use the config.json of the model of the checkpoint'
_MAX_FILE_BYTES = 5 * 10**9
# Bytes of small leaves that are read together.
_GROUP_BYTES = 16 * 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointVariables:
  """The variables of a checkpoint that a model learns, by its config.json."""

  checkpoint: CheckpointReader
  family: families.Family
  # The layouts of each tensor that has variables.
  layouts: Mapping[str, Sequence[WeightLayout]]
  # Names of all tensors of the original files; None without them.
  names: Sequence[str] | None
  variables: Sequence[Variable]
  # The updates by the leaves of their weights.
  updates: Mapping[str, LowRankLeaves]

  @classmethod
  def open(
    cls,
    side: side_folder.SideFolder,
    config: Mapping[str, Any],
    path: storage.Path,
  ) -> CheckpointVariables:
    """Returns the variables of a checkpoint.

    Args:
      side: What the model has besides variables.
      config: Contents of its config.json.
      path: The checkpoint.

    Raises:
      ValueError: A low-rank update is of another model.
    """
    checkpoint = CheckpointReader(path)
    learned = {x for x in checkpoint.shapes if not policy_networks.is_frozen(x)}
    if tied_tables.are_undeclared(config):
      config = tied_tables.declare_by_leaves(config, learned)
    has_mtp = mtp_modules.are_in(learned)
    family = families.find_family(config, has_mtp=has_mtp)
    names = side.tensor_names()
    model = families.read_model(config, has_mtp=has_mtp, names=names)
    if names is None:
      layouts = weight_layouts.by_tensor(model.weights())
    else:
      layouts = families.find_tensors(family, model, names)
    variables = variables_of(layouts, learned)
    updates = low_rank_leaves.find(learned)
    if others := updates.keys() - set(map(leaf_name, variables)):
      raise ValueError(
        f'each low-rank update in {path} must be of a weight by config.json,'
        f' {len(others)} are not, such as that of {min(others)}; {_NEXT_STEP}'
      )
    return cls(
      checkpoint=checkpoint,
      family=family,
      layouts=layouts,
      names=names,
      variables=variables,
      updates=updates,
    )

  def low_rank_factors(
    self,
  ) -> Iterator[tuple[str, WeightLayout, low_rank_leaves.LowRankFactors]]:
    """Yields the updates of all tensors, with their names and layouts."""
    for variable in self.variables:
      update = self.updates.get(leaf_name(variable))
      if update is None:
        continue
      leaves = self.read(update.needed)
      factors = update.factors(variable, leaves)
      yield from zip(variable.tensors, variable.layouts, factors, strict=True)

  def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Returns leaves of the checkpoint by name."""
    sharding = jax.sharding.SingleDeviceSharding(
      jax.local_devices(backend='cpu')[0]
    )
    abstract = {}
    for name in names:
      shape, dtype = self.checkpoint.shapes[name]
      abstract[name] = jax.ShapeDtypeStruct(
        shape, jax.numpy.dtype(dtype), sharding=sharding
      )
    return {k: np.asarray(v) for k, v in self.checkpoint.read(abstract).items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointTensors:
  """The tensors of a checkpoint, and those that are no variables."""

  source: CheckpointVariables
  # Tensors that are copies of weights, and the tensors of those.
  copies: Mapping[str, str]
  extra: Mapping[str, safetensors.TensorEntry]
  # By tensor, in the order of files.
  shapes: Tensors

  @classmethod
  def open(
    cls,
    side: side_folder.SideFolder,
    config: Mapping[str, Any],
    path: storage.Path,
    dtype: str | None = None,
  ) -> CheckpointTensors:
    """Returns the tensors of a checkpoint.

    Args:
      side: What the model has besides variables.
      config: Contents of its config.json.
      path: The checkpoint.
      dtype: Name of the dtype of tensors; None is that of the variables.

    Raises:
      ValueError: The checkpoint is of another model.
    """
    source = CheckpointVariables.open(side, config, path)
    saved = source.checkpoint.shapes
    _check_leaves(source, path)
    dtypes: dict[str, np.dtype] = {}
    for variable in source.variables:
      tensor_dtype = jax.numpy.dtype(dtype or saved[leaf_name(variable)][1])
      dtypes |= dict.fromkeys(variable.tensors, tensor_dtype)
    shapes = {
      name: (parts[0].tensor_shape, dtypes[name])
      for name, parts in source.layouts.items()
    }
    names: Collection[str] | None = source.names
    if names is None:
      names = source.family.new_copies
    copies = families.find_copies(source.family, source.layouts, names)
    extra = {name: e for name, e in side.extra().items() if name not in copies}
    shapes |= {copy: shapes[of_copy] for copy, of_copy in copies.items()}
    shapes |= {name: (e.shape, e.dtype) for name, e in extra.items()}
    return cls(source=source, copies=copies, extra=extra, shapes=shapes)

  @property
  def num_bytes(self) -> int:
    """Size of all tensors."""
    return sum(map(tensor_bytes, self.shapes.values()))

  def headers(
    self, side: side_folder.SideFolder, max_shard_size: int | None = None
  ) -> dict[str, str]:
    """Returns the headers of the files by name: those of the original model.

    Where dtypes differ from it, only the order and the files are its.

    Args:
      side: The folder with what is no variable.
      max_shard_size: Maximum number of bytes of tensors in a file; None keeps
        the files of the original model.
    """
    original = side.headers()
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
      for variable in self.source.variables
      for name in variable.tensors
    }
    key = 'torch_dtype' if 'torch_dtype' in config else 'dtype'
    if len(dtypes) > 1 or config.get(key) in dtypes:
      return dict(config)
    return {**config, key: dtypes.pop()}

  def read(self) -> Iterator[tuple[str, np.ndarray]]:
    """Yields all tensors by name; small variables are read together."""
    partial = weight_layouts.PartialTensors(self.source.layouts)
    for group in byte_groups.split_by_bytes(
      self.source.variables, self._saved_bytes, _GROUP_BYTES
    ):
      leaves = self._read_leaves(group)
      for variable in group:
        for name, layout, part in self._parts(variable, leaves):
          tensor = partial.add(name, layout, part)
          if tensor is None:
            continue
          tensor = tensor.astype(self.shapes[name][1], copy=False)
          yield name, tensor
          yield from ((x, tensor) for x in self._copies_of(name))
    for name, entry in self.extra.items():
      yield name, entry.read()

  def _parts(
    self, variable: Variable, leaves: dict[str, np.ndarray]
  ) -> Iterator[tuple[str, WeightLayout, np.ndarray]]:
    """Yields the variable of each tensor, with its update."""
    leaf = leaf_name(variable)
    value = leaves.pop(leaf)
    parts = variable.unstack(value)
    if leaf not in self.source.updates:
      yield from parts
      return
    update = self.source.updates[leaf]
    factors = update.factors(variable, {**leaves, leaf: value})
    for (name, layout, part), of_tensor in zip(parts, factors, strict=True):
      yield name, layout, of_tensor.add_to(part, layout)

  def _copies_of(self, name: str) -> list[str]:
    return [copy for copy, source in self.copies.items() if source == name]

  def _saved_bytes(self, variable: Variable) -> int:
    shape, dtype = self.source.checkpoint.shapes[leaf_name(variable)]
    return tensor_bytes((shape, jax.numpy.dtype(dtype)))

  def _read_leaves(
    self, variables: Sequence[Variable]
  ) -> dict[str, np.ndarray]:
    """Returns the leaves of variables and of their updates."""
    names = []
    for leaf in map(leaf_name, variables):
      names.append(leaf)
      if leaf in self.source.updates:
        names.extend(self.source.updates[leaf].names)
    return self.source.read(names)


def _check_leaves(source: CheckpointVariables, path: storage.Path) -> None:
  """Checks that a checkpoint has the variables of a model, and no others.

  Args:
    source: The variables.
    path: The checkpoint, for messages.

  Raises:
    ValueError: It is of another model, or its weights are quantized.
  """
  saved = source.checkpoint.shapes
  for variable in source.variables:
    leaf = leaf_name(variable)
    shape, dtype = saved.get(leaf, (None, ''))
    if dtype and dtype not in model_folder.DTYPES:
      raise ValueError(
        f'{leaf} in {path} must have one of the dtypes'
        f' {list(model_folder.DTYPES)}, got {dtype}; export the checkpoint'
        ' before its quantization, or the updates of LORA_RANK by --adapter'
      )
    if shape != variable.shape:
      raise ValueError(
        f'{leaf} in {path} must have shape {list(variable.shape)} by'
        f' config.json, got {None if shape is None else list(shape)};'
        f' {_NEXT_STEP}'
      )
  known = set(map(leaf_name, source.variables))
  for update in source.updates.values():
    known.update(update.names)
  if others := {
    x
    for x in saved
    if x.startswith(_TRAINABLE)
    and x not in known
    and not policy_networks.is_frozen(x)
    and not _FP8_STATISTICS.fullmatch(x)
  }:
    raise ValueError(
      f'each variable in {path} must have a tensor by config.json,'
      f' {len(others)} have none, such as {min(others)}; {_NEXT_STEP}'
    )


def leaf_name(variable: Variable) -> str:
  """Returns the name of the leaf of a variable in checkpoints."""
  return _LEAF + variable.path.replace('/', '.')


def variables_of(
  layouts: Mapping[str, Sequence[WeightLayout]], learned: Collection[str]
) -> list[Variable]:
  """Returns the variables of a model, in the network that learns.

  Args:
    layouts: Those of each tensor by its name; layers are in order.
    learned: Names of the leaves of that network.
  """
  repetition = stacked_variables.find_repetition(learned)
  return in_network(
    stacked_variables.of_layouts(layouts, repetition),
    policy_networks.policy_of(learned),
  )


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


def tensor_bytes(shape_and_dtype: tuple[tuple[int, ...], np.dtype]) -> int:
  """Returns the size of a tensor in bytes."""
  shape, dtype = shape_and_dtype
  return math.prod(shape) * dtype.itemsize


def _new_headers(shapes: Tensors, max_bytes: int) -> dict[str, str]:
  """Returns headers of files of at most `max_bytes`, if tensors fit."""
  files = [
    dict(tensors)
    for tensors in byte_groups.split_by_bytes(
      shapes.items(), lambda item: tensor_bytes(item[1]), max_bytes
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
