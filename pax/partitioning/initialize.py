# SPDX-License-Identifier: Apache-2.0
"""First values of a train state, from the declarations of its variables."""

from __future__ import annotations

import math
import zlib
from typing import Any

import jax
import jax.numpy as jnp

from pax import tasks_lib, train_states
from praxis import base_layer, pytypes

Nested = pytypes.Nested
NestedMap = pytypes.NestedMap


def init_state(
  task: tasks_lib.SingleTask,
  var_weight_hparams: Nested[Any],
  batch: NestedMap,
  key: jax.Array,
) -> train_states.TrainState:
  """Returns the state at step 0; jit it with the shardings wanted.

  A variable's randomness depends on the key and its path alone. The model is
  traced, on a batch of these shapes, only if a variable was declared without
  an initialiser, as those of wrapped flax modules are.
  """
  declared = jax.tree.leaves(var_weight_hparams)
  if all(hparams.init is not None for hparams in declared):
    mdl_vars = _init_declared(var_weight_hparams, key)
  else:
    mdl_vars = _init_by_model(task, batch, key)
  return task.create_train_state(mdl_vars, var_weight_hparams)


def _init_declared(var_weight_hparams: Nested[Any], key: jax.Array) -> Any:
  def init(path: Any, hparams: base_layer.WeightHParams) -> jax.Array:
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    mine = jax.random.fold_in(key, zlib.crc32(name.encode()))
    return _init_variable(hparams, mine)

  return jax.tree_util.tree_map_with_path(init, var_weight_hparams)


def _init_variable(
  hparams: base_layer.WeightHParams, key: jax.Array
) -> jax.Array:
  """Returns a sample; a repeated layer's copies are drawn one by one."""
  prefix = tuple(hparams.repeat_prefix or ())
  if not prefix:
    return base_layer.init_weight(hparams, key)
  keys = jax.random.split(key, math.prod(prefix))
  copies = jax.vmap(lambda key: base_layer.init_weight(hparams, key))(keys)
  return copies.reshape(hparams.full_shape)


def _init_by_model(
  task: tasks_lib.SingleTask, batch: NestedMap, key: jax.Array
) -> Any:
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), batch)
  hparams = base_layer.JaxContext.HParams(do_eval=False, summary_verbosity=0)
  with base_layer.JaxContext.new_context(hparams=hparams):
    return task.model.init(key, zeros)
