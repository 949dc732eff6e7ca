# SPDX-License-Identifier: Apache-2.0
"""Variables of a model by its tensors: one each, or stacks of several.

A StackedTransformerRepeated with a block of L layers has one variable for a
weight of all its repetitions, with a leading axis: layer i of the model is
layer i % L of repetition i // L. A mixture of experts has one variable for a
weight of all its experts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pax.huggingface.weight_layouts import WeightLayout
from praxis import base_layer, pax_fiddle
from praxis.layers import transformers

Config = pax_fiddle.Config
LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]

_LAYER = re.compile(r'/x_layers_(\d+)/')
_REPEATED_LAYER = re.compile(r'\brepeat[./]sub[./]x_layers_(\d+)[./]')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variable:
  """A variable, and the tensors with its values."""

  # Slash path, `params/lm/softmax/w`.
  path: str
  # Names in the files and layouts, in the order of the stack.
  tensors: tuple[str, ...]
  layouts: tuple[WeightLayout, ...]
  # Numbers of repetitions and of experts, where the variable has these axes.
  stack_shape: tuple[int, ...]

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape of the variable."""
    return self.stack_shape + self.layouts[0].variable_shape

  def dtype(self, dtypes: Mapping[str, np.dtype]) -> np.dtype:
    """Returns the dtype of its tensors.

    Args:
      dtypes: Dtypes by the names of tensors.

    Raises:
      ValueError: They have different dtypes.
    """
    dtype = dtypes[self.tensors[0]]
    for name in self.tensors:
      if dtypes[name] != dtype:
        raise ValueError(
          f'tensors of repeated layers or of experts must have one dtype, got'
          f' {dtype} for {self.tensors[0]} and {dtypes[name]} for {name};'
          ' convert them, or set USE_REPEATED_LAYER=False for layers'
        )
    return dtype

  def from_tensors(
    self,
    read: Callable[[str], np.ndarray],
    index: tuple[slice, ...] | None = None,
  ) -> np.ndarray:
    """Returns the variable or a part of it.

    Args:
      read: Returns the tensor of a name.
      index: One slice for each axis of the variable; None for all of it.
    """
    index = (slice(None),) * len(self.shape) if index is None else index
    num_axes = len(self.stack_shape)
    in_stack, in_tensor = index[:num_axes], index[num_axes:]
    part = lambda i: self.layouts[i].to_variable(read(self.tensors[i]))
    if not num_axes:
      return part(0)[in_tensor]
    positions = np.arange(len(self.tensors)).reshape(self.stack_shape)[in_stack]
    first, *others = positions.flat
    first_part = part(first)[in_tensor]
    parts = np.empty((positions.size, *first_part.shape), first_part.dtype)
    parts[0] = first_part
    for i, position in enumerate(others, 1):
      parts[i] = part(position)[in_tensor]
    return parts.reshape(*positions.shape, *first_part.shape)

  def to_tensors(self, value: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yields names and views whose elements are in the order of the tensors."""
    parts = value.reshape(-1, *self.layouts[0].variable_shape)
    for name, layout, part in zip(
      self.tensors, self.layouts, parts, strict=True
    ):
      yield name, layout.to_tensor_order(part)


def of_layouts(
  layouts: Mapping[str, WeightLayout], block_size: int | None
) -> list[Variable]:
  """Returns the variables of a model, in the order of its tensors.

  Args:
    layouts: The layouts by the names of tensors; layers are in order.
    block_size: Number of layers in the block of a repeated stack; None without
      repetition.
  """
  names: dict[str, list[str]] = {}
  for name, layout in layouts.items():
    names.setdefault(_path(layout.variable, block_size), []).append(name)
  return [
    Variable(
      path=path,
      tensors=tuple(tensors),
      layouts=tuple(layouts[name] for name in tensors),
      stack_shape=_stack_shape(path, [layouts[name] for name in tensors]),
    )
    for path, tensors in names.items()
  ]


def _stack_shape(path: str, layouts: Sequence[WeightLayout]) -> tuple[int, ...]:
  """Returns the numbers of repetitions and experts of a variable."""
  num_layers = len({layout.variable for layout in layouts})
  shape: tuple[int, ...] = ()
  if _REPEATED_LAYER.search(path):
    shape += (num_layers,)
  if layouts[0].is_expert:
    shape += (len(layouts) // num_layers,)
  return shape


def find_block_size(paths: Iterable[str]) -> int | None:
  """Returns the number of layers in the block of a repeated stack.

  Args:
    paths: Paths of variables or names of leaves, with slashes or dots.

  Returns:
    None if the stack is not repeated.
  """
  indices = [
    int(match[1]) for path in paths if (match := _REPEATED_LAYER.search(path))
  ]
  return max(indices) + 1 if indices else None


def block_size_of(model_p: LayerTpl) -> int:
  """Returns the size of the smallest block that repeats in a decoder.

  It is 1 unless layers differ in their attention windows, their templates or
  their experts.

  Args:
    model_p: A LanguageModel with a StackedTransformer.

  Raises:
    ValueError: The model has no such stack, or its layers do not repeat.
  """
  lm_p = getattr(model_p, 'lm_tpl', None)
  if lm_p is None:
    raise ValueError(
      'only the layers of decoders can be repeated, got a'
      f' {model_p.cls.__name__}; leave out --repeated_layers, or set'
      ' USE_REPEATED_LAYER=False'
    )
  stack_p = lm_p.stacked_transformer_tpl
  num_layers = stack_p.num_layers
  kinds = [_layer_kind(stack_p, i) for i in range(num_layers)]
  for size in range(1, max(num_layers // 2, 1) + 1):
    if num_layers % size == 0 and kinds == kinds[:size] * (num_layers // size):
      return size
  raise ValueError(
    'layers that are repeated must have the same attention windows, rotary'
    ' embeddings and numbers of experts, or a period of them, got windows'
    f' {stack_p.local_window_size} and experts in the layers'
    f' {list(stack_p.moe_layers or ())} of {num_layers}; leave out'
    ' --repeated_layers, or set USE_REPEATED_LAYER=False'
  )


def _layer_kind(stack_p: LayerTpl, index: int) -> tuple[Any, ...]:
  """Returns what a layer of a stack has of its own."""
  windows = stack_p.local_window_size
  templates = stack_p.transformer_layer_params_tpl
  return (
    windows[index] if isinstance(windows, list) else windows,
    templates[index] if isinstance(templates, list) else templates,
    index in (stack_p.moe_layers or ()),
  )


def repeat_layers(model_p: LayerTpl, **settings: Any) -> None:
  """Replaces the stack of a decoder by a scan over its smallest block.

  Args:
    model_p: A LanguageModel with a StackedTransformer.
    **settings: Fields of the StackedTransformerRepeated.

  Raises:
    ValueError: See `block_size_of`.
  """
  size = block_size_of(model_p)
  stack_p = model_p.lm_tpl.stacked_transformer_tpl
  repeated_p = Config(
    transformers.StackedTransformerRepeated,
    block=stack_p,
    x_times=stack_p.num_layers // size,
    **settings,
  )
  stack_p.num_layers = size
  for field in ('local_window_size', 'transformer_layer_params_tpl'):
    if isinstance(of_layers := getattr(stack_p, field), list):
      stack_p.set(**{field: of_layers[:size]})
  stack_p.moe_layers = [i for i in stack_p.moe_layers or () if i < size]
  model_p.lm_tpl.stacked_transformer_tpl = repeated_p


def _path(path: str, block_size: int | None) -> str:
  """Returns the path in a repeated stack of a variable of a layer."""
  if block_size is None:
    return path
  return _LAYER.sub(
    lambda match: f'/repeat/sub/x_layers_{int(match[1]) % block_size}/', path
  )
