# SPDX-License-Identifier: Apache-2.0
"""Weights that are gathered once for a decode step.

A decode loop reads all weights for each token. Of weights that FSDP shards over
the axes of the batch, XLA would gather each for each token.
"""

from __future__ import annotations

import jax

from pax.steps import forward
from pax.steps.step_settings import StepSettings
from pax.train_states import Variables
from praxis import base_layer, py_utils, pytypes

JTensor = pytypes.JTensor
PartitionSpec = jax.sharding.PartitionSpec


def gather_weights(
  settings: StepSettings, mdl_vars: Variables[JTensor]
) -> Variables[JTensor]:
  """Returns variables with weights in the layout of decoding.

  They are replicated over `task.decode.gathered_weight_axes`, in the dtype of
  the forward pass. Replicas have whole weights already.

  Args:
    settings: The task, and how it runs.
    mdl_vars: Variables by collection.

  Raises:
    ValueError: An axis is not in the mesh.
  """
  if settings.axis_name is not None:
    return mdl_vars
  axes = frozenset(settings.task.decode.gathered_weight_axes)
  if not axes:
    return mdl_vars
  model = settings.task.model
  axis_names = model.mesh_axis_names or ()
  if unknown := axes - set(axis_names):
    raise ValueError(
      f'task.decode.gathered_weight_axes must be axes of the mesh'
      f' {list(axis_names)}, got {sorted(unknown)}; remove them'
    )
  mdl_vars, _ = forward.cast_inputs(settings, mdl_vars, pytypes.NestedMap())
  specs = base_layer.var_partition_specs(
    settings.var_weight_hparams[base_layer.PARAMS],
    model.mesh_shape,
    axis_names,
  )

  def constrain(
    x: JTensor, spec: PartitionSpec, removed: frozenset[str]
  ) -> JTensor:
    kept = (
      tuple(axis for axis in py_utils.mesh_axes(entry) if axis not in removed)
      for entry in spec
    )
    split_dims = [dim_axes or None for dim_axes in kept]
    # A spec may omit trailing dimensions.
    split_dims += [None] * (x.ndim - len(split_dims))
    return base_layer.maybe_shard(x, split_dims, axis_names)

  def gather(x: JTensor, spec: PartitionSpec) -> JTensor:
    # Without the first constraint XLA gathers before it casts.
    return constrain(constrain(x, spec, frozenset()), spec, axes)

  params = jax.tree.map(gather, mdl_vars[base_layer.PARAMS], specs)
  return {**mdl_vars, base_layer.PARAMS: params}
