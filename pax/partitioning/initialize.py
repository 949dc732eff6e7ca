# SPDX-License-Identifier: Apache-2.0
"""First values of a train state, from the declarations of its variables."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from pax import tasks_lib, train_states
from praxis import base_layer, py_utils, pytypes

JTensor = pytypes.JTensor
Nested = pytypes.Nested
NestedMap = pytypes.NestedMap
WeightHParams = base_layer.WeightHParams

# Up to this size a CPU draws the variables faster than it would compile a fast
# program for that.
_SMALL = 100_000_000


def init_state(
  task: tasks_lib.SingleTask,
  var_weight_hparams: Nested[Any],
  shardings: Nested[NamedSharding],
  batch: NestedMap,
  key: jax.Array,
) -> train_states.TrainState:
  """Returns the state at step 0; jit it with the shardings wanted.

  A variable's randomness depends on the key and its path alone. Variables that
  are declared without an initialiser, as those of wrapped flax modules are,
  get the values of the model's `init` on a batch of these shapes.
  """
  declared = jax.tree.leaves(var_weight_hparams)
  given = {}
  if any(hparams.init is None for hparams in declared):
    given = _init_by_model(task, batch, key)
  mdl_vars = _init_declared(var_weight_hparams, shardings, key, given)
  return task.create_train_state(mdl_vars, var_weight_hparams)


def compiler_options(
  devices: Sequence[jax.Device], num_params: int
) -> dict[str, Any]:
  """Returns how to compile `init_state`, which runs once."""
  if devices[0].platform == 'cpu' and num_params < _SMALL:
    return {'xla_backend_optimization_level': 0}
  return {}


def _init_declared(
  var_weight_hparams: Nested[Any],
  shardings: Nested[NamedSharding],
  key: jax.Array,
  given: Mapping[str, JTensor],
) -> Any:
  """Returns the variables; those declared alike are drawn in one go.

  Compiling a draw takes longer than most draws, and a model has few kinds of
  weights but many of each.

  Args:
    var_weight_hparams: what is declared of each variable.
    shardings: how each is to lie.
    key: what the values depend on.
    given: the value, by path, of each declared without an initialiser.
  """
  named = py_utils.tree_paths(var_weight_hparams)
  places = jax.tree.leaves(shardings)
  alike: dict[Any, list[int]] = {}
  values: list[JTensor | None] = [None] * len(named)
  for i, ((path, hparams), place) in enumerate(zip(named, places, strict=True)):
    if hparams.init is None:
      values[i] = given[path]
    else:
      alike.setdefault(_kind(hparams, place), []).append(i)
  for members in alike.values():
    first = members[0]
    drawn = _draw(
      named[first][1], places[first], [named[i][0] for i in members], key
    )
    for i, value in zip(members, drawn, strict=True):
      values[i] = value
  return jax.tree.unflatten(jax.tree.structure(var_weight_hparams), values)


def _kind(hparams: WeightHParams, place: NamedSharding) -> Any:
  """Returns what variables have in common that can be drawn in one go."""
  init = hparams.init
  return (
    (tuple(hparams.repeat_prefix or ()), tuple(hparams.shape)),
    (init.method, repr(init.scale), jnp.dtype(hparams.dtype)),
    (repr(hparams.fan_in_axes), repr(hparams.fan_out_axes)),
    place,
  )


def _draw(
  hparams: WeightHParams,
  place: NamedSharding,
  paths: list[str],
  key: jax.Array,
) -> list[JTensor]:
  """Returns one sample a path; a repeated layer's copies are independent."""
  if hparams.init.method == 'constant':
    value = base_layer.init_var(hparams, key)
    return [jnp.broadcast_to(value, hparams.full_shape)] * len(paths)
  copies = math.prod(hparams.repeat_prefix or ())
  hashes = [zlib.crc32(path.encode()) for path in paths]
  keys = jax.vmap(lambda mine: jax.random.fold_in(key, mine))(
    jnp.asarray(hashes, jnp.uint32)
  )
  keys = jax.vmap(lambda mine: jax.random.split(mine, copies))(keys)
  draw = functools.partial(base_layer.init_var, hparams)
  drawn = jax.vmap(jax.vmap(draw))(keys)
  drawn = drawn.reshape(len(paths), *hparams.full_shape)
  split = NamedSharding(place.mesh, PartitionSpec(None, *place.spec))
  drawn = jax.lax.with_sharding_constraint(drawn, split)
  return [drawn[i] for i in range(len(paths))]


def _init_by_model(
  task: tasks_lib.SingleTask, batch: NestedMap, key: jax.Array
) -> dict[str, JTensor]:
  """Returns the values, by path, that the model itself starts from."""
  in_bfloat16 = task.model.fprop_dtype == jnp.bfloat16

  def zeros(x: jax.ShapeDtypeStruct) -> JTensor:
    # As the training step casts its input.
    cast = in_bfloat16 and x.dtype == jnp.float32
    return jnp.zeros(x.shape, jnp.bfloat16 if cast else x.dtype)

  hparams = base_layer.JaxContext.HParams(do_eval=False, summary_verbosity=0)
  with base_layer.JaxContext.new_context(hparams=hparams):
    mdl_vars = task.model.init(key, jax.tree.map(zeros, batch))
  return dict(py_utils.tree_paths(mdl_vars))
