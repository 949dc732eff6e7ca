# SPDX-License-Identifier: Apache-2.0
"""Warm start from a folder of Hugging Face: `--init_from=hf:DIR`."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping

import jax
import numpy as np

from pax.checkpoints import init_from
from pax.checkpoints.types import CheckpointError
from pax.huggingface import conversion, model_folder

_PREFIX = 'hf:'


@dataclasses.dataclass(frozen=True, kw_only=True)
class FolderSource(init_from.SourceCheckpoint):
  """The weights of a folder as the leaves of a checkpoint of step 0."""

  folder: model_folder.ModelFolder

  @classmethod
  def open(cls, directory: str, step: int | None = None) -> FolderSource:
    """Returns the weights of a folder.

    Raises:
      ValueError: The folder has no model that is supported.
    """
    del step
    folder = model_folder.ModelFolder.open(directory)
    return cls(
      directory=directory,
      step=0,
      path=folder.path,
      shapes={
        conversion.leaf_name(layout): (
          layout.variable_shape,
          folder.entries[name].dtype.name,
        )
        for name, layout in folder.layouts.items()
      },
      folder=folder,
    )

  def read(
    self, abstract: Mapping[str, jax.ShapeDtypeStruct]
  ) -> dict[str, jax.Array]:
    """Returns leaves; each device reads its shard only."""
    tensors = {
      conversion.leaf_name(layout): name
      for name, layout in self.folder.layouts.items()
    }
    return {
      leaf: self._read_leaf(tensors[leaf], target)
      for leaf, target in abstract.items()
    }

  def _read_leaf(self, name: str, target: jax.ShapeDtypeStruct) -> jax.Array:
    tensor = self.folder.entries[name].memory_map()
    variable = self.folder.layouts[name].to_variable(tensor)
    return jax.make_array_from_callback(
      target.shape,
      target.sharding,
      lambda index: np.ascontiguousarray(variable[index]),
    )


def folder_of(init_from_flag: str) -> str | None:
  """Returns DIR of `--init_from=hf:DIR`; None for a checkpoint."""
  if not init_from_flag.startswith(_PREFIX):
    return None
  return init_from_flag.removeprefix(_PREFIX)


def initialize(
  initializer: init_from.Initializer,
  state: init_from.TrainState,
  directory: str,
  job_log_dir: str | pathlib.Path,
) -> init_from.TrainState:
  """Returns the state with all weights of a folder.

  The files beside the weights are copied to `huggingface` in the directory of
  the job, for the tokenizer and for `pax convert pax-to-hf`.

  Args:
    initializer: Replaces the leaves.
    state: The fresh state, whose replaced leaves are deleted.
    directory: The folder.
    job_log_dir: The directory of the job.

  Raises:
    ValueError: The folder has no model that is supported.
    CheckpointError: The model of the experiment is another one.
  """
  source = FolderSource.open(directory)
  try:
    state = initializer.init_by_source(state, source, is_full=True)
  except CheckpointError as e:
    raise CheckpointError(
      f'{e}; use an experiment of tasks.lm.params.huggingface with --set'
      f' MODEL_DIR={directory}'
    ) from e
  if jax.process_index() == 0:
    conversion.copy_files(source.folder, pathlib.Path(job_log_dir))
  return state
