# SPDX-License-Identifier: Apache-2.0
"""Per-example gradient norms of any layer, and templates that have them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from pax.ghostnorm import base, embedding, linears
from praxis import base_layer, pax_fiddle
from praxis.layers import (
  attentions,
  embedding_softmax,
  normalizations,
  transformers,
)
from praxis.layers import linears as praxis_linears
from praxis.pytypes import Nested

Config = pax_fiddle.Config
LayerTpl = Config[base_layer.BaseLayer]
PARAMS = base_layer.PARAMS
LAYER = 'ghostnorm_wrapped_layer'

# Layers with a specialized implementation of per-example norms.
_REPLACEMENTS: Mapping[type, type] = {
  embedding_softmax.Embedding: embedding.EmbeddingGhostNorm,
  praxis_linears.Linear: linears.LinearGhostNorm,
  praxis_linears.Bias: linears.BiasGhostNorm,
}

# Layers small enough to materialize per-example gradients.
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
  """Computes the norms of a layer from materialized per-example gradients.

  These gradients exist for one layer at a time. All arrays among the arguments
  have a leading example dimension; the layer may neither use random numbers nor
  update variables. Its auxiliary losses, which are no means over examples, are
  left out. With plain parameters it is the layer itself.
  """

  # The layer; required.
  layer_tpl: LayerTpl | None = pax_fiddle.template_field(None)

  def setup(self) -> None:
    """Creates the layer.

    Raises:
      ValueError: `layer_tpl` is not set.
    """
    if self.layer_tpl is None:
      raise ValueError(
        'WrappedGhostNorm.layer_tpl must be the Config of a layer, got None;'
        ' generate_wrapped_template sets it'
      )
    self.create_child(LAYER, self.layer_tpl.clone())

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    return self._run('__call__', *args, **kwargs)

  def emb_lookup(self, *args: Any, **kwargs: Any) -> Any:
    """Returns the layer's `emb_lookup`."""
    return self._run('emb_lookup', *args, **kwargs)

  def _run(self, method: str, *args: Any, **kwargs: Any) -> Any:
    layer = getattr(self, LAYER)
    bound = getattr(layer, method)
    params = self.variables.get(PARAMS, {}).get(LAYER, {})
    if base.get_aux(params) is None:
      return bound(*args, **kwargs)
    other_collections = {
      name: collection[LAYER]
      for name, collection in self.variables.items()
      if name != PARAMS and LAYER in collection
    }

    tree: Any
    leaves, tree = jax.tree.flatten((args, kwargs))
    # Others, such as an axis, have no example dimension.
    is_input = [isinstance(x, jax.Array | np.ndarray) for x in leaves]

    def run(params: Nested[Any], *inputs: Any) -> Any:
      remaining = iter(inputs)
      args, kwargs = tree.unflatten(
        next(remaining) if is_array else x
        for is_array, x in zip(is_input, leaves, strict=True)
      )
      variables = {**other_collections, PARAMS: params}
      outputs, updated = layer.apply(
        variables, *args, method=method, mutable=[base_layer.AUX_LOSS], **kwargs
      )
      if updated:
        logging.log_first_n(
          logging.WARNING,
          'ghost clipping leaves out the auxiliary losses of %s, which are no'
          ' means over examples; DpSgdStochasticGradient has them',
          1,
          type(layer).__name__,
        )
      return outputs

    call = base.with_norms(run, functools.partial(_squared_norms, run))
    return call(params, *itertools.compress(leaves, is_input))


class GhostNormPaxConfig(Config):
  """The Config of a layer that builds the layer in a WrappedGhostNorm.

  Its fields remain those of the layer, for owners that set them.
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
  """Returns the Config with its layers converted for ghost clipping.

  Layers with a specialized implementation are replaced, small layers are
  wrapped, and other layers are searched for layers to convert. Layers must not
  share weights.

  Args:
    model_or_layer_p: The Config; it is modified.
    force_no_replace: Whether to wrap the outermost layer instead of replacing
      it.
    force_wrap: Whether to wrap the outermost layer of any type.
  """
  cls = model_or_layer_p.cls
  if cls in _REPLACEMENTS and not force_no_replace:
    model_or_layer_p.cls = _REPLACEMENTS[cls]
    return model_or_layer_p
  if force_wrap or (isinstance(cls, type) and issubclass(cls, _WRAPPED)):
    return GhostNormPaxConfig.from_pax_config(model_or_layer_p)
  for name, value in dict(model_or_layer_p.__arguments__).items():
    if isinstance(name, str):  # Positional arguments have no name.
      setattr(model_or_layer_p, name, _convert(value))
  return model_or_layer_p


def _convert(value: Any) -> Any:
  """Returns the value of a field with the layers in it converted."""
  if isinstance(value, Config):
    cls = value.cls
    if isinstance(cls, type) and issubclass(cls, base_layer.BaseLayer):
      return generate_wrapped_template(value)
    return value
  if isinstance(value, list | tuple) and not hasattr(value, '_fields'):
    return type(value)(_convert(x) for x in value)
  if isinstance(value, dict):
    return type(value)({key: _convert(x) for key, x in value.items()})
  return value


def _squared_norms(
  run: Callable[..., Any], params: Nested[Any], inputs: tuple[Any, ...], g: Any
) -> Nested[Any]:
  """Returns squared norms, from the gradient of each example."""

  def squared_norms(g: Any, *inputs: Any) -> Nested[Any]:
    g, inputs = jax.tree.map(lambda x: x[None], (g, inputs))
    grads = jax.vjp(lambda w: run(w, *inputs), params)[1](g)[0]
    return jax.tree.map(
      lambda x: jnp.sum(jnp.square(x.astype(jnp.float32))), grads
    )

  return jax.vmap(squared_norms)(g, *inputs)
