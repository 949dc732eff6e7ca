# SPDX-License-Identifier: Apache-2.0
"""The Configs of stacks of transformer layers, as models change them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from praxis import base_layer, pax_fiddle

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


def stacked_transformers(stacked_tpl: Any) -> Iterator[Any]:
  """Yields the StackedTransformer Configs within a stack's Config.

  A repeated stack holds one as its `block`, a pipelined one as its
  `pipeline_stage`, which may be repeated in turn.
  """
  inner = [n for n in ('pipeline_stage', 'block') if has(stacked_tpl, n)]
  if not inner:
    yield stacked_tpl
  for name in inner:
    for stage in as_list(getattr(stacked_tpl, name)):
      yield from stacked_transformers(stage)


def as_list(value: Any) -> list[Any]:
  """Returns a list of templates for one, or several."""
  return list(value) if isinstance(value, list | tuple) else [value]


def has(template: Any, name: str) -> bool:
  """Returns whether the template's class has a field of this name."""
  return name in field_names(template)


def field_names(template: Any) -> list[str]:
  """Returns the names of the fields of the template's class."""
  return [f.name for f in pax_fiddle.fields_of(template.cls)]


def for_model(
  stacked_tpl: LayerTpl,
  model_dims: int,
  ngrammer_tpls: Any = None,
  **fields: Any,
) -> LayerTpl:
  """Returns a clone of a stack's Config for a model of this size.

  Args:
    stacked_tpl: the stack.
    model_dims: what its own model_dims become.
    ngrammer_tpls: n-grammers of its layers, if the model has any.
    **fields: set on each block.

  Raises:
    ValueError: the stack's model_dims are others.
  """
  stacked = stacked_tpl.clone()
  for block in stacked_transformers(stacked):
    check_dims('model_dims of the stack', block.model_dims, model_dims)
    block.set(model_dims=model_dims, **fields)
    if ngrammer_tpls is not None:
      block.ngrammer_tpls = ngrammer_tpls
  return stacked


def check_dims(name: str, got: int, model_dims: int) -> None:
  """Raises ValueError unless `got` is unset, 0, or the model's."""
  if got not in (0, model_dims):
    raise ValueError(
      f"{name} must be 0 or {model_dims} like the model's, got {got}"
    )
