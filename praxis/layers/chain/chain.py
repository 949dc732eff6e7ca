# SPDX-License-Identifier: Apache-2.0
"""Layers called in order on a stack of arguments.

A layer consumes as many leading arguments as its `__call__` requires. Its
outputs replace the leading arguments; the others remain for the next layers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from praxis import base_layer


class Chain(base_layer.BaseLayer):
  """Calls layers in order on a stack of arguments.

  Keyword arguments go to the layers that have parameters of these names.
  """

  # Layers keep the names of their Configs.
  preserve_adopted_names: bool = True
  # Layers or their Configs; None is skipped.
  layers: Sequence[base_layer.BaseLayer] | None = None

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    """Returns the final stack: a tuple, or its only entry."""
    return self.call_chain(*args, **kwargs)[-1]

  def call_chain(self, *args: Any, **kwargs: Any) -> Sequence[Any]:
    """Returns the stack after each layer."""
    return call_chain(self.layers or (), *args, **kwargs)


def call_chain(
  layers: Sequence[Callable[..., Any] | None], *args: Any, **kwargs: Any
) -> Sequence[Any]:
  """Returns the stack after each layer, or [arguments] without layers."""
  stacks: list[Any] = []
  stack = args
  present = [layer for layer in layers if layer is not None]
  for i, layer in enumerate(present):
    try:
      stacks.append(call_chained_layer(layer, *stack, **kwargs))
    except Exception as error:
      name = getattr(layer, 'name', '')
      error.add_note(f'in layer {i} of the chain, name {name!r}')
      raise
    stack = ensure_tuple(stacks[-1])
  return stacks or [_unwrap_single(args)]


def call_chained_layer(
  layer: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
  """Returns the stack `args` after one layer.

  A layer with `*args` gets the whole stack, one with `**kwargs` all keyword
  arguments; other layers get the arguments of their signature.

  Args:
    layer: a layer or function.
    *args: the stack.
    **kwargs: keyword arguments of the chain.

  Raises:
    ValueError: the layer requires more arguments than the stack holds.
  """
  call: Any = layer
  signature = inspect.signature(
    layer if inspect.isroutine(layer) else call.__call__
  )
  parameters = signature.parameters
  var_positional = inspect.Parameter.VAR_POSITIONAL
  var_keyword = inspect.Parameter.VAR_KEYWORD
  num_required = 0
  for name, parameter in parameters.items():
    if name in kwargs or parameter.default is not inspect.Parameter.empty:
      break
    if parameter.kind in (var_positional, var_keyword):
      num_required = len(args)
      break
    num_required += 1
  if num_required > len(args):
    raise ValueError(
      f'layer {getattr(layer, "name", layer)!r} wants {num_required} arguments '
      f'of the chain, which holds {len(args)}; its signature is {signature}'
    )
  if not any(p.kind == var_keyword for p in parameters.values()):
    kwargs = {k: v for k, v in kwargs.items() if k in parameters}
  output = layer(*args[:num_required], **kwargs)
  outputs = () if output is None else ensure_tuple(output)
  return _unwrap_single((*outputs, *args[len(outputs) :]))


def ensure_tuple(x: Any) -> tuple[Any, ...]:
  """Returns a tuple unchanged, anything else as a tuple of one entry."""
  return x if isinstance(x, tuple) else (x,)


def _unwrap_single(stack: tuple[Any, ...]) -> Any:
  return stack[0] if len(stack) == 1 else stack
