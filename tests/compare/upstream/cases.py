# SPDX-License-Identifier: Apache-2.0
"""Cases of the comparison with upstream: layers and functions.

Upstream's interpreter and ours import this module and the modules of
`families` unchanged, so they use public names of praxis and paxml only.
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

# Variants of a layer case. Each one is a compared case.
VARIABLES = 'variables'  # Declared variables, no mesh.
MESH = 'mesh'  # Declared variables and partition specs on a mesh.
TRAIN = 'train'  # Outputs, collections and gradients, do_eval=False.
EVAL = 'eval'  # Outputs and collections, do_eval=True.
BFLOAT16 = 'bfloat16'  # Outputs with fprop_dtype=bfloat16.
ALL_VARIANTS = (VARIABLES, MESH, TRAIN, EVAL, BFLOAT16)
FORWARD_ONLY = (VARIABLES, MESH, EVAL, BFLOAT16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerCase:
  """A layer applied to fixed inputs with upstream's initial variables."""

  name: str
  # Returns the layer's Config. Called per variant, since variants edit it.
  config: Callable[[], Any]
  args: tuple[Any, ...] = ()
  kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  # Name of a method, or a function of (layer, *args, **kwargs).
  method: str | Callable[..., Any] = '__call__'
  # The method that creates the variables, where `method` cannot.
  init_method: str | Callable[..., Any] | None = None
  init_args: tuple[Any, ...] | None = None
  variants: tuple[str, ...] = ALL_VARIANTS
  # Relative to the largest absolute value of an array.
  tolerance: float = 1e-6
  # Added to each variable: scale of the noise.
  noise: float = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class FunctionCase:
  """A function without arguments; its result or error is compared."""

  name: str
  function: Callable[[], Any]
  tolerance: float = 1e-6
  # Both messages must contain a match, where the function raises.
  match: str | None = None


Case = LayerCase | FunctionCase


def floats(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
  """Returns normally distributed float32 values."""
  rng = np.random.default_rng([seed, *shape])
  return (scale * rng.standard_normal(shape)).astype(np.float32)


def integers(*shape: int, high: int, seed: int = 0) -> np.ndarray:
  """Returns int32 values in [0, high)."""
  rng = np.random.default_rng([seed, high, *shape])
  return rng.integers(0, high, shape, dtype=np.int32)


def paddings(lengths: Sequence[int], width: int) -> np.ndarray:
  """Returns [len(lengths), width] float32: 1 from each row's length on."""
  return (np.arange(width) >= np.asarray(lengths)[:, None]).astype(np.float32)


def layer(
  name: str,
  cls: Any,
  *args: Any,
  fields: Mapping[str, Any] | None = None,
  weight_splits: Mapping[str, Any] | None = None,
  activation_splits: Mapping[str, Any] | None = None,
  **options: Any,
) -> LayerCase:
  """Returns a case of `cls` configured with `fields`.

  Args:
    name: The case's name within its family.
    cls: A layer class.
    *args: Positional arguments of the layer's method.
    fields: Fields of the Config; a dotted name is a field of a child Config.
      `Lazy` values are made anew for each Config.
    weight_splits: Entries of `weight_split_dims_mapping`.
    activation_splits: Entries of `activation_split_dims_mapping`.
    **options: Fields of LayerCase.
  """
  from praxis import pax_fiddle

  def config() -> Any:
    cfg = pax_fiddle.Config(cls)
    _assign(cfg, fields or {})
    for key, value in (weight_splits or {}).items():
      setattr(cfg.weight_split_dims_mapping, key, value)
    for key, value in (activation_splits or {}).items():
      setattr(cfg.activation_split_dims_mapping, key, value)
    return cfg

  return LayerCase(name=name, config=config, args=args, **options)


def function(
  name: str,
  function: Callable[..., Any],
  *args: Any,
  tolerance: float = 2e-6,
  **kwargs: Any,
) -> FunctionCase:
  """Returns a case of a function; numpy arguments become JAX arrays.

  Args:
    name: The case's name within its family.
    function: Called with the other arguments.
    *args: Positional arguments.
    tolerance: Relative to the largest absolute value of an array.
    **kwargs: Keyword arguments.
  """

  def run() -> Any:
    import jax

    to_jax = lambda x: jax.numpy.asarray(x) if isinstance(x, np.ndarray) else x
    arrays = [to_jax(x) for x in args]
    return function(*arrays, **{k: to_jax(v) for k, v in kwargs.items()})

  return FunctionCase(name=name, function=run, tolerance=tolerance)


def vary(
  name: str,
  cls: Any,
  *args: Any,
  fields: Mapping[str, Any] | None = None,
  options: Mapping[str, Sequence[Any]],
  product: bool = False,
  **rest: Any,
) -> Iterator[LayerCase]:
  """Yields the layer with `fields` and with each option changed.

  Args:
    name: Prefix of the cases' names.
    cls: A layer class.
    *args: Positional arguments of the layer's method.
    fields: Fields of every case.
    options: Values by field; one field at a time takes each of its values.
    product: Whether to take the product of all options instead.
    **rest: Further arguments of `layer`.
  """
  if product:
    settings = [
      dict(zip(options, values, strict=True))
      for values in itertools.product(*options.values())
    ]
  else:
    alone = [{key: v} for key, values in options.items() for v in values]
    settings = [{}, *alone]
  for setting in settings:
    label = ', '.join(f'{k}={_label(v)}' for k, v in setting.items())
    yield layer(
      f'{name}, {label}' if label else name,
      cls,
      *args,
      fields={**(fields or {}), **setting},
      **rest,
    )


def _label(value: Any) -> str:
  if isinstance(value, Lazy):
    return value.label
  return getattr(value, '__name__', None) or str(value)


def _assign(cfg: Any, fields: Mapping[str, Any]) -> None:
  """Sets fields, dotted names within child Configs, in the given order."""
  for path, value in fields.items():
    *parents, key = path.split('.')
    owner = cfg
    for parent in parents:
      owner = getattr(owner, parent)
    setattr(owner, key, value() if isinstance(value, Lazy) else value)


@dataclasses.dataclass(frozen=True)
class Lazy:
  """A value made anew for each Config."""

  function: Callable[[], Any]
  label: str = 'template'

  def __call__(self) -> Any:
    return self.function()


def template(cls: Any, **fields: Any) -> Lazy:
  """Returns a Config of `cls` that is made anew for each use."""
  from praxis import pax_fiddle

  def make() -> Any:
    cfg = pax_fiddle.Config(cls)
    _assign(cfg, fields)
    return cfg

  label = ' '.join(f'{k}={_label(v)}' for k, v in fields.items())
  return Lazy(make, f'{cls.__name__}({label})')


def seed_of(text: str) -> int:
  """Returns a seed that depends on the text only, in every process."""
  return zlib.crc32(text.encode())
