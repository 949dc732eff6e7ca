# SPDX-License-Identifier: Apache-2.0
"""Traversal and adaptation of the Configs of transformer stacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from praxis import base_layer, pax_fiddle
from praxis.layers.attentions import kernel_choice
from praxis.layers.injection import fp8_templates
from praxis.layers.transformers import transformer

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


def stacked_transformers(stack_tpl: LayerTpl) -> Iterator[LayerTpl]:
  """Yields the StackedTransformer Configs within a stack's Config.

  A repeated stack contains one as `block`, and may have another one before it;
  a pipelined stack contains one, or a repeated stack, as `pipeline_stage`.
  """
  if has_field(stack_tpl, 'prefix') and stack_tpl.prefix is not None:
    yield from stacked_transformers(stack_tpl.prefix)
  if has_field(stack_tpl, 'pipeline_stage'):
    stages = stack_tpl.pipeline_stage
  elif has_field(stack_tpl, 'block'):
    stages = stack_tpl.block
  else:
    yield stack_tpl
    return
  for stage in _as_list(stages):
    yield from stacked_transformers(stage)


def layer_templates(stacked_tpl: LayerTpl) -> list[LayerTpl]:
  """Returns the layer templates of a StackedTransformer Config."""
  return _as_list(stacked_tpl.transformer_layer_params_tpl)


def layers_of(stacked_tpl: LayerTpl, first: int, end: int) -> LayerTpl:
  """Returns a StackedTransformer Config with the layers `first` to `end` - 1.

  Args:
    stacked_tpl: Config of a StackedTransformer without n-grammers.
    first: index of the first layer.
    end: index after the last layer.

  Raises:
    ValueError: one of them attends to the keys of a layer that is not.
  """
  part = stacked_tpl.clone().set(num_layers=end - first)
  templates = layer_templates(stacked_tpl)
  if len(templates) > 1:
    of_each = stacked_tpl.num_layers // len(templates)
    part.transformer_layer_params_tpl = [
      templates[i // of_each] for i in range(first, end)
    ]
  windows = stacked_tpl.local_window_size
  if windows is not None and not isinstance(windows[0], int):
    part.local_window_size = windows[first:end]
  if stacked_tpl.key_sources is not None:
    sources = stacked_tpl.key_sources[first:end]
    if any(x is not None and x < first for x in sources):
      raise ValueError(
        f'key_sources of the layers {first} to {end - 1} must be among them,'
        f' got {sources}; use all layers of the stack'
      )
    part.key_sources = [None if x is None else x - first for x in sources]
  part.moe_layers = [
    i - first for i in stacked_tpl.moe_layers or () if first <= i < end
  ]
  return part


def last_layer(stack_tpl: LayerTpl) -> LayerTpl:
  """Returns a StackedTransformer Config with the last layer of a stack.

  The last layer of a scan, or of a pipeline, is rematerialized.

  Args:
    stack_tpl: Config of a plain, repeated or pipelined stack.
  """
  *_, stacked = stacked_transformers(stack_tpl)
  last = layers_of(stacked, stacked.num_layers - 1, stacked.num_layers)
  last.ngrammer_tpls = None
  if stacked is not stack_tpl:
    last.set(remat=True, checkpoint_policy=stack_tpl.checkpoint_policy)
  return last


def has_field(template: pax_fiddle.Config, name: str) -> bool:
  """Returns whether the template's class has a field of this name."""
  return any(f.name == name for f in pax_fiddle.fields_of(template.cls))


def set_fp8_einsums(stack_tpl: LayerTpl, scaling: str) -> None:
  """Computes the products with weights within a stack's Config in fp8.

  These are projections of attention, feed-forward layers and experts.

  Args:
    stack_tpl: Config of a plain, repeated or pipelined stack; changed.
    scaling: 'delayed' or 'current'.
  """
  for stacked in stacked_transformers(stack_tpl):
    for layer in layer_templates(stacked):
      fp8_templates.set_fp8_einsums(layer, scaling)
    if stacked.num_experts:
      fp8_templates.set_fp8_einsums(stacked.moe_layer_tpl, scaling)


def may_use_kernels(stack_tpl: LayerTpl, length: int) -> bool:
  """Returns whether self-attention of a stack may run as a fused kernel.

  Its layers then take segments instead of the array of a mask.

  Args:
    stack_tpl: Config of a plain, repeated or pipelined stack.
    length: of the sequences.
  """
  layers = [
    layer
    for stacked_tpl in stacked_transformers(stack_tpl)
    for layer in layer_templates(stacked_tpl)
  ]
  return all(_may_use_kernel(layer, length) for layer in layers)


def _may_use_kernel(layer: LayerTpl, length: int) -> bool:
  if layer.cls.__call__ is not transformer.Transformer.__call__:
    return False
  attention = layer.tr_atten_tpl
  if getattr(attention.cls, 'takes_segments', False):
    return True
  return getattr(
    attention.cls, 'has_kernel', False
  ) and kernel_choice.may_use_kernel(attention.atten_implementation, length)


def for_model(
  stack_tpl: LayerTpl,
  model_dims: int,
  ngrammer_tpls: Sequence[LayerTpl | None] | None = None,
  **fields: Any,
) -> LayerTpl:
  """Returns a copy of a stack's Config with the model's dimension.

  Args:
    stack_tpl: Config of a plain, repeated or pipelined stack.
    model_dims: model dimension.
    ngrammer_tpls: n-grammers of the layers, one or None per layer.
    **fields: further fields of each StackedTransformer.

  Raises:
    ValueError: the stack has another model dimension.
  """
  stack_tpl = stack_tpl.clone()
  for stacked in stacked_transformers(stack_tpl):
    check_dims('model_dims of the stack', stacked.model_dims, model_dims)
    stacked.set(model_dims=model_dims, **fields)
    if ngrammer_tpls is not None:
      stacked.ngrammer_tpls = ngrammer_tpls
  return stack_tpl


def check_dims(name: str, dims: int, model_dims: int) -> None:
  """Checks that `dims` is unset (0) or the model's.

  Raises:
    ValueError: it is not.
  """
  if dims not in (0, model_dims):
    raise ValueError(
      f"{name} must be 0 or {model_dims} like the model's, got {dims}"
    )


def _as_list(value: Any) -> list[Any]:
  return list(value) if isinstance(value, list | tuple) else [value]
