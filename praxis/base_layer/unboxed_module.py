# SPDX-License-Identifier: Apache-2.0
"""The base flax module: `init` and `apply` on unboxed arrays, abstract init."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import flax.linen as nn
import jax
import numpy as np
from flax.core.scope import CollectionFilter

from praxis.base_layer import weight_params
from praxis.base_layer.jax_context import JaxContext
from praxis.base_layer.variable_collections import (
  DEFAULT_INIT_MUTABLE_LIST,
  HYPER_PARAMS,
  NON_PAX_RNG_KEY,
  PARAMS,
  PARAMS_AXES,
  RANDOM,
  SUMMARIES,
  WrappedHParams,
)
from praxis.base_layer.weight_params import WeightHParams
from praxis.pytypes import JTensor, Nested, PRNGKey

_TreeT = TypeVar('_TreeT')


class UnboxedModule(nn.Module):
  """A flax module whose callers see arrays instead of `BoxedParam`s."""

  @nn.nowrap
  def init(
    self,
    rngs: PRNGKey | dict[str, PRNGKey],
    *args: Any,
    method: Callable[..., Any] | str | None = None,
    mutable: CollectionFilter | None = None,
    **kwargs: Any,
  ) -> dict[str, Nested[JTensor]]:
    """Returns the initial variables by collection, as arrays."""
    variables = self._init_boxed(
      _rng_streams(rngs), *args, method=method, mutable=mutable, **kwargs
    )
    return weight_params.maybe_unbox_value(variables)

  @nn.nowrap
  def apply(
    self,
    variables: Mapping[str, Any],
    *args: Any,
    rngs: PRNGKey | dict[str, PRNGKey] | None = None,
    method: Callable[..., Any] | str | None = None,
    mutable: CollectionFilter = False,
    **kwargs: Any,
  ) -> Any:
    """Returns the outputs, with the updated collections if any is mutable.

    Summaries in `variables`, those of an earlier call, are ignored.
    """
    outputs = super().apply(
      {name: tree for name, tree in variables.items() if name != SUMMARIES},
      *args,
      rngs=None if rngs is None else _rng_streams(rngs),
      method=method,
      mutable=mutable,
      **kwargs,
    )
    if mutable is False or not isinstance(outputs, tuple):
      return outputs
    return outputs[0], weight_params.maybe_unbox_value(outputs[1])

  @nn.nowrap
  def get_variable(self, col: str, name: str, default: Any = None) -> Any:
    """Returns a variable by collection and name, unboxed."""
    return weight_params.maybe_unbox_value(
      super().get_variable(col, name, default)
    )

  @nn.nowrap
  def abstract_init_with_metadata(
    self,
    *args: Any,
    do_eval: bool = False,
    method: Callable[..., Any] | str | None = None,
    extra_mutable_list: Sequence[str] | None = None,
    capture_intermediates: bool | Callable[..., bool] = False,
    **kwargs: Any,
  ) -> dict[str, Nested[WeightHParams]]:
    """Returns the declarations of all variables without computing anything.

    Args:
      *args: arguments of the layer: arrays or ShapeDtypeStructs. float32 ones
        become bfloat16 if that is the layer's fprop_dtype.
      do_eval: whether to trace the layer in evaluation mode.
      method: the method to trace; None: `__call__`.
      extra_mutable_list: further collections to return.
      capture_intermediates: as in `flax.linen.Module.apply`.
      **kwargs: keyword arguments of the layer.
    """
    variables = self._abstract_init(
      JaxContext.HParams(do_eval=do_eval, summary_verbosity=0),
      args,
      kwargs,
      method=method,
      mutable=[*DEFAULT_INIT_MUTABLE_LIST, *(extra_mutable_list or ())],
      capture_intermediates=capture_intermediates,
    )
    # Wrapped flax modules put axis names there, not arrays.
    variables.pop(PARAMS_AXES, None)
    return weight_params.unbox_meta(variables)

  @nn.nowrap
  def abstract_init_with_mdl_config(
    self,
    *args: Any,
    do_eval: bool = False,
    method: Callable[..., Any] | str | None = None,
    extra_mutable_list: Sequence[str] | None = None,
    capture_intermediates: bool | Callable[..., bool] = False,
    **kwargs: Any,
  ) -> Nested[Any]:
    """Returns a tree of the layers' Configs, each under the key `_hparams`.

    Fields with sub-layers are None; the sub-layers have their own entries in
    the tree. The arguments are those of `abstract_init_with_metadata`.
    """
    extra = (HYPER_PARAMS, *(extra_mutable_list or ()))
    variables = self._abstract_init(
      JaxContext.HParams(
        do_eval=do_eval, summary_verbosity=0, self_reflect_configs=True
      ),
      args,
      kwargs,
      method=method,
      mutable=[*DEFAULT_INIT_MUTABLE_LIST, *extra],
      capture_intermediates=capture_intermediates,
    )
    is_leaf = lambda x: isinstance(x, WrappedHParams)
    return jax.tree.map(
      lambda x: x.meta, variables[HYPER_PARAMS], is_leaf=is_leaf
    )

  @nn.nowrap
  def _cast_inputs(self, inputs: _TreeT) -> _TreeT:
    """Casts the inputs of an abstract init as the train step casts a batch."""
    return inputs

  @nn.nowrap
  def _init_boxed(
    self,
    rngs: dict[str, PRNGKey],
    *args: Any,
    method: Callable[..., Any] | str | None,
    mutable: CollectionFilter | None,
    **kwargs: Any,
  ) -> Mapping[str, Any]:
    mutable = DEFAULT_INIT_MUTABLE_LIST if mutable is None else mutable
    return super().init(rngs, *args, method=method, mutable=mutable, **kwargs)

  @nn.nowrap
  def _abstract_init(
    self,
    context: JaxContext.HParams,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    **options: Any,
  ) -> dict[str, Any]:
    inputs = jax.tree.map(_canonical, (args, kwargs))
    args, kwargs = self._cast_inputs(inputs)
    rngs = jax.eval_shape(lambda: _rng_streams(jax.random.key(0)))

    def init(rngs: Any, args: Any, kwargs: Any) -> Any:
      with JaxContext.new_context(hparams=context):
        return self._init_boxed(rngs, *args, **options, **kwargs)

    return jax.eval_shape(init, rngs, args, kwargs)


def _rng_streams(rngs: PRNGKey | dict[str, PRNGKey]) -> dict[str, PRNGKey]:
  """Returns one key per stream.

  A single key is that of PARAMS, as in Flax; the other streams, which Flax does
  not have, get keys split from it.
  """
  if isinstance(rngs, dict):
    return rngs
  _, random, other = jax.random.split(rngs, 3)
  return {PARAMS: rngs, RANDOM: random, NON_PAX_RNG_KEY: other}


def _canonical(x: Any) -> Any:
  """Returns the shape and dtype that an array of a host has on a device."""
  if not isinstance(x, jax.ShapeDtypeStruct):
    return x
  if not isinstance(x.dtype, np.dtype):  # A random key.
    return x
  dtype = jax.dtypes.canonicalize_dtype(x.dtype)
  return x if dtype == x.dtype else jax.ShapeDtypeStruct(x.shape, dtype)
