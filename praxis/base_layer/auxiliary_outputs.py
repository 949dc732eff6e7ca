# SPDX-License-Identifier: Apache-2.0
"""Summaries, auxiliary losses and random keys of layers."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp

from praxis.base_layer import summary_types, unboxed_module
from praxis.base_layer.jax_context import JaxContext, cur_jax_context
from praxis.base_layer.summary_types import SummaryType
from praxis.base_layer.variable_collections import (
  AUX_LOSS,
  RANDOM,
  SUMMARIES,
  AuxLossStruct,
)
from praxis.pytypes import JTensor, PRNGKey


class AuxiliaryOutputs(unboxed_module.UnboxedModule):
  """A module that adds summaries and losses to mutable collections."""

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
    """Records a summary; further ones of a name become `name1`, `name2`, ...

    Args:
      name: the name of the summary.
      tensor: the value, or a function that is called only if it is recorded.
      summary_type: the kind of the value.
      verbosity: the summary is dropped if the context's verbosity is lower.

    Raises:
      ValueError: it is a text, which no compiled layer can return.
    """
    if summary_type is SummaryType.TEXT:
      raise ValueError(
        f'add_summary({name!r}) of a layer, which is compiled, wants arrays,'
        ' got a text; write it in a train program (docs/summaries.md)'
      )
    if verbosity > self.jax_context.summary_verbosity:
      return
    if not self.is_mutable_collection(SUMMARIES) or self.is_initializing():
      return
    is_used = lambda key: self.has_variable(SUMMARIES, key)
    key = summary_types.unused_key(name, summary_type, is_used)
    value = jnp.asarray(tensor() if callable(tensor) else tensor)
    self.put_variable(
      SUMMARIES, key, summary_types.add_batch_dim(value, summary_type)
    )

  @nn.nowrap
  def add_aux_loss(
    self, name: str, value: JTensor, weight: JTensor | float | None = None
  ) -> None:
    """Adds an auxiliary loss; values and weights of one name are summed."""
    if not self.is_mutable_collection(AUX_LOSS) or self.is_initializing():
      return
    zero = AuxLossStruct(jnp.float32(0), jnp.float32(0))
    previous = self.get_variable(AUX_LOSS, name, zero)
    value = jnp.asarray(value, jnp.float32)
    loss = AuxLossStruct(
      previous.value + value,
      previous.weight + (jnp.ones_like(value) if weight is None else weight),
    )
    self.put_variable(AUX_LOSS, name, loss)

  @nn.nowrap
  def next_prng_key(self, name: str = RANDOM) -> PRNGKey:
    """Returns a new key of the stream `name`.

    It is determined by the key of the step, the layer's path, and the number of
    keys drawn before.
    """
    return self.make_rng(name)
