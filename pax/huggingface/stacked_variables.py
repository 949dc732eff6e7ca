# SPDX-License-Identifier: Apache-2.0
"""Variables of a model by its tensors: one each, parts, or stacks of several.

A StackedTransformerRepeated with a prefix of P layers and a block of L layers
has one variable for a weight of all its repetitions, with a leading axis: layer
P + i of the model is layer i % L of repetition i // L. A mixture of experts has
one variable for a weight of all its experts.
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
from praxis.layers.transformer_models import stack_configs

Config = pax_fiddle.Config
LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]

_LAYER = re.compile(r'(?<=/lm/transformer)/x_layers_(\d+)/')
_PREFIX_LAYER = re.compile(r'\bprefix_layers[./]x_layers_(\d+)[./]')
_REPEATED_LAYER = re.compile(r'\brepeat[./]sub[./]x_layers_(\d+)[./]')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repetition:
  """The layers of a repeated stack."""

  # Numbers of layers before the first block and in the block.
  num_prefix_layers: int
  block_size: int

  def path(self, path: str) -> str:
    """Returns the path of a variable in the stack.

    Args:
      path: Of the variable in a stack without repetition.
    """

    def replace(match: re.Match[str]) -> str:
      index, first = int(match[1]), self.num_prefix_layers
      if index < first:
        return f'/prefix_layers/x_layers_{index}/'
      return f'/repeat/sub/x_layers_{(index - first) % self.block_size}/'

    return _LAYER.sub(replace, path)


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
      return np.asarray(part(0)[in_tensor])
    positions = np.arange(len(self.tensors)).reshape(self.stack_shape)[in_stack]
    first, *others = positions.flat
    first_part = part(first)[in_tensor]
    parts = np.empty((positions.size, *first_part.shape), first_part.dtype)
    parts[0] = first_part
    for i, position in enumerate(others, 1):
      parts[i] = part(position)[in_tensor]
    return parts.reshape(*positions.shape, *first_part.shape)

  def unstack(
    self, value: np.ndarray
  ) -> Iterator[tuple[str, WeightLayout, np.ndarray]]:
    """Yields the variable of each tensor, with the tensor's name and layout."""
    parts = value.reshape(-1, *self.layouts[0].variable_shape)
    yield from zip(self.tensors, self.layouts, parts, strict=True)


def of_layouts(
  layouts: Mapping[str, Sequence[WeightLayout]], repetition: Repetition | None
) -> list[Variable]:
  """Returns the variables of a model, in the order of its tensors.

  Args:
    layouts: Those of each tensor by its name; layers are in order.
    repetition: Of the layers; None without.
  """
  stacks: dict[str, list[tuple[str, WeightLayout]]] = {}
  for name, parts in layouts.items():
    for layout in parts:
      path = layout.variable
      if repetition is not None:
        path = repetition.path(path)
      stacks.setdefault(path, []).append((name, layout))
  variables = []
  for path, stack in stacks.items():
    tensors, of_tensors = zip(*stack, strict=True)
    variables.append(
      Variable(
        path=path,
        tensors=tensors,
        layouts=of_tensors,
        stack_shape=_stack_shape(path, of_tensors),
      )
    )
  return variables


def _stack_shape(path: str, layouts: Sequence[WeightLayout]) -> tuple[int, ...]:
  """Returns the numbers of repetitions and experts of a variable."""
  num_layers = len({layout.variable for layout in layouts})
  shape: tuple[int, ...] = ()
  if _REPEATED_LAYER.search(path):
    shape += (num_layers,)
  if layouts[0].is_expert:
    shape += (len(layouts) // num_layers,)
  return shape


def find_repetition(paths: Iterable[str]) -> Repetition | None:
  """Returns the layers of a repeated stack.

  Args:
    paths: Paths of variables or names of leaves, with slashes or dots.

  Returns:
    None if the stack is not repeated.
  """
  paths = list(paths)
  block_size = _num_layers(_REPEATED_LAYER, paths)
  if not block_size:
    return None
  return Repetition(
    num_prefix_layers=_num_layers(_PREFIX_LAYER, paths), block_size=block_size
  )


def _num_layers(layer: re.Pattern[str], paths: Sequence[str]) -> int:
  matches = filter(None, map(layer.search, paths))
  return max((int(match[1]) + 1 for match in matches), default=0)


def repetition_of(model_p: LayerTpl) -> Repetition:
  """Returns the shortest prefix and the smallest block of a decoder.

  There is no prefix, and the block is one layer, unless layers differ in their
  attention windows, their templates or their experts.

  Args:
    model_p: A LanguageModel with a StackedTransformer.

  Raises:
    ValueError: The model has no such stack, or its layers do not repeat or
      depend on each other.
  """
  lm_p = getattr(model_p, 'lm_tpl', None)
  if lm_p is None:
    raise ValueError(
      'only the layers of decoders can be repeated, got a'
      f' {model_p.cls.__name__}; leave out --repeated_layers, or set'
      ' USE_REPEATED_LAYER=False'
    )
  stack_p = lm_p.stacked_transformer_tpl
  for name, is_set in (
    ('inputs of their own', lm_p.layer_inputs_tpl is not None),
    ('the keys of other layers', stack_p.key_sources is not None),
  ):
    if is_set:
      raise ValueError(
        f'layers that are repeated must not have {name}, got a'
        f' {stack_p.cls.__name__} whose layers have; leave out'
        ' --repeated_layers, or set USE_REPEATED_LAYER=False'
      )
  num_layers = stack_p.num_layers
  layers = [_layer_kind(stack_p, i) for i in range(num_layers)]
  kinds = [layers.index(layer) for layer in layers]
  for first in range(num_layers):
    size = _period(kinds[first:])
    if size is not None and (first == 0 or first + size < num_layers):
      return Repetition(num_prefix_layers=first, block_size=size)
  raise ValueError(
    'layers that are repeated must have the same attention windows, rotary'
    ' embeddings and numbers of experts, or a period of them, got windows'
    f' {stack_p.local_window_size} and experts in the layers'
    f' {list(stack_p.moe_layers or ())} of {num_layers}; leave out'
    ' --repeated_layers, or set USE_REPEATED_LAYER=False'
  )


def _period(kinds: list[int]) -> int | None:
  """Returns the smallest period, which divides the length; None for none."""
  for size in range(1, max(len(kinds) // 2, 1) + 1):
    times, rest = divmod(len(kinds), size)
    if rest == 0 and kinds == kinds[:size] * times:
      return size
  return None


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
  """Replaces the stack of a decoder by a prefix and a scan over its block.

  Args:
    model_p: A LanguageModel with a StackedTransformer.
    **settings: Fields of the StackedTransformerRepeated.

  Raises:
    ValueError: See `repetition_of`.
  """
  repetition = repetition_of(model_p)
  first, size = repetition.num_prefix_layers, repetition.block_size
  stack_p = model_p.lm_tpl.stacked_transformer_tpl
  repeated_p = Config(
    transformers.StackedTransformerRepeated,
    block=stack_configs.layers_of(stack_p, first, first + size),
    x_times=(stack_p.num_layers - first) // size,
    **settings,
  )
  if first:
    repeated_p.prefix = stack_configs.layers_of(stack_p, 0, first).set(
      remat=True, checkpoint_policy=repeated_p.checkpoint_policy
    )
  model_p.lm_tpl.stacked_transformer_tpl = repeated_p
