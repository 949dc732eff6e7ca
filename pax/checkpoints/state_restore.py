# SPDX-License-Identifier: Apache-2.0
"""Restores train states by their shapes.

Every format of this library and of paxml is read; the format is that of the
files, so that `checkpoint_type` decides only about the arrays returned.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pax import train_states
from pax.checkpoints import (
  low_rank_updates,
  paths,
  reading,
  resizing,
  transformations,
)
from pax.checkpoints.checkpoint_reader import CheckpointReader
from pax.checkpoints.types import CheckpointError, CheckpointType, State
from pax.files import storage
from praxis import py_utils

TrainState = train_states.TrainState


def restore_checkpoint(
  state_global_shapes: TrainState,
  checkpoint_dir: str | os.PathLike[str],
  global_mesh: Mesh | None = None,
  checkpoint_type: CheckpointType = CheckpointType.FLAX,
  state_specs: TrainState | None = None,
  step: int | None = None,
  enforce_restore_shape_check: bool = False,
  state_unpadded_shape_dtype_struct: TrainState | None = None,
  tensorstore_use_ocdbt: bool = False,
  restore_transformations: dict[str, Any] | None = None,
) -> TrainState:
  """Returns the train state of a checkpoint.

  Args:
    state_global_shapes: Shapes and dtypes of the state; leaves that the
      checkpoint has besides are not read.
    checkpoint_dir: The directory of the checkpoints.
    global_mesh: The mesh of the restored arrays.
    checkpoint_type: GDA restores jax.Arrays over the mesh, with the dtypes and
      shapes of `state_global_shapes`: larger shapes are padded with zeros.
      FLAX, or GDA without mesh or specs, restores numpy arrays as saved.
    state_specs: The PartitionSpecs of the restored arrays.
    step: The step of the checkpoint; None is the newest.
    enforce_restore_shape_check: Whether other shapes than the saved ones are an
      error.
    state_unpadded_shape_dtype_struct: Shapes without padding; the variables
      have to have them in the checkpoint. None checks nothing.
    tensorstore_use_ocdbt: Accepted and ignored: OCDBT databases are detected.
    restore_transformations: `task.train.restore_transformations`.

  Raises:
    ValueError: There is no such checkpoint, or it is of another model.
  """
  del tensorstore_use_ocdbt
  if not isinstance(state_global_shapes, TrainState):
    raise ValueError(
      f'state_global_shapes must be a subclass of `{TrainState}`, but was'
      f' `{type(state_global_shapes)}`; unpack the tuple (state, provenance)'
      ' that some functions return'
    )
  checkpoint = open_checkpoint(storage.to_path(checkpoint_dir), step)
  check_checkpoint_type(checkpoint_type)
  if state_unpadded_shape_dtype_struct is not None:
    if not restore_transformations:
      check_unpadded_shapes(checkpoint, state_unpadded_shape_dtype_struct)
  if checkpoint_type is CheckpointType.FLAX:
    return restore_numpy(checkpoint, state_global_shapes)
  return restore_arrays(
    checkpoint,
    state_global_shapes,
    state_specs,
    global_mesh,
    restore_transformations,
    checks_shapes=enforce_restore_shape_check,
  )


def restore_pmap_from_tensorstore(
  global_shapes: TrainState,
  checkpoint_dir: str | os.PathLike[str],
  step: int | None = None,
  global_mesh: Mesh | None = None,
  checkpoint_type: CheckpointType = CheckpointType.GDA,
  enforce_restore_shape_check: bool = False,
  tensorstore_use_ocdbt: bool = False,
  restore_transformations: dict[str, Any] | None = None,
) -> TrainState:
  """Returns the train state of a checkpoint, replicated over a mesh.

  Args:
    global_shapes: Shapes and dtypes of the state.
    checkpoint_dir: The directory of the checkpoints.
    step: The step of the checkpoint; None is the newest.
    global_mesh: The mesh; None returns arrays on the first device of this
      process.
    checkpoint_type: As in `restore_checkpoint`.
    enforce_restore_shape_check: Likewise.
    tensorstore_use_ocdbt: Likewise.
    restore_transformations: Likewise.

  Raises:
    ValueError: There is no such checkpoint, or it is of another model.
  """
  mesh = global_mesh or Mesh(np.array(jax.devices()), ('x',))
  state = restore_checkpoint(
    global_shapes,
    checkpoint_dir,
    mesh,
    checkpoint_type,
    jax.tree.map(lambda _: PartitionSpec(), global_shapes),
    step,
    enforce_restore_shape_check=enforce_restore_shape_check,
    tensorstore_use_ocdbt=tensorstore_use_ocdbt,
    restore_transformations=restore_transformations,
  )
  if global_mesh is not None:
    return state
  return jax.tree.map(lambda leaf: leaf.addressable_data(0), state)


def open_checkpoint(
  directory: storage.Path, step: int | None
) -> CheckpointReader:
  """Returns the checkpoint of `step`; None is the newest.

  Raises:
    ValueError: There is none, or it is corrupt.
  """
  if not directory.exists():
    raise ValueError(f'checkpoint_dir={str(directory)!r} does not exist')
  if step is None and not reading.checkpoint_steps(directory):
    raise ValueError(
      'No checkpoints were found in directory'
      f' checkpoint_dir={str(directory)!r}'
    )
  return CheckpointReader(reading.find_checkpoint(directory, step)[1])


def check_checkpoint_type(checkpoint_type: CheckpointType) -> None:
  """Checks that states can be saved and restored in a format.

  Raises:
    ValueError: The format is neither GDA nor FLAX.
  """
  if checkpoint_type not in (CheckpointType.GDA, CheckpointType.FLAX):
    raise ValueError(
      f'Unexpected checkpoint_type `{checkpoint_type!r}`; use'
      ' CheckpointType.GDA or CheckpointType.FLAX'
    )


def restore_numpy(checkpoint: CheckpointReader, abstract: State) -> State:
  """Returns a tree of numpy arrays with the saved shapes and dtypes.

  Where all of `abstract` has a further leading axis, that of the devices of
  `jax.pmap`, the arrays are repeated along it.

  Leaves of a checkpoint for Flax may have other names: they are restored in
  their order.

  Args:
    checkpoint: The checkpoint.
    abstract: The tree.

  Raises:
    CheckpointError: A leaf is missing.
    CorruptCheckpointError: Files differ from what was written.
  """
  leaves_by_name = paths.flatten(abstract)
  sources = list(leaves_by_name)
  missing = sorted(leaves_by_name.keys() - checkpoint.shapes.keys())
  if missing and _has_in_order(checkpoint, list(leaves_by_name.values())):
    logging.warning(
      '%s has other leaves than the restored state: they are restored in'
      ' their order (%s)',
      checkpoint.path,
      missing[:3],
    )
    sources = list(checkpoint.shapes)[: len(sources)]
  leaves = resizing.read_numpy(checkpoint, sources)
  values = [leaves[name] for name in sources]
  structure = jax.tree.structure(abstract)
  return jax.tree.unflatten(
    structure, _repeated_for_devices(values, jax.tree.leaves(abstract))
  )


def _has_in_order(checkpoint: CheckpointReader, leaves: list[Any]) -> bool:
  """Whether the first leaves of a checkpoint for Flax have these shapes.

  The file of paxml may have a treedef that names no leaves: then their number
  suffices.
  """
  saved = [shape for shape, _ in checkpoint.shapes.values()]
  if checkpoint.is_paxml_flax and len(saved) == len(leaves):
    return True
  shapes = [tuple(np.shape(leaf)) for leaf in leaves]
  return checkpoint.is_flax and saved[: len(shapes)] == shapes


def _repeated_for_devices(
  values: list[np.ndarray], templates: list[Any]
) -> list[np.ndarray]:
  shapes = [np.shape(template) for template in templates]
  has_axis = all(
    len(shape) == value.ndim + 1 and shape[1:] == value.shape
    for value, shape in zip(values, shapes, strict=True)
  )
  if not has_axis:
    return values
  return [
    np.repeat(value[None], shape[0], axis=0)
    for value, shape in zip(values, shapes, strict=True)
  ]


def restore_arrays(
  checkpoint: CheckpointReader,
  abstract: State,
  specs: State | None = None,
  mesh: Mesh | None = None,
  transforms: Mapping[str, Any] | None = None,
  *,
  checks_shapes: bool = False,
) -> State:
  """Returns a tree of arrays over a mesh; without one of numpy arrays.

  Args:
    checkpoint: The checkpoint.
    abstract: Shapes and dtypes.
    specs: PartitionSpecs.
    mesh: The mesh.
    transforms: `task.train.restore_transformations`.
    checks_shapes: Whether other shapes than the saved ones are an error.

  Raises:
    CheckpointError: A leaf is missing, or has another shape.
    CorruptCheckpointError: Files differ from what was written.
  """
  if not transforms:
    leaves = paths.flatten(abstract)
    low_rank_updates.check_used(checkpoint.path, checkpoint.shapes, leaves)
    if checks_shapes:
      _check_shapes(checkpoint, leaves)
  if mesh is None or specs is None:
    return restore_numpy(checkpoint, abstract)

  def with_sharding(leaf: Any, spec: PartitionSpec) -> Any:
    if _is_masked(leaf):
      return leaf
    spec = _spec_of_rank(spec, len(leaf.shape))
    return jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec)
    )

  # Specs need not be masked where the state is.
  abstract = jax.tree.map(with_sharding, abstract, specs, is_leaf=_is_masked)
  leaves = paths.flatten(abstract)
  if transforms:
    rules = transformations.Transformations(transforms, is_own=False)
    values = rules.read(checkpoint, leaves)
  else:
    values = resizing.read_resized(checkpoint, leaves)
  return paths.unflatten(abstract, values)


def _is_masked(node: Any) -> bool:
  is_optax = py_utils.is_optax_masked_node(node)
  return is_optax or py_utils.is_bprop_masked_node(node)


def _spec_of_rank(spec: PartitionSpec | None, rank: int) -> PartitionSpec:
  """Returns the spec without entries past the rank of the array."""
  return PartitionSpec(*tuple(spec or ())[:rank])


def _check_shapes(
  checkpoint: CheckpointReader, leaves: Mapping[str, Any]
) -> None:
  saved = checkpoint.shapes
  for name, leaf in leaves.items():
    if name in saved and tuple(saved[name][0]) != tuple(leaf.shape):
      raise CheckpointError(
        f'Restored parameter shape mismatch: {saved[name][0]} (checkpoint) vs.'
        f' {tuple(leaf.shape)} (expected) of {name} in'
        f' {checkpoint.path}'
      )


def check_unpadded_shapes(
  checkpoint: CheckpointReader, unpadded: TrainState
) -> None:
  """Checks the shapes of the variables without padding.

  Args:
    checkpoint: The checkpoint.
    unpadded: The shapes.

  Raises:
    CheckpointError: They differ from those recorded in the checkpoint.
  """
  recorded = checkpoint.unpadded_variable_shapes()
  variables = paths.flatten({'mdl_vars': unpadded.mdl_vars})
  for name, leaf in variables.items():
    expected = (tuple(leaf.shape), np.dtype(leaf.dtype).name)
    if recorded.get(name, expected) != expected:
      raise CheckpointError(
        f'PaxMetadata is not compatible with the restored PaxMetadata: {name}'
        f' has shape and dtype {recorded[name]} without padding in'
        f' {checkpoint.path}, expected {expected}'
      )
