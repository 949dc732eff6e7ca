# SPDX-License-Identifier: Apache-2.0
"""What layers report beside their output, and what they read of the context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from praxis.base_layer import running, summaries, weights
from praxis.base_layer.context import JaxContext, cur_jax_context
from praxis.base_layer.summaries import SummaryType
from praxis.base_layer.variables import (
  AUX_LOSS,
  RANDOM,
  SUMMARIES,
  AuxLossStruct,
)
from praxis.pytypes import JTensor, PRNGKey


class ReportingModule(running.RunnableModule):
  """A module that reports summaries and losses through collections."""

  @property
  def jax_context(self) -> JaxContext:
    return cur_jax_context()

  @property
  def do_eval(self) -> bool:
    """Whether the model is evaluated or decoded, not trained."""
    return self.jax_context.do_eval

  @property
  def reflect_configs(self) -> bool:
    """Whether layers record their Configs in HYPER_PARAMS."""
    return self.jax_context.self_reflect_configs

  @nn.nowrap
  def add_summary(
    self,
    name: str,
    tensor: JTensor | Callable[[], JTensor],
    summary_type: SummaryType = SummaryType.SCALAR,
    verbosity: int = 2,
  ) -> None:
    """Records a value; a callable is called only if it is recorded.

    A second value of one name and type is kept as `name1`, and so on.
    """
    if verbosity > self.jax_context.summary_verbosity:
      return
    if not self.is_mutable_collection(SUMMARIES) or self.is_initializing():
      return
    taken = lambda key: self.has_variable(SUMMARIES, key)
    key = summaries.unused_key(name, summary_type, taken)
    value = jnp.asarray(tensor() if callable(tensor) else tensor)
    self.put_variable(SUMMARIES, key, summaries.batched(value, summary_type))

  @nn.nowrap
  def add_aux_loss(
    self, name: str, value: JTensor, weight: JTensor | float | None = None
  ) -> None:
    """Adds a loss to the model's own; those of one name add up."""
    if not self.is_mutable_collection(AUX_LOSS) or self.is_initializing():
      return
    zero = AuxLossStruct(jnp.float32(0), jnp.float32(0))
    before = self.get_variable(AUX_LOSS, name, zero)
    loss = AuxLossStruct(
      before.value + jnp.asarray(value, jnp.float32),
      before.weight + jnp.asarray(1.0 if weight is None else weight),
    )
    self.put_variable(AUX_LOSS, name, loss)

  @nn.nowrap
  def next_prng_key(self, name: str = RANDOM) -> PRNGKey:
    """Returns a new key, fixed by the step's key, the layer and the call."""
    return self.make_rng(name)

  @nn.nowrap
  def get_variable(self, col: str, name: str, default: Any = None) -> Any:
    """Returns a variable by collection and name, without its box."""
    return weights.maybe_unbox_value(super().get_variable(col, name, default))
