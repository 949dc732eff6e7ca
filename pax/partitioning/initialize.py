# SPDX-License-Identifier: Apache-2.0
"""Initial train state from the WeightHParams of the variables."""

from __future__ import annotations

import dataclasses
import functools
import math
import zlib
from collections.abc import Hashable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from pax import tasks_lib, train_states
from pax.checkpoints import paths
from praxis import base_layer, py_utils, pytypes
from praxis.pytypes import Nested

JTensor = pytypes.JTensor
WeightHParams = base_layer.WeightHParams

# Up to this number of scalars a CPU runs an unoptimized program in less time
# than XLA takes to optimize it.
_MAX_UNOPTIMIZED = 100_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class StateInitializer:
  """Returns the state of a task at step 0, on the devices.

  The randomness of a variable depends only on the key and its path. Variables
  without an initializer, such as those of wrapped Flax modules, get the values
  of `model.init` on a batch of zeros.
  """

  task: tasks_lib.SingleTask
  var_weight_hparams: train_states.Variables[WeightHParams]
  # Shapes and shardings of the state, with or without optimizer states.
  metadata: train_states.TrainState[jax.ShapeDtypeStruct]
  # Shapes and dtypes of a global batch.
  batch: Nested[jax.ShapeDtypeStruct]
  # Whether `model.init` runs in evaluation mode.
  do_eval: bool = False
  compiler_options: Mapping[str, int] = dataclasses.field(default_factory=dict)

  def state(
    self, key: jax.Array, loaded: Mapping[str, jax.Array]
  ) -> train_states.TrainState:
    """Returns the state.

    Args:
      key: PRNG key.
      loaded: Leaves by name, which are not sampled. Averages of variables begin
        with those that are loaded.
    """
    names = [x for x in paths.flatten(self.metadata) if x not in loaded]
    fresh = self.leaves(key, names, loaded) if names else {}
    return paths.unflatten(self.metadata, {**loaded, **fresh})

  def leaves(
    self, key: jax.Array, names: Sequence[str], loaded: Mapping[str, jax.Array]
  ) -> dict[str, jax.Array]:
    """Returns leaves by name; no other leaf takes memory.

    Args:
      key: PRNG key.
      names: The names.
      loaded: Other leaves by name, which are not sampled.
    """
    metadata = paths.flatten(self.metadata)
    names_of_variables = paths.flatten({'mdl_vars': self.metadata.mdl_vars})
    given = {
      path: loaded[name]
      for name, (path, _) in zip(
        names_of_variables,
        py_utils.tree_paths(self.var_weight_hparams),
        strict=True,
      )
      if name in loaded
    }

    def create(
      key: jax.Array, given: Mapping[str, JTensor]
    ) -> dict[str, JTensor]:
      made = paths.flatten(self._create(key, given))
      return {name: made[name] for name in names}

    create = jax.jit(
      create,
      out_shardings={name: metadata[name].sharding for name in names},
      compiler_options=dict(self.compiler_options),
    )
    return create(key, given)

  def _create(
    self, key: jax.Array, given: Mapping[str, JTensor]
  ) -> train_states.TrainState:
    """Returns the whole state; to be jitted.

    Args:
      key: PRNG key.
      given: Values of variables, by path, which are not sampled.
    """
    undeclared = [
      path
      for path, hparams in py_utils.tree_paths(self.var_weight_hparams)
      if hparams.init is None and path not in given
    ]
    if undeclared:
      values = self._init_by_model(key)
      given = {**given, **{path: values[path] for path in undeclared}}
    shardings = jax.tree.map(lambda x: x.sharding, self.metadata.mdl_vars)
    mdl_vars = _init_declared(self.var_weight_hparams, shardings, key, given)
    return self.task.create_train_state(mdl_vars, self.var_weight_hparams)

  def _init_by_model(self, key: jax.Array) -> dict[str, JTensor]:
    """Returns the values of `model.init` by path."""
    casts = self.task.model.fprop_dtype == jnp.bfloat16

    def zeros(x: jax.ShapeDtypeStruct) -> JTensor:
      # The train step casts its inputs in the same way.
      to_bfloat16 = casts and x.dtype == jnp.float32
      return jnp.zeros(x.shape, jnp.bfloat16 if to_bfloat16 else x.dtype)

    hparams = base_layer.JaxContext.HParams(
      do_eval=self.do_eval, summary_verbosity=0
    )
    with base_layer.JaxContext.new_context(hparams=hparams):
      mdl_vars = self.task.model.init(key, jax.tree.map(zeros, self.batch))
    return dict(py_utils.tree_paths(mdl_vars))


def compiler_options(
  devices: Sequence[jax.Device], num_params: int
) -> dict[str, int]:
  """Returns the compiler options of `StateInitializer`, which runs once."""
  if devices[0].platform == 'cpu' and num_params < _MAX_UNOPTIMIZED:
    return {'xla_backend_optimization_level': 0}
  return {}


def _init_declared(
  var_weight_hparams: train_states.Variables[WeightHParams],
  shardings: Nested[NamedSharding],
  key: jax.Array,
  given: Mapping[str, JTensor],
) -> dict[str, Nested[JTensor]]:
  """Returns the variables; those of equal WeightHParams are sampled at once.

  Compiling a sampler takes longer than most samples, and a model has many
  variables of few kinds.

  Args:
    var_weight_hparams: WeightHParams of each variable.
    shardings: Sharding of each variable.
    key: PRNG key.
    given: Values of variables, by path, which are not sampled.
  """
  variables = py_utils.tree_paths(var_weight_hparams)
  leaf_shardings = jax.tree.leaves(shardings)
  groups: dict[Hashable, list[int]] = {}
  values: list[JTensor | None] = [None] * len(variables)
  for i, ((path, hparams), sharding) in enumerate(
    zip(variables, leaf_shardings, strict=True)
  ):
    if path in given:
      values[i] = given[path]
    elif hparams.init is not None:
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
  sharding: NamedSharding,
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
  sharding: NamedSharding,
  variable_paths: list[str],
  key: jax.Array,
) -> list[JTensor]:
  """Returns one sample per path; repeated layers are sampled independently."""
  if hparams.init is not None and hparams.init.method == 'constant':
    value = base_layer.init_var(hparams, key)
    return [jnp.broadcast_to(value, hparams.full_shape)] * len(variable_paths)
  num_repeats = math.prod(hparams.repeat_prefix or ())
  hashes = [zlib.crc32(path.encode()) for path in variable_paths]
  keys = jax.vmap(lambda path_hash: jax.random.fold_in(key, path_hash))(
    jnp.asarray(hashes, jnp.uint32)
  )
  keys = jax.vmap(lambda k: jax.random.split(k, num_repeats))(keys)
  init = functools.partial(base_layer.init_var, hparams)
  samples = jax.vmap(jax.vmap(init))(keys)
  samples = samples.reshape(len(variable_paths), *hparams.full_shape)
  stacked = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
  samples = jax.lax.with_sharding_constraint(samples, stacked)
  return [samples[i] for i in range(len(variable_paths))]
