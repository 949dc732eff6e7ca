# SPDX-License-Identifier: Apache-2.0
"""Shapes of batches before the data are read."""

from __future__ import annotations

import jax
import numpy as np

from praxis import base_hyperparams, pax_fiddle, py_utils
from praxis.base_input.input_pipeline import BaseInput

NestedMap = py_utils.NestedMap


class BaseInputSpecsProvider(base_hyperparams.FiddleBaseParameterizable):
  """Provides the shapes of batches before the data are read."""

  def get_input_specs(self) -> NestedMap:
    """Returns the `jax.ShapeDtypeStruct`s of a host's batch.

    Raises:
      NotImplementedError: a subclass must define it.
    """
    raise NotImplementedError(f'{type(self).__name__} lacks get_input_specs')


class DatasetInputSpecsProvider(BaseInputSpecsProvider):
  """Provides the shapes of the batches of an input.

  They are those of its `dataset` if that determines all of them, and otherwise
  those of its first batch.
  """

  # The input; it is built, and at most one batch of it is read.
  input_p: pax_fiddle.Config[BaseInput] | None = pax_fiddle.template_field(None)

  def get_input_specs(self) -> NestedMap:
    if self.input_p is None:
      raise ValueError('input_p of DatasetInputSpecsProvider is not set')
    inp = self.input_p.Instantiate()
    padding = inp.batch_padding_size
    element_spec = getattr(inp.dataset, 'element_spec', None)
    if element_spec is not None:
      tensors = jax.tree.leaves(element_spec)
      if all(t.shape.is_fully_defined() for t in tensors):
        return jax.tree.map(
          lambda t: jax.ShapeDtypeStruct(
            (t.shape[0] + padding, *t.shape[1:]), t.dtype.as_numpy_dtype
          ),
          element_spec,
        )
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, np.asarray(x).dtype),
      inp.get_next_padded(),
    )
