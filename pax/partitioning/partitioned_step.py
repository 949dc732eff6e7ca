# SPDX-License-Identifier: Apache-2.0
"""A step function compiled for a mesh."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.extend import core as jex_core
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pax import train_states
from pax.partitioning import compiler_options, memory, program_agreement
from pax.partitioning.step_protocols import BoundStep
from pax.steps import Batch
from praxis import py_utils

TrainState = train_states.TrainState


@dataclasses.dataclass(frozen=True)
class JitOptions:
  """How a step is compiled, except for the shardings of its inputs."""

  out_shardings: Any
  donate_state: bool
  compiler_options: Mapping[str, compiler_options.Option]


class PartitionedStep:
  """`(state, batch, key) -> outputs`, compiled once.

  After the first call, a call only runs the executable.
  """

  def __init__(
    self,
    step: BoundStep,
    *,
    mesh: Mesh,
    state: TrainState[jax.ShapeDtypeStruct],
    batch: Batch,
    jit_options: JitOptions,
  ):
    self._name = getattr(step, '__name__', 'step')
    self._mesh = mesh
    self._replicated = NamedSharding(mesh, PartitionSpec())
    self._options = jit_options.compiler_options
    self._abstract_args = (state, batch)
    shardings = jax.tree.map(lambda x: x.sharding, (state, batch))
    self._jitted = jax.jit(
      step,
      in_shardings=(*shardings, self._replicated),
      out_shardings=jit_options.out_shardings,
      donate_argnums=(0,) if jit_options.donate_state else (),
      compiler_options=dict(self._options),
    )
    self._compiled: jax.stages.Compiled | None = None
    # Runs a call; None is the executable.
    self._run: Callable[[TrainState, Batch, jax.Array], Any] | None = None
    # A thread may compile while another calls the step.
    self._compiling = threading.Lock()
    self._key: jax.Array | None = None
    self._replicated_key: jax.Array | None = None

  @property
  def devices(self) -> list[jax.Device]:
    """The devices in the order of the mesh."""
    return list(self._mesh.devices.flat)

  @property
  def mesh_shape(self) -> Mapping[str, int]:
    """Number of devices along each mesh axis."""
    return self._mesh.shape

  @property
  def compiled(self) -> jax.stages.Compiled:
    """The executable, for its cost and memory analysis and its HLO."""
    return self._executable()

  def trace(
    self, key: jax.Array | None = None, platform: str | None = None
  ) -> jax.stages.Traced:
    """Returns the step as a jaxpr.

    Args:
      key: A PRNG key; only its implementation matters. None is the
        default one.
      platform: Platform whose kernels are selected; None is that of the mesh.
    """
    key = jax.eval_shape(lambda: jax.random.key(0)) if key is None else key
    platform = platform or self._mesh.devices.flat[0].platform
    with jax.set_mesh(self._mesh), py_utils.tracing_for(platform):
      return self._jitted.trace(*self._abstract_args, key)

  def lower(self, key: jax.Array | None = None) -> jax.stages.Lowered:
    """Returns the step as StableHLO; `key` as in `trace`."""
    traced = self.trace(key)
    with jax.set_mesh(self._mesh):
      return traced.lower()

  def compile(self, key: jax.Array | None = None) -> PartitionedStep:
    """Compiles the step unless it is compiled; returns self.

    With JAX_DISABLE_JIT nothing is compiled: each operation runs by itself.
    """
    if not jax.config.values['jax_disable_jit']:
      self._executable(key)
    return self

  def compile_anew(self, key: jax.Array | None = None) -> jax.stages.Compiled:
    """Returns an executable under the current settings of JAX.

    Args:
      key: As in `trace`.

    Raises:
      ValueError: XLA does not take a compiler option, or another process of the
        mesh compiles another program.
    """
    lowered = self.lower(key)
    program_agreement.check(self._name, lowered, self._mesh)
    with compiler_options.checked(self._options):
      return lowered.compile()

  def set_compiled(self, compiled: jax.stages.Compiled) -> None:
    """Sets the executable, which must be a compilation of this step."""
    with self._compiling:
      self._compiled = self._run = compiled

  def set_run(self, run: Callable[[TrainState, Batch, jax.Array], Any]) -> None:
    """Sets the function of a call; the step is compiled only if asked to."""
    self._run = run

  def dispatch(self, state: TrainState, batch: Batch, key: jax.Array) -> Any:
    """Runs the step by `jax.jit`, which compiles what it has not yet."""
    platform = self._mesh.devices.flat[0].platform
    with (
      jax.set_mesh(self._mesh),
      py_utils.tracing_for(platform),
      compiler_options.checked(self._options),
    ):
      return self._jitted(state, batch, key)

  def run_traced(
    self,
    transform: Callable[[jex_core.ClosedJaxpr, Sequence[jax.Array]], Any],
    state: TrainState,
    batch: Batch,
    key: jax.Array,
  ) -> tuple[jex_core.ClosedJaxpr, Any]:
    """Returns the jaxpr of the step, and `transform(jaxpr, leaves)`, compiled.

    Nothing is donated; the outputs are replicated.

    Args:
      transform: A function of the jaxpr and of the leaves of the arguments.
      state: The train state.
      batch: The global batch.
      key: The PRNG key.
    """
    closed = self.trace(key).jaxpr
    leaves = jax.tree.leaves((state, batch, self._replicate(key)))
    run = jax.jit(
      lambda *leaves: transform(closed, leaves), out_shardings=self._replicated
    )
    platform = self._mesh.devices.flat[0].platform
    with jax.set_mesh(self._mesh), py_utils.tracing_for(platform):
      return closed, run(*leaves)

  def __call__(self, state: TrainState, batch: Batch, key: jax.Array) -> Any:
    if self._run is None:
      is_eager = jax.config.values['jax_disable_jit']
      self._run = self.dispatch if is_eager else self._executable(key)
    if key is not self._key or self._replicated_key is None:
      self._key, self._replicated_key = key, self._replicate(key)
    return self._run(state, batch, self._replicated_key)

  def _executable(self, key: jax.Array | None = None) -> jax.stages.Compiled:
    with self._compiling:
      if self._compiled is None:
        self._compiled = self.compile_anew(key)
        memory.trim_heap()
      return self._compiled

  def _replicate(self, key: jax.Array) -> jax.Array:
    # jit, unlike device_put, replicates over devices of other processes.
    return jax.jit(lambda k: k, out_shardings=self._replicated)(key)
