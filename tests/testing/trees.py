# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of pytrees of arrays."""

from __future__ import annotations

from typing import TypeVar

import jax

Tree = TypeVar('Tree')


def abstract(tree: Tree) -> Tree:
  """Returns `tree` with shapes, dtypes and shardings in place of arrays."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
    tree,
  )
