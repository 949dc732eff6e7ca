# SPDX-License-Identifier: Apache-2.0
"""The file `metadata` of checkpoints that paxml writes.

It has the format version and, above version 1, the shapes and dtypes of the
variables before padding.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging

from pax import train_states
from pax.checkpoints import paths
from pax.checkpoints.formats import verification
from pax.paxml_api import checkpoint_version
from praxis import py_utils
from praxis.pytypes import Nested

TrainState = train_states.TrainState
PathLike = str | os.PathLike[str]

PAX_METADATA_ITEM_NAME = 'pax_metadata'
METADATA_ITEM_NAME = paths.METADATA_FILE
ARRAY_METADATA_TAG = '_array_metadata_tag'
IS_OPTAX_MASKED_NODE = 'is_optax_masked_node'
UNPADDED_SHAPE = 'unpadded_shape'
DTYPE = 'dtype'
TRAIN_STATE_METADATA = 'train_state_metadata'
_STATE_FIELDS = ('step', 'mdl_vars', 'opt_states', 'extra_state')


@dataclasses.dataclass
class ArrayMetadata:
  """Shape and dtype of one array before padding."""

  # None for a masked node.
  unpadded_shape_dtype_struct: jax.ShapeDtypeStruct | None
  is_optax_masked_node: bool

  def to_dict(self) -> dict[str, Any]:
    """Returns the fields as values of JSON."""
    fields: dict[str, Any] = {
      IS_OPTAX_MASKED_NODE: self.is_optax_masked_node,
      ARRAY_METADATA_TAG: True,
    }
    if self.unpadded_shape_dtype_struct is not None:
      fields[UNPADDED_SHAPE] = self.unpadded_shape_dtype_struct.shape
      fields[DTYPE] = str(self.unpadded_shape_dtype_struct.dtype)
    return fields

  @classmethod
  def from_dict(cls, d: Mapping[str, Any]) -> ArrayMetadata:
    """Returns the metadata that `to_dict` describes."""
    unpadded = None
    if UNPADDED_SHAPE in d and DTYPE in d:
      unpadded = jax.ShapeDtypeStruct(
        tuple(d[UNPADDED_SHAPE]), jnp.dtype(d[DTYPE])
      )
    return cls(unpadded, d[IS_OPTAX_MASKED_NODE])

  def equals(self, other: ArrayMetadata) -> bool:
    """Returns whether both are equal."""
    return self == other

  def is_compatible(self, other: ArrayMetadata) -> bool:
    """Returns whether both are masked or equal."""
    if self.is_optax_masked_node and other.is_optax_masked_node:
      return True
    return self.equals(other)


@dataclasses.dataclass
class PaxMetadata:
  """Metadata of a checkpoint above version 1."""

  version: float
  # ArrayMetadata by the fields of the train state.
  train_state_metadata: Nested[ArrayMetadata]

  def to_dict(self) -> dict[str, Any]:
    """Returns the metadata as values of JSON."""
    return {
      checkpoint_version.get_version_key(): self.version,
      TRAIN_STATE_METADATA: _to_json(self.train_state_metadata),
    }

  @classmethod
  def from_dict(cls, d: Mapping[str, Any]) -> PaxMetadata:
    """Returns the metadata that `to_dict` describes.

    Raises:
      ValueError: It has no shapes.
    """
    if d[TRAIN_STATE_METADATA] is None:
      raise ValueError(
        f'{TRAIN_STATE_METADATA} is required for version > 1.0, got None'
      )
    arrays = jax.tree.map(
      ArrayMetadata.from_dict,
      d[TRAIN_STATE_METADATA],
      is_leaf=lambda x: isinstance(x, dict) and bool(x.get(ARRAY_METADATA_TAG)),
    )
    return cls(d[checkpoint_version.get_version_key()], arrays)

  @classmethod
  def from_padded_and_unpadded(
    cls,
    padded: TrainState,
    unpadded: TrainState | None,
    version: float,
    mdl_vars_only: bool = True,
  ) -> PaxMetadata:
    """Returns the metadata of a train state.

    Args:
      padded: The state, or its shapes.
      unpadded: Its shapes before padding; None records none.
      version: The format version.
      mdl_vars_only: Whether only variables are recorded.
    """
    fields = ('mdl_vars',) if mdl_vars_only else _STATE_FIELDS

    def array_metadata(
      padded_leaf: Any, unpadded_leaf: Any = None
    ) -> ArrayMetadata:
      return ArrayMetadata(
        None if py_utils.is_optax_masked_node(unpadded_leaf) else unpadded_leaf,
        py_utils.is_optax_masked_node(padded_leaf),
      )

    trees = [
      {name: getattr(state, name) for name in fields}
      for state in (padded, unpadded)
      if state is not None
    ]
    return cls(
      version,
      jax.tree.map(
        array_metadata, *trees, is_leaf=py_utils.is_optax_masked_node
      ),
    )

  def equals(self, other: PaxMetadata) -> bool:
    """Returns whether versions and arrays are equal."""
    return self.version == other.version and all(
      a.equals(b) for a, b in self._pairs(other)
    )

  def is_compatible(self, other: PaxMetadata) -> bool:
    """Returns whether the arrays are compatible, in any version."""
    return all(a.is_compatible(b) for a, b in self._pairs(other))

  def _pairs(
    self, other: PaxMetadata
  ) -> list[tuple[ArrayMetadata, ArrayMetadata]]:
    return list(
      zip(
        jax.tree.leaves(self.train_state_metadata),
        jax.tree.leaves(other.train_state_metadata),
        strict=False,
      )
    )


def make_metadata(
  version: float | None = None,
  train_state: TrainState | None = None,
  train_state_unpadded_shape_dtype_struct: TrainState | None = None,
  tensorstore_use_ocdbt: bool | None = None,
) -> Mapping[str, Any]:
  """Returns the metadata of a checkpoint as values of JSON.

  Args:
    version: The format version; None is that of paxml.
    train_state: The state, or its shapes; required above version 1.
    train_state_unpadded_shape_dtype_struct: Its shapes before padding; None
      means that it is not padded.
    tensorstore_use_ocdbt: Whether the version None is that of OCDBT.

  Raises:
    ValueError: `train_state` is missing.
  """
  if version is None:
    version = checkpoint_version.get_version(tensorstore_use_ocdbt)
  if version <= 1:
    return {checkpoint_version.get_version_key(): version}
  if train_state is None:
    raise ValueError(
      f'train_state is required for the metadata of version {version}, which'
      ' has the shapes of the variables; got None'
    )
  unpadded = train_state_unpadded_shape_dtype_struct
  if unpadded is None:
    logging.warning(
      'train_state_unpadded_shape_dtype_struct is not provided: the state is'
      ' taken to be unpadded'
    )
    unpadded = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), train_state
    )
  return PaxMetadata.from_padded_and_unpadded(
    train_state, unpadded, version
  ).to_dict()


def metadata_exists(directory: PathLike) -> bool:
  """Returns whether a checkpoint has metadata, of paxml or of Pax."""
  return pathlib.Path(directory, METADATA_ITEM_NAME).exists()


def save_metadata(directory: PathLike, metadata: Mapping[str, Any]) -> None:
  """Writes the metadata of a checkpoint as paxml does."""
  folder = pathlib.Path(directory, METADATA_ITEM_NAME)
  folder.mkdir(parents=True)
  (folder / METADATA_ITEM_NAME).write_text(json.dumps(metadata))


def restore_metadata(directory: PathLike) -> Mapping[str, Any]:
  """Returns the metadata of a checkpoint, of paxml or of Pax.

  Raises:
    CorruptCheckpointError: The file cannot be read.
  """
  path = pathlib.Path(directory, METADATA_ITEM_NAME)
  return verification.read_metadata(
    path / METADATA_ITEM_NAME if path.is_dir() else path
  )


def _to_json(tree: Any) -> Any:
  """Returns nested dicts and lists."""
  if isinstance(tree, ArrayMetadata):
    return dict(sorted(tree.to_dict().items()))
  if isinstance(tree, Mapping):
    # Sorted, as the files of paxml.
    return {str(key): _to_json(tree[key]) for key in sorted(tree)}
  if dataclasses.is_dataclass(tree):
    names = [field.name for field in dataclasses.fields(tree)]
    return _to_json({name: getattr(tree, name) for name in names})
  if isinstance(tree, tuple) and hasattr(tree, '_asdict'):
    return _to_json(tree._asdict())
  if isinstance(tree, list | tuple):
    return [_to_json(value) for value in tree]
  return tree
