# SPDX-License-Identifier: Apache-2.0
"""Parameter count of a model from the variables that its layers declare.

Tracing a forward pass gives the same number, but takes several times as long.
Here only `setup` of the layers runs, once for equal configurations.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable
from typing import Any, TypeGuard

import fiddle as fdl
import flax.linen as nn
import jax

from praxis import base_layer, pax_fiddle
from praxis.layers import activations, base_ops, flax_adapter, pipeline, repeats
from praxis.pytypes import NestedMap

Config = pax_fiddle.Config

# Fields without influence on the shapes of variables.
_IGNORED_FIELDS = frozenset({
  'activation_split_dims_mapping', 'contiguous_submeshes', 'dcn_mesh_shape',
  'dtype', 'fprop_dtype', 'ici_mesh_shape', 'mesh_axis_names', 'name',
  'params_init', 'parent', 'skip_lp_regularization',
  'weight_split_dims_mapping',
})  # fmt: skip
# Packages whose layers create all variables in `setup` and use all children.
_PACKAGES = ('praxis.', 'pax.')
# Their variables come from a flax module, which creates them in the call.
_FLAX_ADAPTERS = (
  flax_adapter.DirectFlaxModuleAdapter,
  flax_adapter.FlaxModuleAdapterBase,
)
# Layers that others hold as instances.
_WITHOUT_VARIABLES = (
  activations.BaseActivation,
  base_ops.ArrayLookup,
  base_ops.EinsumOp,
)


class UndeclaredVariablesError(Exception):
  """Layers of the model may create variables outside of `setup`."""


class ParameterCounter:
  """Counts trainable parameters; remembers the counts of layers it has seen."""

  def __init__(self) -> None:
    self._counts: dict[Hashable, int] = {}

  def count(
    self, model: Config[Any], input_spec: Callable[[], NestedMap]
  ) -> int:
    """Returns the number of trainable parameters; nothing is allocated.

    Args:
      model: the configuration of the model.
      input_spec: returns shapes of a batch; called only for a model that has
        to be traced: one with layers from outside Pax, flax modules, or layers
        that share weights.
    """
    try:
      return self._count_declared(model)
    except UndeclaredVariablesError:
      return _count_traced(model, input_spec())

  def _count_declared(self, model: Config[Any]) -> int:
    key = _config_key(model)
    if key not in self._counts:
      layer = model.Instantiate()

      def init(rngs: Any) -> None:
        nn.Module.init(layer, rngs, method=visit)

      def visit(bound: nn.Module) -> None:
        self._counts[key] = self._count_layer(bound)

      context = base_layer.JaxContext.HParams(summary_verbosity=0)
      with base_layer.JaxContext.new_context(hparams=context):
        jax.eval_shape(init, jax.eval_shape(_rngs))
    return self._counts[key]

  def _count_layer(self, layer: nn.Module) -> int:
    """The count of a layer that is bound to a scope, with its children."""
    if not _declares_variables(layer):
      raise UndeclaredVariablesError
    key = _layer_key(layer)
    if key not in self._counts:
      layer._try_setup()
      own = sum(
        math.prod(weight.full_shape)
        for weight in layer._weight_hparams.values()
        if not base_layer.var_not_trainable(weight)
      )
      of_children = sum(map(self._count_layer, layer._children.values()))
      self._counts[key] = own + _num_copies(layer) * of_children
    return self._counts[key]


def _count_traced(model: Config[Any], input_spec: NestedMap) -> int:
  variables = model.Instantiate().abstract_init_with_metadata(input_spec)
  weights = jax.tree.leaves(variables[base_layer.PARAMS])
  return sum(math.prod(weight.full_shape) for weight in weights)


def _declares_variables(layer: nn.Module) -> TypeGuard[base_layer.BaseLayer]:
  """Whether `setup` creates the variables of a layer, which are its own."""
  return (
    type(layer).__module__.startswith(_PACKAGES)
    and isinstance(layer, base_layer.BaseLayer)
    and not isinstance(layer, _FLAX_ADAPTERS)
    and layer.shared_weight_layer_id is None
  )


def _num_copies(layer: base_layer.BaseLayer) -> int:
  """How many times the weights of the children exist."""
  if isinstance(layer, repeats.Repeat):
    return layer.x_times
  if isinstance(layer, pipeline.LayerwiseShardablePipelined):
    per_repeat = layer._has_weights_per_repeat()
    return layer.num_stages * (layer._num_repeats() if per_repeat else 1)
  return 1


def _layer_key(layer: base_layer.BaseLayer) -> Hashable:
  names = (field.name for field in dataclasses.fields(layer) if field.init)
  fields = tuple(
    (name, _config_key(getattr(layer, name)))
    for name in names
    if name not in _IGNORED_FIELDS
  )
  return type(layer), fields


def _config_key(value: Any) -> Hashable:
  """A hashable value, equal for values that declare the same variables."""
  if isinstance(value, _WITHOUT_VARIABLES):
    return _layer_key(value)
  if isinstance(value, nn.Module):
    # A layer that is given as an instance may be shared.
    raise UndeclaredVariablesError
  if isinstance(value, fdl.Buildable):
    arguments = fdl.ordered_arguments(value).items()
    return fdl.get_callable(value), _items_key(arguments)
  if isinstance(value, dict):
    return _items_key(value.items())
  if isinstance(value, list | tuple):
    return tuple(map(_config_key, value))
  try:
    hash(value)
  except TypeError:
    return repr(value)
  return value


def _items_key(items: Any) -> tuple[tuple[Any, Hashable], ...]:
  return tuple(
    (name, _config_key(value))
    for name, value in items
    if name not in _IGNORED_FIELDS
  )


def _rngs() -> dict[str, jax.Array]:
  key = jax.random.key(0)
  return {base_layer.PARAMS: key, base_layer.RANDOM: key}
