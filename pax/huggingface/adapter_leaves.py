# SPDX-License-Identifier: Apache-2.0
"""The updates in a folder of PEFT as leaves of a state with such updates."""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib
import zlib
from collections.abc import Callable, Mapping

import jax
import numpy as np

from pax.checkpoints import policy_networks
from pax.checkpoints.types import Shapes
from pax.huggingface import (
  checkpoint_tensors,
  families,
  low_rank_leaves,
  model_folder,
  peft_adapters,
  weight_layouts,
)
from pax.huggingface.layers import mtp_modules
from pax.huggingface.low_rank_leaves import LowRankLeaves
from pax.huggingface.peft_adapters import ModuleUpdate
from pax.huggingface.stacked_variables import Variable
from pax.huggingface.weight_layouts import WeightLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdapterLeaves:
  """Leaves of low-rank updates by name, on the host."""

  path: pathlib.Path
  arrays: Mapping[str, np.ndarray]

  @classmethod
  def open(
    cls,
    path: pathlib.Path,
    model_path: pathlib.Path,
    state: Mapping[str, jax.ShapeDtypeStruct],
    fresh: Callable[[str], jax.Array],
  ) -> AdapterLeaves:
    """Returns the updates of an adapter.

    A leaf may have the updates of several modules. Those that the adapter does
    not have are fresh, and so are further channels of a rank.

    Args:
      path: The folder of the adapter.
      model_path: The folder of its model, for config.json, and for the weights
        where the state has magnitudes.
      state: Shapes of the leaves of the state by name.
      fresh: Returns the initial value of the leaf of a name.

    Raises:
      ValueError: The state has no place for an update of the adapter.
    """
    names = [x for x in state if not policy_networks.is_frozen(x)]
    updates = low_rank_leaves.find(names)
    if not updates:
      raise ValueError(
        f'a model must have low-rank updates to begin with those of {path}, got'
        ' one without; set LORA_RANK to the rank of the adapter'
      )
    config = model_folder.read_config(model_path)
    has_mtp = mtp_modules.are_in(names)
    model = families.read_model(config, has_mtp=has_mtp)
    variables = checkpoint_tensors.variables_of(
      weight_layouts.by_tensor(model.weights()), names
    )
    reading = _Reading(
      path,
      peft_adapters.read(path),
      state,
      families.find_family(config, has_mtp=has_mtp).stores_inputs_first,
      _WeightReader(model_path, has_mtp=has_mtp),
    )
    for variable in variables:
      if leaves := updates.get(checkpoint_tensors.leaf_name(variable)):
        reading.add(variable, leaves)
    return cls(path=path, arrays=reading.finish(fresh))

  @property
  def shapes(self) -> Shapes:
    """Shape and dtype name of every leaf."""
    return {leaf: (x.shape, x.dtype.name) for leaf, x in self.arrays.items()}

  def read(
    self, abstract: Mapping[str, jax.ShapeDtypeStruct]
  ) -> dict[str, jax.Array]:
    """Returns leaves, placed by the shardings of `abstract`."""
    return {
      leaf: jax.make_array_from_callback(
        target.shape, target.sharding, self.arrays[leaf].__getitem__
      )
      for leaf, target in abstract.items()
    }


class _WeightReader:
  """Reads weights of a model folder, which is opened when it is needed."""

  def __init__(self, path: pathlib.Path, *, has_mtp: bool):
    self._path = path
    self._has_mtp = has_mtp

  @functools.cached_property
  def _folder(self) -> model_folder.ModelFolder:
    return model_folder.ModelFolder.open(self._path, has_mtp=self._has_mtp)

  @functools.cached_property
  def _names_in_files(self) -> Mapping[str, str]:
    """Names of tensors in the files by those in a language model alone."""
    layouts = self._folder.layouts.items()
    return {part.tensor: name for name, parts in layouts for part in parts}

  def read(self, layout: WeightLayout, dtype: np.dtype) -> np.ndarray:
    """Returns the variable of a tensor with the values that a dtype has."""
    name = self._names_in_files[layout.tensor]
    tensor = self._folder.entries[name].memory_map()
    return layout.to_variable(tensor).astype(dtype)


