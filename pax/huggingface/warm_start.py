# SPDX-License-Identifier: Apache-2.0
"""Warm start from folders of Hugging Face: models, teachers and adapters."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping

import jax
import numpy as np

from pax.checkpoints import (
  checkpoint_reader,
  init_from,
  policy_networks,
  source_checkpoint,
)
from pax.checkpoints.types import CheckpointError, Shapes
from pax.files import storage
from pax.huggingface import (
  adapter_leaves,
  checkpoint_tensors,
  model_folder,
  side_folder,
  stacked_variables,
)
from pax.huggingface.layers import mtp_modules

_PREFIX = 'hf:'


@dataclasses.dataclass(frozen=True)
class FolderLeaves:
  """The weights of a folder as the leaves of a checkpoint."""

  folder: model_folder.ModelFolder
  # Of the layers of the model; None without.
  repetition: stacked_variables.Repetition | None = None
  # The network of a language model that has the variables.
  network: str = policy_networks.NETWORK

  @property
  def path(self) -> pathlib.Path:
    """The folder."""
    return self.folder.path

  @functools.cached_property
  def variables(self) -> Mapping[str, stacked_variables.Variable]:
    """Variables by leaf name."""
    variables = stacked_variables.of_layouts(
      self.folder.layouts, self.repetition
    )
    variables = checkpoint_tensors.in_network(variables, self.network)
    return {
      checkpoint_tensors.leaf_name(variable): variable for variable in variables
    }

  @functools.cached_property
  def shapes(self) -> Shapes:
    """Shape and dtype name of every leaf."""
    dtypes = self.folder.dtypes
    return {
      leaf: (variable.shape, variable.dtype(dtypes).name)
      for leaf, variable in self.variables.items()
    }

  def read(
    self, abstract: Mapping[str, jax.ShapeDtypeStruct]
  ) -> dict[str, jax.Array]:
    """Returns leaves; each device reads its shard only."""
    return {
      leaf: self._read_leaf(self.variables[leaf], target)
      for leaf, target in abstract.items()
    }

  def _read_leaf(
    self, variable: stacked_variables.Variable, target: jax.ShapeDtypeStruct
  ) -> jax.Array:
    read = lambda name: self.folder.entries[name].memory_map()
    return jax.make_array_from_callback(
      target.shape,
      target.sharding,
      lambda index: np.ascontiguousarray(variable.from_tensors(read, index)),
    )


def folder_of(init_from_flag: str) -> str | None:
  """Returns DIR of `--init_from=hf:DIR`; None for a checkpoint.

  Raises:
    ValueError: DIR is empty or a URL.
  """
  if not init_from_flag.startswith(_PREFIX):
    return None
  folder = init_from_flag.removeprefix(_PREFIX)
  if not folder or storage.is_url(folder):
    raise ValueError(
      '--init_from must be hf:DIR with a local folder of config.json and'
      f' *.safetensors, got {init_from_flag!r}; copy the files, or mount the'
      ' bucket'
    )
  return os.path.expanduser(folder)


def select_weights(
  loader: init_from.LeafLoader,
  directory: str,
  job_log_dir: storage.PathLike,
) -> None:
  """Selects all weights of a folder.

  The files beside the weights are copied to `huggingface` in the directory of
  the job, for the tokenizer and for `pax convert pax-to-hf`.

  Args:
    loader: Selects the leaves.
    directory: The folder.
    job_log_dir: The directory of the job.

  Raises:
    ValueError: The folder has no model that is supported.
    CheckpointError: The model of the experiment is another one.
  """
  names = [x for x in loader.metadata if not policy_networks.is_frozen(x)]
  leaves = _open(directory, names)
  try:
    loader.select_by_source(_source(leaves), is_full=True)
  except CheckpointError as e:
    raise CheckpointError(
      f'{e}; use an experiment of tasks.lm.params.huggingface with --set'
      f' MODEL_DIR={directory}'
    ) from e
  if jax.process_index() == 0:
    side_folder.write(leaves.folder, job_log_dir)


def select_network_weights(
  loader: init_from.LeafLoader, network: str, directory: str
) -> None:
  """Selects all weights of a folder for one network of the model.

  Args:
    loader: Selects the leaves.
    network: Name of the network in the model.
    directory: The folder.

  Raises:
    ValueError: The folder has no model that is supported.
    CheckpointError: The network is that of another model.
  """
  names = [x for x in loader.metadata if f'.{network}.' in x]
  leaves = dataclasses.replace(_open(directory, names), network=network)
  loader.select_by_source(_source(leaves), is_full=True, network=network)


def select_low_rank_updates(
  loader: init_from.LeafLoader,
  adapter: str,
  model: str,
  fresh: Callable[[str], jax.Array],
) -> None:
  """Selects the low-rank updates of a folder of PEFT.

  Args:
    loader: Selects the leaves.
    adapter: The folder.
    model: The folder of its model, for config.json.
    fresh: Returns the initial value of the leaf of a name.

  Raises:
    ValueError: The state has no place for an update.
  """
  path = pathlib.Path(adapter)
  leaves = adapter_leaves.AdapterLeaves.open(
    path, pathlib.Path(model), loader.metadata, fresh
  )
  loader.select_by_source(_source(leaves), is_full=True)


def _open(directory: str, names: Iterable[str]) -> FolderLeaves:
  """Returns the weights of a folder for the leaves of a network."""
  return FolderLeaves(
    model_folder.ModelFolder.open(directory, has_mtp=mtp_modules.are_in(names)),
    stacked_variables.find_repetition(names),
  )


def _source(
  leaves: checkpoint_reader.LeafSource,
) -> source_checkpoint.SourceCheckpoint:
  return source_checkpoint.SourceCheckpoint(
    directory=str(leaves.path), step=0, leaves=leaves
  )
