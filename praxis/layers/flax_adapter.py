# SPDX-License-Identifier: Apache-2.0
"""Adapters that make flax modules Pax layers.

The other direction needs no adapter, as a Pax layer is a flax module. In the
variables of a plain flax module its weights are boxed; `flax.linen.unbox`
unboxes them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
from flax.linen import partitioning

from praxis import base_layer, flax_utils, pax_fiddle
from praxis.alias_names import module_getattr
from praxis.pytypes import LogicalAxisRules

__getattr__ = module_getattr(__name__)


class _FlaxAdapter(base_layer.BaseLayer):
  """Base of layers around a flax module."""

  # (logical axis, mesh axis) pairs that shard the weights and activations whose
  # axes the module names.
  logical_axes_rules: LogicalAxisRules | None = None
  # Flags of WeightHParamsCollection for each collection of the module.
  var_collection_map: Mapping[str, Sequence[str]] = pax_fiddle.field(
    default_factory=dict
  )

  def setup(self) -> None:
    self._checked_module()

  def _checked_module(self) -> nn.Module:
    module = self._wrapped_module()
    if not isinstance(module, nn.Module):
      raise TypeError(
        f'cld of {type(self).__name__} must be a flax nn.Module, got '
        f'{type(module).__name__}'
      )
    return module

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    """Returns the output of the module."""
    return self.call_method('__call__', *args, **kwargs)

  def _wrapped_module(self) -> nn.Module | None:
    """Returns the flax module, which is a submodule of this layer."""
    raise NotImplementedError(
      f'{type(self).__name__} must define _wrapped_module'
    )

  def call_method(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
    """Returns the output of a method of the module.

    Raises:
      ValueError: the module has no such method.
    """
    wrapped = self._checked_module()
    unbound = getattr(type(wrapped), method_name, None)
    if unbound is None:
      raise ValueError(
        f'{type(wrapped).__name__} has no method {method_name!r} for '
        f'{type(self).__name__} to call'
      )

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
      with partitioning.axis_rules(self.logical_axes_rules or ()):
        return unbound(module, *args, **kwargs)

    if self.is_initializing():
      # Box the variables that the module creates.
      call = nn.map_variables(
        call,
        mapped_collections=True,
        mutable=True,
        trans_in_fn=base_layer.maybe_unbox_value,
        trans_out_fn=functools.partial(
          flax_utils.convert_to_boxed_params,
          logical_axes_rules=self.logical_axes_rules,
          mesh_shape=self.mesh_shape,
          var_collection_map=self.var_collection_map,
        ),
      )
    return call(wrapped, *args, **kwargs)


class DirectFlaxModuleAdapter(_FlaxAdapter):
  """A flax module as a layer; configured by the module's Config."""

  # The module.
  cld: nn.Module | None = pax_fiddle.instance_field(None)

  def _wrapped_module(self) -> nn.Module | None:
    return self.cld


class FlaxModuleAdapterBase(_FlaxAdapter):
  """A flax module as a layer; subclasses build the module."""

  def setup(self) -> None:
    self.cld = self._build_wrapped_module()
    super().setup()

  def _wrapped_module(self) -> nn.Module:
    return self.cld

  def _build_wrapped_module(self) -> nn.Module:
    """Returns the module; its parent is None or this layer."""
    raise NotImplementedError(
      f'{type(self).__name__} must define _build_wrapped_module'
    )


class FlaxModuleAdapter(FlaxModuleAdapterBase):
  """A flax module as a layer; a function builds the module."""

  # Returns the module.
  module_factory_method: Callable[[], nn.Module] | None = None

  def _build_wrapped_module(self) -> nn.Module:
    if self.module_factory_method is None:
      raise ValueError(
        f'module_factory_method of {type(self).__name__} must be set: a '
        'function that returns the flax module'
      )
    return self.module_factory_method()


class EncoderDecoderFlaxModuleAdaptor(FlaxModuleAdapter):
  """A flax module with methods encode, decode and compute_logits."""

  def encode(self, *args: Any, **kwargs: Any) -> Any:
    """Returns the output of the module's `encode`."""
    return self.call_method('encode', *args, **kwargs)

  def decode(self, *args: Any, **kwargs: Any) -> Any:
    """Returns the output of the module's `decode`."""
    return self.call_method('decode', *args, **kwargs)

  def compute_logits(self, *args: Any, **kwargs: Any) -> Any:
    """Returns the output of the module's `compute_logits`."""
    return self.call_method('compute_logits', *args, **kwargs)
