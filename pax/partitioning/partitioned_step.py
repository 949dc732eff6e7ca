# SPDX-License-Identifier: Apache-2.0
"""A step compiled for a mesh: what the training loop calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pax.partitioning import memory
from praxis import py_utils


class PartitionedStep:
  """`(state, batch, key) -> outputs`, compiled once.

  A call does nothing in Python but call the executable.
  """

  def __init__(
    self,
    step: Callable[..., Any],
    *,
    mesh: Mesh,
    state: Any,
    batch: Any,
    out_shardings: Any,
    donate_state: bool,
  ):
    self._mesh = mesh
    self._replicated = NamedSharding(mesh, PartitionSpec())
    self._abstract = (state, batch)
    shardings = jax.tree.map(lambda x: x.sharding, (state, batch))
    self._jitted = jax.jit(
      step,
      in_shardings=(*shardings, self._replicated),
      out_shardings=out_shardings,
      donate_argnums=(0,) if donate_state else (),
    )
    self._compiled: jax.stages.Compiled | None = None
    # One thread may compile while another one is about to.
    self._compiling = threading.Lock()
    self._key: jax.Array | None = None
    self._placed_key: jax.Array | None = None

  @property
  def devices(self) -> list[jax.Device]:
    """What the step runs on, in the order of the mesh."""
    return list(self._mesh.devices.flat)

  @property
  def mesh_shape(self) -> Mapping[str, int]:
    """Devices along each axis of the mesh."""
    return self._mesh.shape

  @property
  def compiled(self) -> jax.stages.Compiled:
    """The executable: cost and memory analysis, and its text."""
    return self.compile()._compiled

  def trace(
    self, key: jax.Array | None = None, platform: str | None = None
  ) -> jax.stages.Traced:
    """Returns the step as a jaxpr.

    Args:
      key: only tells which kind of key is used.
      platform: whose choices are made; None: that of the mesh, which may be
        another one than what this process runs on.
    """
    key = jax.eval_shape(lambda: jax.random.key(0)) if key is None else key
    platform = platform or self._mesh.devices.flat[0].platform
    with jax.set_mesh(self._mesh), py_utils.tracing_for(platform):
      return self._jitted.trace(*self._abstract, key)

  def lower(self, key: jax.Array | None = None) -> jax.stages.Lowered:
    """Returns the step as StableHLO; `key` as for `trace`."""
    traced = self.trace(key)
    with jax.set_mesh(self._mesh):
      return traced.lower()

  def compile(self, key: jax.Array | None = None) -> PartitionedStep:
    """Compiles, unless that was done before; returns self."""
    with self._compiling:
      if self._compiled is None:
        self._compiled = self.lower(key).compile()
        memory.trim_heap()
    return self

  def adopt(self, compiled: jax.stages.Compiled) -> None:
    """Takes an executable of this very step, compiled elsewhere."""
    with self._compiling:
      self._compiled = compiled

  def __call__(self, state: Any, batch: Any, key: jax.Array) -> Any:
    if key is not self._key:
      self._use_key(key)
    return self._compiled(state, batch, self._placed_key)

  def _use_key(self, key: jax.Array) -> None:
    self.compile(key)
    self._key = key
    # By jit, since other processes may hold some of the devices.
    place = jax.jit(lambda k: k, out_shardings=self._replicated)
    self._placed_key = place(key)
