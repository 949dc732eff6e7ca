# SPDX-License-Identifier: Apache-2.0
"""Functions that configure chains, and small layers for chains.

mlp = chain(
  feed_forward(8, 16, activations.Swish.config()),
  copy_n_times(3, feed_forward(16, 16)),
  add_residual(feed_forward(16, 16)),
)
"""

from __future__ import annotations

import collections
import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Shaped

from praxis import base_layer, py_utils
from praxis.alias_names import module_getattr
from praxis.layers import activations, linears, repeats
from praxis.layers.chain.chain import Chain, ensure_tuple
from praxis.pax_fiddle import Config

__getattr__ = module_getattr(__name__)

LayerTpl = Config[base_layer.BaseLayer]
_log = logging.getLogger(__name__)


def chain(*layers_tpl: LayerTpl | None, **kwargs: Any) -> Config[Chain]:
  """Returns the Config of a Chain; layers of equal names are numbered."""
  layers = _with_unique_names(layers_tpl)
  return Config(Chain, layers=layers, **kwargs_with_name('chain', **kwargs))


def copy_n_times(
  num_times: int, *layers_tpl: LayerTpl, **kwargs: Any
) -> Config[Chain]:
  """Returns a Chain of copies of the layers; `repeat` compiles faster."""
  copies = [copy.deepcopy(layer) for layer in layers_tpl * num_times]
  return chain(*copies, **kwargs_with_name('chain_copy_n_times', **kwargs))


def repeat(
  x_times: int, *layers_tpl: LayerTpl, **kwargs: Any
) -> Config[repeats.Repeat]:
  """Returns a scan of `x_times` chains of the layers, with stacked weights."""
  fields = kwargs_with_name('chain_repeat', **kwargs)
  # The stack of arguments is the carry of the scan.
  fields['positional_args_as_scan_carry'] = True
  return Config(
    repeats.Repeat, sub_tpl=chain(*layers_tpl), x_times=x_times, **fields
  )


class ApplyPadding(base_layer.BaseLayer):
  """Sets inputs to 0 where `paddings`, [B, T] or [B, T, 1], is 1."""

  # The dimension of the inputs that the first dimension of paddings matches.
  axis: int = 0

  def __call__(
    self, inputs: Shaped[Array, '...'], paddings: Shaped[Array, '...']
  ) -> Shaped[Array, '...']:
    return py_utils.apply_padding(inputs, paddings, axis=self.axis)


def apply_padding(**kwargs: Any) -> Config[ApplyPadding]:
  """Returns the Config of an ApplyPadding."""
  return Config(ApplyPadding, **kwargs_with_name('pad', **kwargs))


class AddResidual(Chain):
  """A Chain with a residual connection around its first argument."""

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    """Returns the stack of the chain, the first argument added to its top."""
    first, *rest = ensure_tuple(super().__call__(*args, **kwargs))
    return (first + args[0], *rest) if rest else first + args[0]


def add_residual(*layers: LayerTpl, **kwargs: Any) -> Config[AddResidual]:
  """Returns the Config of an AddResidual around a chain of the layers."""
  return Config(
    AddResidual,
    layers=_with_unique_names(layers),
    **kwargs_with_name('add_residual', **kwargs),
  )


class DictToArgs(base_layer.BaseLayer):
  """Returns values of a dict as a tuple, for the next layers of a chain."""

  # The keys of the values, in order.
  keys: Sequence[str] = ()

  def __call__(self, input_batch: Mapping[str, Any]) -> Any:
    """Returns a tuple of the values, or the only value.

    Raises:
      ValueError: a key is missing or its value is None.
    """
    missing = [k for k in self.keys if input_batch.get(k) is None]
    if missing:
      raise ValueError(
        f'Key not found: {missing} of DictToArgs.keys; the batch has '
        f'{sorted(input_batch)}'
      )
    values = tuple(input_batch[k] for k in self.keys)
    return values[0] if len(values) == 1 else values


def dict_to_args(*keys: str, **kwargs: Any) -> Config[DictToArgs]:
  """Returns the Config of a DictToArgs with these keys."""
  return Config(
    DictToArgs, keys=keys, **kwargs_with_name('dict_to_args', **kwargs)
  )


class LogArgs(base_layer.BaseLayer):
  """Logs its arguments and leaves the stack unchanged."""

  # The first line of the log.
  message: str | None = None
  # Whether to log values in addition to shapes.
  log_values: bool = False

  def __call__(self, *args: Any, **kwargs: Any) -> None:
    named = {**{str(i): arg for i, arg in enumerate(args)}, **kwargs}
    lines = [f'  {name}: {self._text(value)}' for name, value in named.items()]
    _log.info('%s', '\n'.join([self.message or 'LogArgs', *lines]))

  def _text(self, value: Any) -> str:
    if not hasattr(value, 'shape'):
      return str(value)
    return f'{value.shape} {value}' if self.log_values else str(value.shape)


def log_args(
  message: str | None = None, log_values: bool = False, **kwargs: Any
) -> Config[LogArgs]:
  """Returns the Config of a LogArgs."""
  return Config(
    LogArgs,
    message=message or '',
    log_values=log_values,
    **kwargs_with_name('log_args', **kwargs),
  )


class FullLike(base_layer.BaseLayer):
  """Returns a constant in the shape and dtype of the input."""

  fill_value: float = 1.0

  def __call__(
    self, inputs: Shaped[Array, '*shape']
  ) -> Shaped[Array, '*shape']:
    return jnp.full_like(inputs, self.fill_value)


def full_like(fill_value: float, **kwargs: Any) -> Config[FullLike]:
  """Returns the Config of a FullLike."""
  return Config(
    FullLike, fill_value=fill_value, **kwargs_with_name('full_like', **kwargs)
  )


def feed_forward(
  input_dims: int,
  output_dims: int,
  activation_tpl: LayerTpl | None = None,
  **kwargs: Any,
) -> Config[linears.FeedForward]:
  """Returns the Config of a FeedForward.

  Args:
    input_dims: size of the input.
    output_dims: size of the output.
    activation_tpl: None: no activation.
    **kwargs: other fields of the layer.
  """
  return Config(
    linears.FeedForward,
    input_dims=input_dims,
    output_dims=output_dims,
    activation_tpl=activation_tpl or Config(activations.Identity),
    **kwargs_with_name('feedforward', **kwargs),
  )


def kwargs_with_name(default_name: str, **kwargs: Any) -> dict[str, Any]:
  """Returns `kwargs` with `default_name` unless they have a name."""
  return {'name': default_name, **kwargs}


def _with_unique_names(layers_tpl: Sequence[LayerTpl | None]) -> list[LayerTpl]:
  """Returns clones with unique names: `x0` and `x1` for two layers `x`."""
  layers = [layer for layer in layers_tpl if layer is not None]
  names = [layer.name or 'layers' for layer in layers]
  next_index: collections.Counter[str] = collections.Counter()
  renamed = []
  for layer, name in zip(layers, names, strict=True):
    suffix = str(next_index[name]) if names.count(name) > 1 else ''
    next_index[name] += 1
    renamed.append(layer.clone().set(name=name + suffix))
  return renamed
