# SPDX-License-Identifier: Apache-2.0
"""Modules of flax as layers of Pax.

The other direction needs no adapter: a Pax layer is a flax module. Its weights
come in boxes from the `init` of a plain flax module; `flax.linen.unbox` opens
them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
from flax.linen import partitioning

from praxis import base_layer, flax_utils, pax_fiddle
from praxis.pytypes import LogicalAxisRules


class _FlaxAdapter(base_layer.BaseLayer):
  """A layer around a flax module, its attribute `cld`."""

  # (logical axis, mesh axis) pairs: where the module names axes of weights and
  # activations, they are split so.
  logical_axes_rules: LogicalAxisRules | None = None
  # Flags of WeightHParamsCollection, by the collection of the module.
  var_collection_map: Mapping[str, Sequence[str]] = pax_fiddle.field(
    default_factory=dict
  )

  def setup(self) -> None:
    if not isinstance(self.cld, nn.Module):
      raise TypeError(
        f'cld of {type(self).__name__} must be a flax nn.Module, got '
        f'{type(self.cld).__name__}'
      )

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    """Returns what the module returns."""
    return self._call_module('__call__', *args, **kwargs)

  def _call_module(self, method: str, *args: Any, **kwargs: Any) -> Any:
    unbound = getattr(type(self.cld), method, None)
    if unbound is None:
      raise ValueError(
        f'{type(self.cld).__name__} has no method {method!r} for '
        f'{type(self).__name__} to call'
      )

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
      with partitioning.axis_rules(self.logical_axes_rules or ()):
        return unbound(module, *args, **kwargs)

    if self.is_initializing():
      # The variables that the module makes leave it in boxes.
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
    return call(self.cld, *args, **kwargs)


class DirectFlaxModuleAdapter(_FlaxAdapter):
  """A flax module, given by its Config, as a layer."""

  cld: nn.Module | None = pax_fiddle.instance_field(None)


class FlaxModuleAdapterBase(_FlaxAdapter):
  """A flax module that subclasses build, as a layer."""

  def setup(self) -> None:
    self.cld = self._build_wrapped_module()
    super().setup()

  def _build_wrapped_module(self) -> nn.Module:
    """Returns the module, without a parent or made here."""
    raise NotImplementedError(
      f'{type(self).__name__} must define _build_wrapped_module'
    )


class FlaxModuleAdapter(FlaxModuleAdapterBase):
  """A flax module that a function makes, as a layer."""

  # Makes the module.
  module_factory_method: Callable[[], nn.Module] | None = None

  def _build_wrapped_module(self) -> nn.Module:
    if self.module_factory_method is None:
      raise ValueError(
        f'module_factory_method of {type(self).__name__} must be set: a '
        'function that makes the flax module'
      )
    return self.module_factory_method()


class EncoderDecoderFlaxModuleAdaptor(FlaxModuleAdapter):
  """A flax module with methods encode, decode and compute_logits."""

  def encode(self, *args: Any, **kwargs: Any) -> Any:
    """Returns what the module's `encode` returns."""
    return self._call_module('encode', *args, **kwargs)

  def decode(self, *args: Any, **kwargs: Any) -> Any:
    """Returns what the module's `decode` returns."""
    return self._call_module('decode', *args, **kwargs)

  def compute_logits(self, *args: Any, **kwargs: Any) -> Any:
    """Returns what the module's `compute_logits` returns."""
    return self._call_module('compute_logits', *args, **kwargs)
