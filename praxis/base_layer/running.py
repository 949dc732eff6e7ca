# SPDX-License-Identifier: Apache-2.0
"""How layers are run from outside: initial variables, outputs, declarations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from praxis.base_layer import weights
from praxis.base_layer.context import JaxContext
from praxis.base_layer.variables import (
  DEFAULT_INIT_MUTABLE_LIST,
  HYPER_PARAMS,
  NON_PAX_RNG_KEY,
  PARAMS,
  PARAMS_AXES,
  RANDOM,
  WrappedHParams,
)
from praxis.base_layer.weights import WeightHParams
from praxis.pytypes import JTensor, Nested, PRNGKey


class RunnableModule(nn.Module):
  """A flax module that hides the boxes which its weights come in."""

  @nn.nowrap
  def init(
    self,
    rngs: PRNGKey | dict[str, PRNGKey],
    *args: Any,
    method: Callable[..., Any] | str | None = None,
    mutable: Sequence[str] | None = None,
    **kwargs: Any,
  ) -> dict[str, Nested[JTensor]]:
    """Returns the initial variables, by collection, as plain arrays."""
    variables = self._init_boxed(
      _as_rngs(rngs), *args, method=method, mutable=mutable, **kwargs
    )
    return weights.maybe_unbox_value(variables)

  @nn.nowrap
  def apply(
    self,
    variables: dict[str, Any],
    *args: Any,
    rngs: PRNGKey | dict[str, PRNGKey] | None = None,
    method: Callable[..., Any] | str | None = None,
    mutable: bool | str | Sequence[str] = False,
    **kwargs: Any,
  ) -> Any:
    """Returns the outputs, with the updated collections if any is mutable."""
    outputs = super().apply(
      variables,
      *args,
      rngs=None if rngs is None else _as_rngs(rngs),
      method=method,
      mutable=mutable,
      **kwargs,
    )
    if mutable is False or not isinstance(outputs, tuple):
      return outputs
    return outputs[0], weights.maybe_unbox_value(outputs[1])

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
    """Returns the declarations of all variables; nothing is computed.

    `args` are arrays or jax.ShapeDtypeStructs; float32 is taken for bfloat16
    where that is the layer's fprop_dtype.
    """
    variables = self._abstract_init(
      JaxContext.HParams(do_eval=do_eval, summary_verbosity=0),
      args,
      kwargs,
      method=method,
      mutable=[*DEFAULT_INIT_MUTABLE_LIST, *(extra_mutable_list or ())],
      capture_intermediates=capture_intermediates,
    )
    # The names of axes, which wrapped flax modules declare, are no variables.
    variables.pop(PARAMS_AXES, None)
    return weights.unbox_meta(variables)

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
    """Returns a tree of the layers' Configs, each under key `_hparams`.

    They hold what the layers were built with; fields of sub-layers are None,
    since those stand at their own place in the tree.
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
  def _init_boxed(
    self,
    rngs: dict[str, PRNGKey],
    *args: Any,
    method: Callable[..., Any] | str | None,
    mutable: Sequence[str] | None,
    **kwargs: Any,
  ) -> dict[str, Any]:
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
    if jnp.dtype(self.fprop_dtype) == jnp.bfloat16:
      # As the training step casts its input.
      args, kwargs = jax.tree.map(_in_bfloat16, (args, kwargs))
    rngs = jax.eval_shape(lambda: _as_rngs(jax.random.key(0)))

    def init(rngs: Any, args: Any, kwargs: Any) -> Any:
      with JaxContext.new_context(hparams=context):
        return self._init_boxed(rngs, *args, **options, **kwargs)

    return jax.eval_shape(init, rngs, args, kwargs)


def _as_rngs(rngs: PRNGKey | dict[str, PRNGKey]) -> dict[str, PRNGKey]:
  """Returns one key a stream, split from a single one if need be."""
  if isinstance(rngs, dict):
    return rngs
  names = (PARAMS, RANDOM, NON_PAX_RNG_KEY)
  return dict(zip(names, jax.random.split(rngs, len(names)), strict=True))


def _in_bfloat16(x: Any) -> Any:
  """Returns the shape of a float32 array in bfloat16, others as they are."""
  if getattr(x, 'dtype', None) != jnp.float32:
    return x
  return jax.ShapeDtypeStruct(x.shape, jnp.bfloat16)
