# SPDX-License-Identifier: Apache-2.0
"""Initial train state from the WeightHParams of the variables."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Hashable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from pax import tasks_lib, train_states
from praxis import base_layer, py_utils, pytypes
from praxis.pytypes import Nested

JTensor = pytypes.JTensor
WeightHParams = base_layer.WeightHParams

# Up to this number of scalars a CPU runs an unoptimized program in less time
# than XLA takes to optimize it.
_MAX_UNOPTIMIZED = 100_000_000


def init_state(
  task: tasks_lib.SingleTask,
  var_weight_hparams: train_states.Variables[WeightHParams],
  shardings: Nested[NamedSharding] | None,
  batch: Nested[jax.ShapeDtypeStruct],
  key: jax.Array,
  *,
  do_eval: bool = False,
) -> train_states.TrainState:
  """Returns the state at step 0; to be jitted with `out_shardings`.

  The randomness of a variable depends only on the key and its path. Variables
  without an initializer, such as those of wrapped Flax modules, get the values
  of `model.init` on a batch of zeros.

  Args:
    task: The task.
    var_weight_hparams: WeightHParams of each variable.
    shardings: Sharding of each variable; None places them on one device.
    batch: Shapes and dtypes of a global batch.
    key: PRNG key.
    do_eval: Whether `model.init` runs in evaluation mode.
  """
  flax_values = {}
  if any(w.init is None for w in jax.tree.leaves(var_weight_hparams)):
    flax_values = _init_by_model(task, batch, key, do_eval=do_eval)
  mdl_vars = _init_declared(var_weight_hparams, shardings, key, flax_values)
  return task.create_train_state(mdl_vars, var_weight_hparams)


def compiler_options(
  devices: Sequence[jax.Device], num_params: int
) -> dict[str, int]:
  """Returns the compiler options of `init_state`, which runs once."""
  if devices[0].platform == 'cpu' and num_params < _MAX_UNOPTIMIZED:
    return {'xla_backend_optimization_level': 0}
  return {}


def _init_declared(
  var_weight_hparams: train_states.Variables[WeightHParams],
  shardings: Nested[NamedSharding] | None,
  key: jax.Array,
  flax_values: Mapping[str, JTensor],
) -> dict[str, Nested[JTensor]]:
  """Returns the variables; those of equal WeightHParams are sampled at once.

  Compiling a sampler takes longer than most samples, and a model has many
  variables of few kinds.

  Args:
    var_weight_hparams: WeightHParams of each variable.
    shardings: Sharding of each variable; None places them on one device.
    key: PRNG key.
    flax_values: Values, by path, of variables without an initializer.
  """
  variables = py_utils.tree_paths(var_weight_hparams)
  leaf_shardings = jax.tree.leaves(shardings) or [None] * len(variables)
  groups: dict[Hashable, list[int]] = {}
  values: list[JTensor | None] = [None] * len(variables)
  for i, ((path, hparams), sharding) in enumerate(
    zip(variables, leaf_shardings, strict=True)
  ):
    if hparams.init is None:
      values[i] = flax_values[path]
    else:
      key_of_group = _group_key(hparams, hparams.init, sharding)
      groups.setdefault(key_of_group, []).append(i)
  for members in groups.values():
    first = members[0]
    samples = _sample(
      variables[first][1],
      leaf_shardings[first],
      [variables[i][0] for i in members],
      key,
    )
    for i, value in zip(members, samples, strict=True):
      values[i] = value
  return jax.tree.unflatten(jax.tree.structure(var_weight_hparams), values)


def _group_key(
  hparams: WeightHParams,
  init: base_layer.WeightInit,
  sharding: NamedSharding | None,
) -> Hashable:
  """Returns a key that is equal for variables that can be sampled at once."""
  return (
    (tuple(hparams.repeat_prefix or ()), tuple(hparams.shape)),
    (init.method, repr(init.scale), jnp.dtype(hparams.dtype)),
    (repr(hparams.fan_in_axes), repr(hparams.fan_out_axes)),
    sharding,
  )


def _sample(
  hparams: WeightHParams,
  sharding: NamedSharding | None,
  paths: list[str],
  key: jax.Array,
) -> list[JTensor]:
  """Returns one sample per path; repeated layers are sampled independently."""
  if hparams.init is not None and hparams.init.method == 'constant':
    value = base_layer.init_var(hparams, key)
    return [jnp.broadcast_to(value, hparams.full_shape)] * len(paths)
  num_repeats = math.prod(hparams.repeat_prefix or ())
  hashes = [zlib.crc32(path.encode()) for path in paths]
  keys = jax.vmap(lambda path_hash: jax.random.fold_in(key, path_hash))(
    jnp.asarray(hashes, jnp.uint32)
  )
  keys = jax.vmap(lambda k: jax.random.split(k, num_repeats))(keys)
  init = functools.partial(base_layer.init_var, hparams)
  samples = jax.vmap(jax.vmap(init))(keys)
  samples = samples.reshape(len(paths), *hparams.full_shape)
  if sharding is not None:
    stacked = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
    samples = jax.lax.with_sharding_constraint(samples, stacked)
  return [samples[i] for i in range(len(paths))]


def _init_by_model(
  task: tasks_lib.SingleTask,
  batch: Nested[jax.ShapeDtypeStruct],
  key: jax.Array,
  *,
  do_eval: bool,
) -> dict[str, JTensor]:
  """Returns the values of `model.init` by path."""
  casts = task.model.fprop_dtype == jnp.bfloat16

  def zeros(x: jax.ShapeDtypeStruct) -> JTensor:
    # The train step casts its inputs in the same way.
    to_bfloat16 = casts and x.dtype == jnp.float32
    return jnp.zeros(x.shape, jnp.bfloat16 if to_bfloat16 else x.dtype)

  hparams = base_layer.JaxContext.HParams(do_eval=do_eval, summary_verbosity=0)
  with base_layer.JaxContext.new_context(hparams=hparams):
    mdl_vars = task.model.init(key, jax.tree.map(zeros, batch))
  return dict(py_utils.tree_paths(mdl_vars))
