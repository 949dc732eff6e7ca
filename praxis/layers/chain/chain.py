# SPDX-License-Identifier: Apache-2.0
"""Layers in order, on arguments taken as a stack.

A layer takes as many leading arguments as its `__call__` requires; what it
returns takes their place, and the rest stays for the layers after it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from praxis import base_layer


class Chain(base_layer.BaseLayer):
  """Calls layers in order, on arguments taken as a stack.

  Keyword arguments go to the layers that name them.
  """

  # flax keeps the names that layers were configured with.
  preserve_adopted_names: bool = True
  # The layers, or their Configs; None is passed over.
  layers: Sequence[base_layer.BaseLayer] | None = None

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    """Returns the stack after the last layer: a tuple, or its only entry."""
    return self.call_chain(*args, **kwargs)[-1]

  def call_chain(self, *args: Any, **kwargs: Any) -> Sequence[Any]:
    """Returns the stack after each layer."""
    return call_chain(self.layers or (), *args, **kwargs)


def call_chain(
  layers: Sequence[Callable[..., Any] | None], *args: Any, **kwargs: Any
) -> Sequence[Any]:
  """Returns the stack after each layer; the arguments if there is no layer."""
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
  return stacks or [_unless_single(args)]


def call_chained_layer(
  layer: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
  """Returns the stack `args` after one layer.

  A layer with `*args` or `**kwargs` gets everything, another the arguments that
  it requires and the keywords that it names.

  Raises:
    ValueError: the layer requires more arguments than the stack holds.
  """
  is_function = inspect.isroutine(layer)
  signature = inspect.signature(layer if is_function else layer.__call__)
  parameters = signature.parameters
  variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
  required = 0
  for name, parameter in parameters.items():
    if name in kwargs or parameter.default is not inspect.Parameter.empty:
      break
    if parameter.kind in variadic:
      required = len(args)
      break
    required += 1
  if required > len(args):
    raise ValueError(
      f'layer {getattr(layer, "name", layer)!r} wants {required} arguments of '
      f'the chain, which holds {len(args)}; its signature is {signature}'
    )
  if not any(p.kind == variadic[1] for p in parameters.values()):
    kwargs = {k: v for k, v in kwargs.items() if k in parameters}
  returned = layer(*args[:required], **kwargs)
  outputs = () if returned is None else ensure_tuple(returned)
  return _unless_single((*outputs, *args[len(outputs) :]))


def ensure_tuple(x: Any) -> tuple[Any, ...]:
  """Returns a tuple as it is, anything else as the only entry of one."""
  return x if isinstance(x, tuple) else (x,)


def _unless_single(stack: tuple[Any, ...]) -> Any:
  return stack[0] if len(stack) == 1 else stack
