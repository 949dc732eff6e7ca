# SPDX-License-Identifier: Apache-2.0
"""The variables that a model declares for a batch."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from pax.train_states import Variables
from praxis import base_layer, base_model
from praxis.pytypes import Nested


def declare_variables(
  model: base_model.BaseModel, batch: Nested[Any], *, do_eval: bool = False
) -> Variables[base_layer.WeightHParams]:
  """Returns the WeightHParams of the variables, by abstract evaluation.

  Args:
    model: The model.
    batch: A batch, or its shapes and dtypes.
    do_eval: Whether the model runs in evaluation mode.
  """
  spec = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
  collections = model.abstract_init_with_metadata(spec, do_eval=do_eval)
  # Variables of wrapped Flax modules have no flags: outside of `params` they
  # are not trainable.
  return {
    name: tree
    if name == base_layer.PARAMS
    else jax.tree.map(_as_non_trainable, tree)
    for name, tree in collections.items()
  }


def _as_non_trainable(
  hparams: base_layer.WeightHParams,
) -> base_layer.WeightHParams:
  flag = base_layer.WeightHParamsCollection.NON_TRAINABLE
  flags = sorted({*(hparams.collections or ()), flag})
  return dataclasses.replace(hparams, collections=flags)
