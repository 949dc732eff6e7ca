# SPDX-License-Identifier: Apache-2.0
"""What holds while layers run: train or eval, and where summaries go."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

from praxis.base_layer.summaries import SummaryType, get_summary_type_suffix
from praxis.pytypes import JTensor

_stacks = threading.local()


class JaxContext:
  """A thread's stack of settings; `new_context` pushes one for a `with`."""

  @dataclasses.dataclass(kw_only=True)
  class HParams:
    """The settings of a context."""

    # True in eval and decode, False in training, None: not said.
    do_eval: bool | None = None
    # Summaries of a verbosity above this are not recorded.
    summary_verbosity: int = 3
    # Mesh axes that activations see under another name.
    mesh_axes_transpose: dict[str, str] | None = None
    # Whether layers record their Configs in HYPER_PARAMS.
    self_reflect_configs: bool = False

    def clone(self) -> JaxContext.HParams:
      return copy.deepcopy(self)

  def __init__(self, hparams: JaxContext.HParams):
    self.hparams = hparams.clone()
    self.summary_dict: dict[str, JTensor] = {}

  @property
  def do_eval(self) -> bool:
    return bool(self.hparams.do_eval)

  @property
  def summary_verbosity(self) -> int:
    return self.hparams.summary_verbosity

  @property
  def self_reflect_configs(self) -> bool:
    return self.hparams.self_reflect_configs

  @staticmethod
  def top() -> JaxContext | None:
    """Returns the innermost context of this thread, None outside any."""
    return _stack()[-1] if _stack() else None

  @staticmethod
  def has_context() -> bool:
    return bool(_stack())

  @staticmethod
  @contextlib.contextmanager
  def new_context(
    *, hparams: JaxContext.HParams | None = None
  ) -> Iterator[JaxContext]:
    """Enters a context with `hparams`, or with those of the current one."""
    if hparams is None:
      hparams = cur_jax_context().hparams
    context = JaxContext(hparams)
    _stack().append(context)
    try:
      yield context
    finally:
      _stack().pop()


def cur_jax_context() -> JaxContext:
  """Returns the current context, one of defaults outside any."""
  return JaxContext.top() or JaxContext(JaxContext.HParams())


def add_global_summary(
  name: str,
  tensor: JTensor | Callable[[], JTensor],
  summary_type: SummaryType = SummaryType.SCALAR,
  verbosity: int = 2,
) -> None:
  """Records a summary from outside a layer; ValueError for a taken name."""
  context = cur_jax_context()
  if verbosity > context.summary_verbosity:
    return
  key = name + get_summary_type_suffix(summary_type)
  if key in context.summary_dict:
    raise ValueError(f'summary {name!r} was added before; choose another name')
  context.summary_dict[key] = tensor() if callable(tensor) else tensor


def all_global_summaries() -> dict[str, Any]:
  """Returns the global summaries of the current context by key."""
  return cur_jax_context().summary_dict


def clear_global_summary() -> None:
  cur_jax_context().summary_dict.clear()


def _stack() -> list[JaxContext]:
  if not hasattr(_stacks, 'stack'):
    _stacks.stack = []
  return _stacks.stack
