# SPDX-License-Identifier: Apache-2.0
"""JaxContext: thread-local settings of a forward pass, and its summaries."""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.core import Scope

from praxis import pax_fiddle
from praxis.base_layer import summary_types, weight_sharing
from praxis.base_layer.summary_types import SummaryType
from praxis.pytypes import JTensor

_stacks = threading.local()


class GlobalSummaries:
  """Summaries that no layer records."""

  def __init__(self) -> None:
    # By key, the name with the suffix of its type.
    self.dict: dict[str, JTensor] = {}

  def add_summary(
    self, name: str, tensor: JTensor, summary_type: SummaryType
  ) -> None:
    """Records a summary; further ones of a name become `name1`, `name2`, ..."""
    is_used = self.dict.__contains__
    key = summary_types.unused_key(name, summary_type, is_used)
    self.dict[key] = summary_types.add_batch_dim(tensor, summary_type)

  def clear(self) -> None:
    """Forgets the summaries; a dict that was returned keeps them."""
    self.dict = {}


class JaxContext:
  """A thread's stack of settings; `new_context` pushes one for a `with`."""

  @dataclasses.dataclass(kw_only=True)
  class HParams:
    """The settings of a context."""

    # True in eval and decode, False in training; None: unset, as in training.
    do_eval: bool | None = None
    # Summaries of a verbosity above this are not recorded.
    summary_verbosity: int = 3
    # New names of mesh axes in activation shardings; None removes an axis.
    mesh_axes_transpose: dict[str, str | None] | None = None
    # Whether layers record their Configs in HYPER_PARAMS.
    self_reflect_configs: bool = False
    # Whether this call ends the layer's part of a train step: in a pipeline an
    # array, True for the last microbatch only.
    ends_step: bool | JTensor = True
    # Whether statistics of a batch are those of all replicas of pmap, or of the
    # examples of this call only.
    sync_replicas: bool = True

    def clone(self) -> JaxContext.HParams:
      """Returns a deep copy."""
      return copy.deepcopy(self)

  def __init__(self, hparams: JaxContext.HParams):
    self._hparams = hparams.clone()
    self._summary_dict = GlobalSummaries()

  def __enter__(self) -> JaxContext:
    _stack().append(self)
    return self

  def __exit__(self, *exc_info: Any) -> None:
    _stack().pop()

  @property
  def hparams(self) -> JaxContext.HParams:
    """The settings."""
    return self._hparams

  @property
  def summary_dict(self) -> GlobalSummaries:
    """The global summaries."""
    return self._summary_dict

  @property
  def do_eval(self) -> bool:
    """Whether layers evaluate or decode; False if unset."""
    return bool(self.hparams.do_eval)

  @property
  def summary_verbosity(self) -> int:
    """The maximum verbosity of recorded summaries."""
    return self.hparams.summary_verbosity

  @property
  def self_reflect_configs(self) -> bool:
    """Whether layers record their Configs in HYPER_PARAMS."""
    return self.hparams.self_reflect_configs

  @property
  def ends_step(self) -> bool | JTensor:
    """Whether this call ends the layer's part of a train step."""
    return self.hparams.ends_step

  @property
  def sync_replicas(self) -> bool:
    """Whether statistics of a batch are those of all replicas of pmap."""
    return self.hparams.sync_replicas

  @staticmethod
  def top() -> JaxContext | None:
    """Returns the innermost context of this thread, or None."""
    return _stack()[-1] if _stack() else None

  @staticmethod
  def has_context() -> bool:
    """Whether this thread is in a context."""
    return bool(_stack())

  @staticmethod
  def new_context(*, hparams: JaxContext.HParams | None = None) -> JaxContext:
    """Returns a context to enter, by default with the current settings."""
    return JaxContext(cur_jax_context().hparams if hparams is None else hparams)

  def lookup_shared_layer(
    self, root_scope: Scope, shared_layer_id: str
  ) -> weight_sharing.SharedLayer | None:
    """Returns the shared layer of an id at a root scope, or None."""
    return weight_sharing.lookup(root_scope, shared_layer_id)

  def set_shared_layer(
    self,
    root_scope: Scope,
    shared_layer_id: str,
    layer: nn.Module,
    layer_hparams: pax_fiddle.Config,
  ) -> None:
    """Registers the shared layer of an id at a root scope."""
    weight_sharing.register(root_scope, shared_layer_id, layer, layer_hparams)


def cur_jax_context() -> JaxContext:
  """Returns the current context, or one with default settings."""
  return JaxContext.top() or JaxContext(JaxContext.HParams())


def add_global_summary(
  name: str,
  tensor: JTensor | Callable[[], JTensor],
  summary_type: SummaryType = SummaryType.SCALAR,
  verbosity: int = 2,
) -> None:
  """Records a summary outside of layers; see `BaseLayer.add_summary`.

  Floats are recorded as float32.

  Args:
    name: the name of the summary.
    tensor: the value, or a function that is called only if it is recorded.
    summary_type: the kind of the value.
    verbosity: the summary is dropped if the context's verbosity is lower.
  """
  context = cur_jax_context()
  if verbosity > context.summary_verbosity:
    return
  value = tensor() if callable(tensor) else tensor
  if hasattr(value, 'dtype') and jnp.issubdtype(value.dtype, jnp.floating):
    value = value.astype(jnp.float32)
  context.summary_dict.add_summary(name, value, summary_type)


def all_global_summaries() -> dict[str, Any]:
  """Returns the global summaries of the current context by key."""
  return cur_jax_context().summary_dict.dict


def clear_global_summary() -> None:
  """Removes the global summaries of the current context."""
  cur_jax_context().summary_dict.clear()


def _stack() -> list[JaxContext]:
  if not hasattr(_stacks, 'stack'):
    _stacks.stack = []
  return _stacks.stack
