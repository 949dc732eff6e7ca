# SPDX-License-Identifier: Apache-2.0
"""Arrays that wait in the memory of the host, and come to devices to be used.

References: https://docs.jax.dev/en/latest/notebooks/host-offloading.html
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

_HOST = 'pinned_host'


def on_host(metadata: Any, mesh: Mesh) -> Any:
  """Returns shapes whose shardings say that they lie on the host.

  Scalars stay: they are many, and a transfer each.

  Raises:
    ValueError: the devices have no such memory.
  """
  _check_memory(mesh)

  def of_host(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    if not x.shape:
      return x
    sharding = x.sharding.with_memory_kind(_HOST)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  return jax.tree.map(of_host, metadata)


def is_on_host(sharding: NamedSharding) -> bool:
  """Returns whether an array so placed takes no memory of devices."""
  return sharding.memory_kind == _HOST


def around(
  step: Callable[..., Any], metadata: Any, *, gives_back: bool
) -> Callable[..., Any]:
  """Returns a step on a state of which parts lie on the host.

  Args:
    step: (state, ...) -> outputs.
    metadata: shapes of the state, and where they lie.
    gives_back: whether the first output is the new state.
  """

  def run(state: Any, *args: Any) -> Any:
    state = jax.tree.map(_on_device, state, metadata)
    if not gives_back:
      return step(state, *args)
    state, *outputs = step(state, *args)
    return jax.tree.map(_on_host, state, metadata), *outputs

  return run


def _on_device(x: jax.Array, told: jax.ShapeDtypeStruct) -> jax.Array:
  if not is_on_host(told.sharding):
    return x
  return jax.device_put(x, told.sharding.with_memory_kind('device'))


def _on_host(x: jax.Array, told: jax.ShapeDtypeStruct) -> jax.Array:
  return jax.device_put(x, told.sharding) if is_on_host(told.sharding) else x


def _check_memory(mesh: Mesh) -> None:
  device = mesh.devices.flat[0]
  kinds = sorted(memory.kind for memory in device.addressable_memories())
  if _HOST not in kinds:
    raise ValueError(
      f'offload_opt_states needs memory {_HOST!r}, and {device.platform} has '
      f'{", ".join(kinds)}; set task.train.offload_opt_states=False'
    )
