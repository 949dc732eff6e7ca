# SPDX-License-Identifier: Apache-2.0
"""Other shardings inside the decode loop than outside of it."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import PartitionSpec

from praxis import base_layer
from praxis.decoding.loop import TransformStateFn
from praxis.pytypes import Nested


def maybe_decode_mesh_transpose(
  model: Any, mesh_transpose: dict[str, str] | None
) -> Any:
  """Returns a context in which mesh axes are replaced by others."""
  if base_layer.JaxContext.has_context():
    hparams = base_layer.cur_jax_context().hparams.clone()
  else:
    hparams = base_layer.JaxContext.HParams()
  if mesh_transpose is not None and not model.is_initializing():
    hparams.mesh_axes_transpose = mesh_transpose
  return base_layer.JaxContext.new_context(hparams=hparams)


def maybe_reshard_mdl_for_decode(
  model: Any,
  mesh_transpose: dict[str, str] | None,
  model_var_pspecs: Nested[PartitionSpec] | None,
  transform_decode_state_fn: TransformStateFn,
) -> Any:
  """Returns the model, bound to weights and states that are sharded anew.

  Without a transpose it is the model itself.

  Raises:
    ValueError: there is a transpose, but nothing says how weights are sharded.
  """
  if mesh_transpose is None or model.is_initializing():
    return model
  if model_var_pspecs is None:
    raise ValueError(
      'model_var_pspecs must be given with a mesh transpose, got None; they '
      'are base_layer.var_partition_specs of the abstract variables'
    )
  variables = dict(model.variables)
  # As they come, then as they are wanted, lest the compiler moves them twice.
  variables = _annotated(model, variables, model_var_pspecs)
  with maybe_decode_mesh_transpose(model, mesh_transpose):
    variables = _annotated(model, variables, model_var_pspecs)
  resharded = model.bind(
    variables, rngs={base_layer.RANDOM: model.next_prng_key()}, mutable=True
  )
  # Layers say how their states are sharded when they are transformed.
  same = lambda x, batch_dim, time_dim: x
  transform_decode_state_fn(resharded, same)
  with maybe_decode_mesh_transpose(model, mesh_transpose):
    transform_decode_state_fn(resharded, same)
  return resharded


def _annotated(
  model: Any, variables: dict[str, Any], pspecs: Nested[PartitionSpec]
) -> dict[str, Any]:
  def shard(spec: PartitionSpec, x: jax.Array) -> jax.Array:
    # A spec says nothing of trailing dimensions that are not split.
    split = [*spec, *[None] * (x.ndim - len(spec))]
    return base_layer.maybe_shard(x, split, model.mesh_axis_names)

  is_spec = lambda x: isinstance(x, PartitionSpec)
  collections = (base_layer.PARAMS, base_layer.NON_TRAINABLE)
  annotated = {
    name: jax.tree.map(shard, pspecs[name], variables[name], is_leaf=is_spec)
    for name in collections
    if name in pspecs
  }
  return variables | annotated
