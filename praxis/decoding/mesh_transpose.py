# SPDX-License-Identifier: Apache-2.0
"""A different assignment of mesh axes inside the decode loop.

A transpose {'a': 'b'} shards over mesh axis b what is declared over axis a, as
decode steps of one token may want another layout than the prefill.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec

from praxis import base_layer
from praxis.decoding.model_fns import TransformStateFn
from praxis.pytypes import Nested


def maybe_decode_mesh_transpose(
  model: Any, mesh_transpose: dict[str, str] | None
) -> Any:
  """Returns a context manager under which shardings use the transposed axes.

  It changes nothing while the model is initialized or without a transpose.
  """
  jax_context = base_layer.JaxContext
  settings = (
    base_layer.cur_jax_context().hparams.clone()
    if jax_context.has_context()
    else jax_context.HParams()
  )
  if not (mesh_transpose is None or model.is_initializing()):
    settings.mesh_axes_transpose = {**mesh_transpose}
  return jax_context.new_context(hparams=settings)


def maybe_reshard_mdl_for_decode(
  model: Any,
  mesh_transpose: dict[str, str] | None,
  model_var_pspecs: Mapping[str, Nested[PartitionSpec]] | None,
  transform_decode_state_fn: TransformStateFn,
) -> Any:
  """Returns the model bound to weights and states in the transposed sharding.

  Args:
    model: bound, with a mutable DECODE_CACHE.
    mesh_transpose: the axes inside the loop; None returns the model unchanged.
    model_var_pspecs: the declared PartitionSpecs of the model's variables.
    transform_decode_state_fn: fn(model, transform) over the decode states.

  Raises:
    ValueError: model_var_pspecs is None with a mesh transpose.
  """
  if mesh_transpose is None or model.is_initializing():
    return model
  if model_var_pspecs is None:
    raise ValueError(
      'model_var_pspecs must be given with a mesh transpose, got None; they '
      'are base_layer.var_partition_specs of the abstract variables'
    )
  variables = dict(model.variables)
  # First the present sharding, then the transposed one: with both constraints
  # the SPMD partitioner reshards once.
  variables = _constrain_weights(model, variables, model_var_pspecs)
  with maybe_decode_mesh_transpose(model, mesh_transpose):
    variables = _constrain_weights(model, variables, model_var_pspecs)
  resharded = model.bind(
    variables, rngs={base_layer.RANDOM: model.next_prng_key()}, mutable=True
  )
  # Layers constrain the sharding of the decode states that they transform.
  identity = lambda x, batch_dim, time_dim: x
  transform_decode_state_fn(resharded, identity)
  with maybe_decode_mesh_transpose(model, mesh_transpose):
    transform_decode_state_fn(resharded, identity)
  return resharded


def _constrain_weights(
  model: Any, variables: dict[str, Any], pspecs: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns `variables` with sharding constraints on weights."""

  def constrain(spec: PartitionSpec, x: jax.Array) -> jax.Array:
    # A PartitionSpec may omit trailing dimensions.
    split_dims = [*spec, *[None] * (x.ndim - len(spec))]
    return base_layer.maybe_shard(x, split_dims, model.mesh_axis_names)

  constrained = {
    name: jax.tree.map(
      constrain,
      pspecs[name],
      variables[name],
      is_leaf=lambda x: isinstance(x, PartitionSpec),
    )
    for name in (base_layer.PARAMS, base_layer.NON_TRAINABLE)
    if name in pspecs
  }
  return variables | constrained