class _Reading:
  """Leaves while updates are assigned to them."""

  def __init__(
    self,
    path: pathlib.Path,
    modules: Mapping[str, ModuleUpdate],
    state: Mapping[str, jax.ShapeDtypeStruct],
    stores_inputs_first: bool,
    weights: _WeightReader,
  ):
    """Assigns nothing yet.

    Args:
      path: The folder of the adapter, for messages.
      modules: Its updates by the names of modules.
      state: Shapes of the leaves of the state by name.
      stores_inputs_first: Whether tensors are [inputs, outputs].
      weights: Reads the weights of the model.
    """
    self._path = path
    self._modules = modules
    self._state = state
    self._stores_inputs_first = stores_inputs_first
    self._weights = weights
    self._arrays: dict[str, np.ndarray] = {}
    # Not a number where no update is known.
    self._scales: dict[str, np.ndarray] = {}
    self._unused = set(modules)

  def add(self, variable: Variable, leaves: LowRankLeaves) -> None:
    """Assigns the updates of the tensors of a variable.

    Args:
      variable: That of the weight.
      leaves: Names of the leaves of its update.

    Raises:
      ValueError: An update has another shape, a larger rank, or another scale
        than others of its layer.
    """
    modules = [peft_adapters.module_of(x.tensor) for x in variable.layouts]
    found = [self._modules.get(name) for name in modules]
    if not any(found):
      return
    num_axes = len(variable.stack_shape)
    of_tensors = [
      self._of_tensor(layout, update, leaves, num_axes)
      for layout, update in zip(variable.layouts, found, strict=True)
    ]
    for leaf in of_tensors[0]:
      value = np.stack([arrays[leaf] for arrays in of_tensors])
      self._arrays[leaf] = value.reshape(self._state[leaf].shape)
    self._add_scales(leaves.scale, found)
    self._unused.difference_update(modules)

  def finish(self, fresh: Callable[[str], jax.Array]) -> dict[str, np.ndarray]:
    """Returns the leaves.

    Args:
      fresh: Returns the initial value of the leaf of a name.

    Raises:
      ValueError: The state has no place for an update.
    """
    if self._unused:
      raise ValueError(
        f'the model must have low-rank updates of all {len(self._modules)}'
        f' modules of {self._path}, {len(self._unused)} have none, such as'
        f' {min(self._unused)}; set LORA_TARGET_LAYERS=all, or use the adapter'
        ' of this model'
      )
    for leaf, scales in self._scales.items():
      scales = scales.reshape(self._state[leaf].shape)
      if np.isnan(scales).any():
        # All processes have it.
        initial = np.asarray(fresh(leaf).addressable_data(0))
        scales = np.where(np.isnan(scales), initial, scales)
      self._arrays[leaf] = scales
    return self._arrays

  def _of_tensor(
    self,
    layout: WeightLayout,
    update: ModuleUpdate | None,
    leaves: LowRankLeaves,
    num_axes: int,
  ) -> dict[str, np.ndarray]:
    """Returns the parts of leaves that a tensor has, by leaf.

    Args:
      layout: Of the weight.
      update: That of its module; None: none.
      leaves: Names of the leaves.
      num_axes: Number of dimensions of leaves that stack tensors.

    Raises:
      ValueError: The state has no place for the update.
    """
    shape_a, shape_b = (
      self._state[x].shape[num_axes:] for x in (leaves.a, leaves.b)
    )
    a, b = self._factors(layout, update, shape_a, shape_b)
    arrays = {leaves.a: a, leaves.b: b}
    if leaves.magnitude_delta is not None:
      dtype = self._state[leaves.weight].dtype
      delta = self._magnitude_delta(layout, update, a, b, dtype)
      arrays[leaves.magnitude_delta] = delta
    elif update is not None and update.magnitude is not None:
      raise ValueError(
        f'the model must have the magnitudes of {self._path}, whose'
        ' adapter_config.json has use_dora, got one without; set'
        ' LORA_USE_DORA=True'
      )
    return arrays

  def _factors(
    self,
    layout: WeightLayout,
    update: ModuleUpdate | None,
    shape_a: tuple[int, ...],
    shape_b: tuple[int, ...],
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns A [..., I, R] and B [..., O, R] of a tensor."""
    *_, num_inputs, rank = shape_a
    name = peft_adapters.module_of(layout.tensor)
    # The same in all processes.
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    limit = num_inputs**-0.5
    a = generator.uniform(-limit, limit, shape_a).astype(np.float32)
    b = np.zeros(shape_b, np.float32)
    if update is None:
      return a, b
    outputs, inputs = layout.tensor_shape[-2:]
    if self._stores_inputs_first:
      outputs, inputs = inputs, outputs
    sizes = (update.a.shape[1], update.b.shape[0])
    if sizes != (inputs, outputs) or inputs != num_inputs:
      raise ValueError(
        f'the update of {name} in {self._path} must have {inputs} inputs and'
        f' {outputs} outputs, got {sizes[0]} and {sizes[1]}; use the adapter of'
        ' this model'
      )
    matrices = math.prod(shape_a[:-2])
    rows = peft_adapters.output_rows(
      layout, num_inputs, self._stores_inputs_first
    ).reshape(matrices, -1)
    for a_i, b_i, rows_i in zip(
      a.reshape(matrices, num_inputs, rank),
      b.reshape(matrices, -1, rank),
      rows,
      strict=True,
    ):
      columns = _channels(update, rows_i, rank)
      if len(columns) > rank:
        raise ValueError(
          f'LORA_RANK must be at least {len(columns)}, that of {name} in'
          f' {self._path}, got {rank}'
        )
      a_i[:, : len(columns)] = update.a[columns].T
      b_i[:, : len(columns)] = update.b[rows_i][:, columns]
    return a, b

  def _magnitude_delta(
    self,
    layout: WeightLayout,
    update: ModuleUpdate | None,
    a: np.ndarray,
    b: np.ndarray,
    dtype: np.dtype,
  ) -> np.ndarray:
    """Returns how an update changes the norms of outputs, [..., O].

    Args:
      layout: Of the weight.
      update: That of its module; None: none.
      a: Its factor A [..., I, R].
      b: Its factor B [..., O, R].
      dtype: That of the weight in the state.
    """
    if update is None:
      return np.zeros(b.shape[:-1], np.float32)
    product = a @ b.swapaxes(-1, -2)
    weight = self._weights.read(layout, dtype)
    matrices = layout.to_matrices(weight, product.shape)
    norms = low_rank_leaves.output_norms(matrices)
    if update.magnitude is None:
      scale = np.float32(update.alpha / update.rank)
      return low_rank_leaves.output_norms(matrices + scale * product) - norms
    rows = peft_adapters.output_rows(
      layout, a.shape[-2], self._stores_inputs_first
    )
    return update.magnitude[rows.reshape(norms.shape)] - norms

  def _add_scales(self, leaf: str, found: list[ModuleUpdate | None]) -> None:
    size = math.prod(self._state[leaf].shape)
    scales = self._scales.setdefault(leaf, np.full(size, np.nan, np.float32))
    for i, update in enumerate(found):
      if update is None:
        continue
      scale = np.float32(update.alpha / update.rank)
      # All experts of a layer have one.
      layer = i * size // len(found)
      if not np.isnan(scales[layer]) and scales[layer] != scale:
        raise ValueError(
          f'the updates in {self._path} of the weights of {leaf} must have one'
          f' scale lora_alpha / r, got {scales[layer]} and {scale}'
        )
      scales[layer] = scale


def _channels(update: ModuleUpdate, rows: np.ndarray, rank: int) -> np.ndarray:
  """Returns the channels of an update that some of its outputs need.

  They are all if that is possible. Otherwise those with a zero factor B are
  left out: a module of several projections has channels of each.
  """
  if update.rank <= rank:
    return np.arange(update.rank)
  return np.flatnonzero(update.b[rows].any(axis=0))
