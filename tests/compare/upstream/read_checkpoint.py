# SPDX-License-Identifier: Apache-2.0
"""Restores a checkpoint with the original paxml; runs below its Python.

    python tests/compare/upstream/read_checkpoint.py FOLDER VALUES

FOLDER has a state with the shapes of `write_checkpoints.py`; VALUES is the file
for its restored leaves.
"""

from __future__ import annotations

import importlib
import sys

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

# By name: it is next to this file, and imports upstream's modules.
write_checkpoints = importlib.import_module('write_checkpoints')


def main(folder: str, values: str) -> None:
  """Writes the leaves in the order of the state."""
  mesh = Mesh(np.array(jax.devices()).reshape(4), ('data',))
  state = write_checkpoints.train_state(mesh)
  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
  checkpoints = write_checkpoints.checkpoints
  restored = checkpoints.restore_checkpoint(
    shapes,
    folder,
    mesh,
    checkpoints.CheckpointType.GDA,
    jax.tree.map(
      lambda x: (
        PartitionSpec(*[None] * (x.ndim - 1), 'data')
        if x.ndim > 1
        else PartitionSpec()
      ),
      state,
    ),
    state_unpadded_shape_dtype_struct=shapes,
    tensorstore_use_ocdbt=True,
  )
  np.savez(values, *map(np.asarray, jax.tree.leaves(restored)))


if __name__ == '__main__':
  main(*sys.argv[1:])
