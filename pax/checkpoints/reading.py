# SPDX-License-Identifier: Apache-2.0
"""Reads parts of a checkpoint, of this job or of another one."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import jax

from pax.checkpoints import layouts, paths, transformations
from pax.checkpoints.types import CheckpointError

Path = pathlib.Path


def checkpoint_steps(directory: str | Path) -> dict[int, Path]:
  """The complete checkpoints of a directory, by step, oldest first.

  The directory is that of the checkpoints, or of the job that wrote them.
  """
  directory = Path(directory)
  return paths.steps(directory) or paths.steps(directory / paths.CHECKPOINTS)


def find(directory: str | Path, step: int | None = None) -> tuple[int, Path]:
  """The newest checkpoint of a directory, or that of `step`.

  Raises:
    CheckpointError: there is none.
  """
  available = checkpoint_steps(directory)
  wanted = max(available, default=None) if step is None else step
  if wanted not in available:
    raise CheckpointError(
      f'no checkpoint{"" if step is None else f" of step {step}"} in'
      f' {directory}; there are {list(available) or "none"}'
    )
  return wanted, available[wanted]


def shapes(path: Path) -> layouts.Shapes:
  """Shape and name of the dtype of every leaf, by leaf name."""
  return layouts.layout_at(path).shapes(path)


def read(
  path: Path, abstract: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array]:
  """Reads the leaves of these names to where their shardings say.

  Raises:
    CheckpointError: a leaf is missing, or of another shape or dtype.
  """
  named, _ = layouts.layout_at(path).read(path, abstract, whole=False)
  return dict(named)


def read_as(
  path: Path,
  abstract: Any,
  leaf_names: Any,
  restore_transformations: Mapping[str, Any] | None = None,
) -> Any:
  """Reads a tree; `leaf_names` has the name of each leaf in the checkpoint."""
  treedef = jax.tree.structure(abstract)
  wanted = dict(
    zip(jax.tree.leaves(leaf_names), jax.tree.leaves(abstract), strict=True)
  )
  restored_as = transformations.Transformations(restore_transformations)
  found, _ = restored_as.read(path, wanted, whole=False)
  return jax.tree.unflatten(
    treedef, [found[name] for name in jax.tree.leaves(leaf_names)]
  )


def leaf_names(tree: Any) -> Any:
  """`tree` with each leaf replaced by its name in a checkpoint."""
  return jax.tree.unflatten(jax.tree.structure(tree), list(paths.flatten(tree)))
