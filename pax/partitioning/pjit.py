# SPDX-License-Identifier: Apache-2.0
"""SPMD: one program over the whole batch, split over a mesh by the compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from pax import tasks_lib
from pax.partitioning import mesh as mesh_lib
from pax.partitioning import specs
from pax.partitioning.placement import Placement


def spmd_placement(
  task: tasks_lib.SingleTask, devices: Sequence[jax.Device] | None
) -> Placement:
  """Returns the placement on the mesh that the model names.

  Raises:
    ValueError: the mesh does not fit the devices.
  """
  model = task.model
  if not model.mesh_axis_names:
    raise ValueError(
      f'ici_mesh_shape is {list(model.ici_mesh_shape)} and mesh_axis_names is '
      'not set; set task.model.mesh_axis_names, e.g. (replica, data, mdl)'
    )
  mesh = mesh_lib.create_mesh(
    model.ici_mesh_shape,
    model.dcn_mesh_shape,
    model.mesh_axis_names,
    devices=devices,
    contiguous_submeshes=bool(model.contiguous_submeshes),
  )
  mapping = task.train.inputs_split_mapping
  return Placement(
    mesh=mesh,
    axis_name=None,
    state_specs=task.create_train_state_partition_specs,
    batch_spec=lambda rank: specs.batch_spec(mapping, rank, mesh.axis_names),
    globalize=_as_it_is,
    even_batches=False,
  )


def _as_it_is(
  step: Callable[..., Any], output_specs: Any
) -> Callable[..., Any]:
  del output_specs  # The step is written for the whole batch already.
  return step
