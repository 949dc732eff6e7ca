# SPDX-License-Identifier: Apache-2.0
"""Makes any layer tell the norm of each example's gradient."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from pax.ghostnorm import base, embedding, linears
from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers import (
  attentions,
  embedding_softmax,
  normalizations,
  transformers,
)
from praxis.layers import linears as praxis_linears

Config = pax_fiddle.Config
LayerTpl = Config[base_layer.BaseLayer]
Nested = pytypes.Nested
PARAMS = base_layer.PARAMS
LAYER = 'ghostnorm_wrapped_layer'

# Layers that have a variant of their own.
_REPLACEMENTS: Mapping[type, type] = {
  embedding_softmax.Embedding: embedding.EmbeddingGhostNorm,
  praxis_linears.Linear: linears.LinearGhostNorm,
  praxis_linears.Bias: linears.BiasGhostNorm,
}

# Layers that are small enough to make the gradient of each example.
_WRAPPED = (
  attentions.AttentionProjection,
  attentions.CausalDepthwiseConv1D,
  attentions.CombinedQKVProjectionLayer,
  attentions.PerDimScale,
  embedding_softmax.Embedding,
  normalizations.GroupNorm,
  normalizations.LayerNorm,
  normalizations.RmsNorm,
  transformers.TransformerFeedForwardMoe,
)


class WrappedGhostNorm(base_layer.BaseLayer):
  """A layer for ghost norm clipping, by the gradients of single examples.

  These exist one layer at a time. All inputs have the examples first; the layer
  may neither draw random numbers nor write variables.
  """

  # The layer; required.
  layer_tpl: LayerTpl | None = pax_fiddle.template_field(None)

  def setup(self) -> None:
    self.create_child(LAYER, self.layer_tpl.clone())

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    return self._run('__call__', *args, **kwargs)

  def emb_lookup(self, *args: Any, **kwargs: Any) -> Any:
    """Returns what the layer's own `emb_lookup` does."""
    return self._run('emb_lookup', *args, **kwargs)

  def _run(self, method: str, *args: Any, **kwargs: Any) -> Any:
    layer = getattr(self, LAYER)
    bound = getattr(layer, method)
    if PARAMS not in self.variables or self.is_initializing():
      return bound(*args, **kwargs)
    rest = {
      name: group[LAYER]
      for name, group in self.variables.items()
      if name != PARAMS and LAYER in group
    }

    def run(params: Nested[Any], *inputs: Any) -> Any:
      return layer.apply({**rest, PARAMS: params}, *inputs, method=method)

    call = base.with_norms(run, functools.partial(_squares, run))
    inputs = inspect.signature(bound).bind(*args, **kwargs).args
    return call(self.variables[PARAMS][LAYER], *inputs)


class GhostNormPaxConfig(Config):
  """The Config of a layer, which builds the layer wrapped.

  Its fields are still the layer's own, for owners that set them.
  """

  def __build__(self, **kwargs: Any) -> WrappedGhostNorm:
    flax_fields = {
      name: kwargs.pop(name) for name in ('parent', 'name') if name in kwargs
    }
    layer_tpl = self.to_pax_config().set(**kwargs)
    return WrappedGhostNorm(layer_tpl=layer_tpl, **flax_fields)

  @staticmethod
  def from_pax_config(pax_config: LayerTpl) -> GhostNormPaxConfig:
    """Returns the Config that builds the layer wrapped."""
    return GhostNormPaxConfig.__unflatten__(*pax_config.__flatten__())

  def to_pax_config(self) -> LayerTpl:
    """Returns the Config of the layer itself."""
    return Config.__unflatten__(*self.__flatten__())


def generate_wrapped_template(
  model_or_layer_p: Config,
  force_no_replace: bool = False,
  force_wrap: bool = False,
) -> Config:
  """Returns the Config with layers in it for ghost norm clipping.

  Layers with a variant of their own become that, unless `force_no_replace`, and
  others that are known to allow it are wrapped; `force_wrap` wraps the
  outermost whatever it is. What is neither is searched for layers. Weights must
  not be shared between layers.
  """
  cls = model_or_layer_p.cls
  if cls in _REPLACEMENTS and not force_no_replace:
    model_or_layer_p.cls = _REPLACEMENTS[cls]
    return model_or_layer_p
  if force_wrap or (isinstance(cls, type) and issubclass(cls, _WRAPPED)):
    return GhostNormPaxConfig.from_pax_config(model_or_layer_p)
  for name, value in dict(model_or_layer_p.__arguments__).items():
    setattr(model_or_layer_p, name, _converted(value))
  return model_or_layer_p


def _converted(value: Any) -> Any:
  """Returns a field's value, the layers in it converted."""
  if isinstance(value, Config):
    cls = value.cls
    if isinstance(cls, type) and issubclass(cls, base_layer.BaseLayer):
      return generate_wrapped_template(value)
    return value
  if isinstance(value, list | tuple) and not hasattr(value, '_fields'):
    return type(value)(_converted(x) for x in value)
  if isinstance(value, dict):
    return type(value)({key: _converted(x) for key, x in value.items()})
  return value


def _squares(
  run: Any, params: Nested[Any], inputs: tuple[Any, ...], g: Any
) -> Nested[Any]:
  """Returns the squared norms, from the gradient of each example."""

  def one(g: Any, *inputs: Any) -> Nested[Any]:
    g, inputs = jax.tree.map(lambda x: x[None], (g, inputs))
    grads = jax.vjp(lambda w: run(w, *inputs), params)[1](g)[0]
    return jax.tree.map(
      lambda x: jnp.sum(jnp.square(x.astype(jnp.float32))), grads
    )

  return jax.vmap(one)(g, *inputs)
