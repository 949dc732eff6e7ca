# SPDX-License-Identifier: Apache-2.0
"""A user's step function on a mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from pax import train_states
from pax.partitioning import compiler_options
from pax.steps import BaseStepFnStaticArgs, Batch, StepFnOutput

TrainState = train_states.TrainState


class PartitionedFunction:
  """`(state, key, batch, static args) -> (new state or None, output)`.

  It is compiled for each structure of its arguments and each value of the
  static arguments.
  """

  def __init__(
    self,
    step: Callable[..., tuple[TrainState | None, StepFnOutput]],
    *,
    mesh: Mesh,
    put_batch: Callable[[Batch], Batch],
    out_shardings: Any,
    donate_state: bool,
    options: Mapping[str, compiler_options.Option],
  ):
    """Compiles nothing yet.

    Args:
      step: (state, key, global batch, static args) -> outputs.
      mesh: The mesh, which is the context of the step.
      put_batch: Returns the global batch of a host batch.
      out_shardings: Shardings of the outputs.
      donate_state: Whether the state is deleted.
      options: Of the compiler, by name.
    """
    self._mesh = mesh
    self._put_batch = put_batch
    self._options = options
    self._jitted = jax.jit(
      step,
      out_shardings=out_shardings,
      donate_argnums=(0,) if donate_state else (),
      static_argnums=(3,),
      compiler_options=dict(options),
    )

  def __call__(
    self,
    train_state: TrainState,
    prng_key: jax.Array,
    inputs: Batch,
    static_args: BaseStepFnStaticArgs | None = None,
  ) -> tuple[TrainState | None, StepFnOutput]:
    if _is_on_host(inputs):
      inputs = self._put_batch(inputs)
    with jax.set_mesh(self._mesh), compiler_options.checked(self._options):
      return self._jitted(train_state, prng_key, inputs, static_args)

  def lower(
    self,
    train_state: TrainState,
    prng_key: jax.Array,
    inputs: Batch,
    static_args: BaseStepFnStaticArgs | None = None,
  ) -> jax.stages.Lowered:
    """Returns the step as StableHLO, for arrays or their shapes and dtypes.

    Args:
      train_state: The state.
      prng_key: The PRNG key.
      inputs: The global batch.
      static_args: Arguments that are not traced.
    """
    with jax.set_mesh(self._mesh):
      return self._jitted.lower(train_state, prng_key, inputs, static_args)


def _is_on_host(inputs: Batch) -> bool:
  return any(isinstance(x, np.ndarray) for x in jax.tree.leaves(inputs))
