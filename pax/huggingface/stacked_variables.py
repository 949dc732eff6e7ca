# SPDX-License-Identifier: Apache-2.0
"""Variables of a model by its tensors: one each, or stacked over layers.

A StackedTransformerRepeated with a block of L layers has one variable for a
weight of all its repetitions, with a leading axis: layer i of the model is
layer i % L of repetition i // L.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
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
  # Names in the files and layouts, by repetition; one if it is not stacked.
  tensors: tuple[str, ...]
  layouts: tuple[WeightLayout, ...]
  is_stacked: bool

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape of the variable."""
    shape = self.layouts[0].variable_shape
    return (len(self.layouts), *shape) if self.is_stacked else shape

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
          f'tensors of repeated layers must have one dtype, got {dtype} for'
          f' {self.tensors[0]} and {dtypes[name]} for {name}; convert them, or'
          ' set USE_REPEATED_LAYER=False'
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
    if not self.is_stacked:
      [name], [layout] = self.tensors, self.layouts
      return layout.to_variable(read(name))[index]
    repetitions = range(len(self.layouts))[index[0]]
    part = lambda i: self.layouts[i].to_variable(read(self.tensors[i]))
    first = part(repetitions[0])[index[1:]]
    stack = np.empty((len(repetitions), *first.shape), first.dtype)
    stack[0] = first
    for position, repetition in enumerate(repetitions[1:], 1):
      stack[position] = part(repetition)[index[1:]]
    return stack

  def to_tensors(self, value: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yields names and views whose elements are in the order of the tensors."""
    parts = value if self.is_stacked else [value]
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
      is_stacked=_REPEATED_LAYER.search(path) is not None,
    )
    for path, tensors in names.items()
  ]


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

  It is 1 unless layers have different attention windows.

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
  windows, num_layers = stack_p.local_window_size, stack_p.num_layers
  if not isinstance(windows, list):
    return 1
  for size in range(1, num_layers // 2 + 1):
    if num_layers % size == 0 and windows == windows[:size] * (
      num_layers // size
    ):
      return size
  raise ValueError(
    f'layers that are repeated must have the same attention windows or a period'
    f' of them, got {windows}; leave out --repeated_layers, or set'
    ' USE_REPEATED_LAYER=False'
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
  if isinstance(stack_p.local_window_size, list):
    stack_p.local_window_size = stack_p.local_window_size[:size]
  model_p.lm_tpl.stacked_transformer_tpl = repeated_p


def _path(path: str, block_size: int | None) -> str:
  """Returns the path in a repeated stack of a variable of a layer."""
  if block_size is None:
    return path
  return _LAYER.sub(
    lambda match: f'/repeat/sub/x_layers_{int(match[1]) % block_size}/', path
  )
