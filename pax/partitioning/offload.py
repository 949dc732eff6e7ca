# SPDX-License-Identifier: Apache-2.0
"""Host offloading: arrays in pinned host memory between steps.

References: https://docs.jax.dev/en/latest/notebooks/host-offloading.html
"""

from __future__ import annotations

from typing import Any, TypeVar

import jax
from jax.sharding import Mesh

from pax import host_memory, train_states
from pax.partitioning.step_protocols import BoundStep
from pax.steps import Batch

# A pytree of ShapeDtypeStructs.
_TreeT = TypeVar('_TreeT')

TrainState = train_states.TrainState


def offload_metadata(metadata: _TreeT, mesh: Mesh) -> _TreeT:
  """Returns shapes whose shardings are in host memory.

  Scalars stay on the devices: each would be a transfer of its own.

  Raises:
    ValueError: The devices have no pinned host memory.
  """
  _check_memory(mesh)

  def offload(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    if not x.shape:
      return x
    sharding = x.sharding.with_memory_kind(host_memory.PINNED_HOST)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  return jax.tree.map(offload, metadata)


def with_offloaded_state(
  step: BoundStep,
  metadata: TrainState[jax.ShapeDtypeStruct],
  *,
  returns_state: bool,
) -> BoundStep:
  """Returns a step that transfers offloaded leaves to the devices and back.

  Args:
    step: (state, batch, key) -> outputs.
    metadata: Shapes and shardings of the state.
    returns_state: Whether the first output is the new state.
  """
  shardings = jax.tree.map(lambda x: x.sharding, metadata)

  def run(state: TrainState, batch: Batch, key: jax.Array) -> Any:
    state = jax.tree.map(host_memory.to_device, state, shardings)
    if not returns_state:
      return step(state, batch, key)
    state, *outputs = step(state, batch, key)
    return jax.tree.map(host_memory.to_host, state, shardings), *outputs

  return run


def _check_memory(mesh: Mesh) -> None:
  device = mesh.devices.flat[0]
  kinds = sorted(memory.kind for memory in device.addressable_memories())
  if host_memory.PINNED_HOST not in kinds:
    raise ValueError(
      f'offload_opt_states needs memory {host_memory.PINNED_HOST!r}, and'
      f' {device.platform} has {", ".join(kinds)}; set'
      ' task.train.offload_opt_states=False'
    )
