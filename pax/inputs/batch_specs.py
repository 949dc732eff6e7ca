# SPDX-License-Identifier: Apache-2.0
"""Shapes of batches that are known before there are data."""

from __future__ import annotations

import jax
import numpy as np

from praxis import base_input, py_utils

NestedMap = py_utils.NestedMap


class RowSpecsProvider(base_input.BaseInputSpecsProvider):
  """Batches of rows that all have one length."""

  # Rows per batch and host.
  batch_size: int = 0
  # Positions per row.
  seq_len: int = 0
  # Names of the features that are int32 and float32, [B, T].
  ints: tuple[str, ...] = ()
  floats: tuple[str, ...] = ()
  # Names of those that are float32, [B].
  weights: tuple[str, ...] = ()

  def get_input_specs(self) -> NestedMap:
    shape = (self.batch_size, self.seq_len)
    features = [
      (self.ints, shape, np.int32),
      (self.floats, shape, np.float32),
      (self.weights, shape[:1], np.float32),
    ]
    return NestedMap(
      {
        name: jax.ShapeDtypeStruct(shape, dtype)
        for names, shape, dtype in features
        for name in names
      }
    )
