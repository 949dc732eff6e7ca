# SPDX-License-Identifier: Apache-2.0
"""BaseParameterizable: objects that are made from an object of parameters.

    class Cosine(BaseParameterizable):
      _USE_DEPRECATED_HPARAMS_BASE_PARAMETERIZABLE = True

      class HParams(BaseHyperParams):
        total_steps: int = 0

`Cosine.HParams(total_steps=9)` is an object with the field `cls`, which is
Cosine; `Cosine(hparams)` takes it. New code uses FiddleBaseParameterizable.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

import fiddle as fdl

from praxis import pax_fiddle
from praxis.base_hyperparams.hyperparams import (
  BaseHyperParams,
  FiddleHParamsClassStub,
)


class BaseParameterizable:
  """Base class of objects that are made from their `HParams`."""

  class HParams(BaseHyperParams):
    """The parameters of an object."""

    # The class that these parameters configure.
    cls: type[Any]
    name: str = ''

    def Instantiate(self, **kwargs: Any) -> Any:
      """Builds the object; `kwargs` are further arguments of its class."""
      return self.cls(self, **kwargs)

  # The argument of `__init__` that takes the parameters.
  _config_init_name_for_params_object: str = 'hparams'
  # Arguments of `__init__` that a Config does not set.
  _nonconfigurable_init_args: tuple[str, ...] = ()

  def __init__(self, hparams: BaseParameterizable.HParams) -> None:
    self._hparams = hparams.clone()
    self._hparams.freeze()

  def __init_subclass__(
    cls,
    init_params_arg_name: str | None = None,
    nonconfigurable_init_arg_names: tuple[str, ...] | None = None,
    **kwargs: Any,
  ) -> None:
    """Binds `HParams` to the class and gives `make` its arguments.

    Args:
      init_params_arg_name: the argument of `__init__` that takes the
        parameters.
      nonconfigurable_init_arg_names: arguments of `__init__` that a Config does
        not set.
      **kwargs: arguments of other base classes.

    Raises:
      ValueError: the class does not set
        `_USE_DEPRECATED_HPARAMS_BASE_PARAMETERIZABLE`.
      TypeError: `__init__` lacks the argument for the parameters, or has an
        argument of a parameter's name.
    """
    if not hasattr(cls, '_USE_DEPRECATED_HPARAMS_BASE_PARAMETERIZABLE'):
      raise ValueError(
        'New Pax classes should be subclassed from FiddleBaseParameterizable. '
        'To override this, add '
        '_USE_DEPRECATED_HPARAMS_BASE_PARAMETERIZABLE=True to '
        f'{cls.__module__}.{cls.__qualname__}'
      )
    super().__init_subclass__(**kwargs)
    if init_params_arg_name is not None:
      cls._config_init_name_for_params_object = init_params_arg_name
    if nonconfigurable_init_arg_names is not None:
      cls._nonconfigurable_init_args += tuple(nonconfigurable_init_arg_names)
    _bind(cls)

  @property
  def hparams(self) -> BaseParameterizable.HParams:
    """The frozen parameters of this object."""
    return self._hparams

  @classmethod
  def make(cls, **kwargs: Any) -> Any:
    """Builds an object from the values of its parameters.

    Raises:
      ValueError: a required parameter is missing.
    """
    fields = inspect.signature(cls.HParams).parameters.values()
    required = {f.name for f in fields if f.default is f.empty}
    if missing := sorted(required - set(kwargs)):
      raise ValueError(
        f'Missing required arguments: {missing} when instantiating {cls}.'
      )
    values = {f.name: kwargs.pop(f.name) for f in fields if f.name in kwargs}
    kwargs[cls._config_init_name_for_params_object] = cls.HParams(**values)
    return cls(**kwargs)

  @classmethod
  def config(cls, **kwargs: Any) -> pax_fiddle.Config:
    """Returns a Config of `make`."""
    config = pax_fiddle.Config(cls.make, **kwargs)
    for field in pax_fiddle.fields_of(cls.HParams):
      metadata = pax_fiddle.field_metadata(field)
      initializer = metadata and metadata.buildable_initializer
      if initializer and not config.has(field.name):
        setattr(config, field.name, initializer())
    return config

  @classmethod
  def partial(cls, **kwargs: Any) -> pax_fiddle.Partial:
    """Returns a Config that builds a function of the missing arguments."""
    return fdl.cast(pax_fiddle.Partial, cls.config(**kwargs))


def instantiate(config: Any, **kwargs: Any) -> Any:
  """Builds an object from a Config or from the `HParams` of its class.

  Args:
    config: the Config or the parameters.
    **kwargs: fields that override those of a Config; further arguments of the
      class for parameters.

  Raises:
    ValueError: `config` is neither.
  """
  return pax_fiddle.instantiate(config, **kwargs)


def _bind(cls: Any) -> None:
  """Gives a class `HParams` of its own, and a `make` with their signature."""
  cls.HParams = _bound_hparams(cls)
  if 'make' not in cls.__dict__:
    # A copy: the function of the base class keeps its own signature.
    make = cls.make.__func__
    cls.make = classmethod(
      types.FunctionType(make.__code__, make.__globals__, make.__name__)
    )
  function = cls.make.__func__
  function.__signature__ = _make_signature(cls)
  function.__doc__ = cls.__doc__


def _bound_hparams(cls: Any) -> type:
  """Returns the subclass of `cls.HParams` whose field `cls` is `cls`."""
  base = cls.HParams
  body = {
    '__doc__': base.__doc__,
    '__module__': cls.__module__,
    '__qualname__': f'{cls.__qualname__}.{base.__name__}',
    '__annotations__': {'cls': 'type[Any]'},
    '_attribute_overrides': ('cls',),
    'cls': cls,
  }
  return FiddleHParamsClassStub(base.__name__, (base,), body)


def _make_signature(cls: Any) -> inspect.Signature:
  """Returns the parameters and the other arguments of `__init__`, by keyword.

  Raises:
    TypeError: as in `BaseParameterizable.__init_subclass__`.
  """
  init_arguments = dict(inspect.signature(cls).parameters)
  params_argument = cls._config_init_name_for_params_object
  if params_argument not in init_arguments:
    raise TypeError(
      f'{cls.__qualname__}.__init__ must have a parameter named '
      f'{params_argument}; it has {list(init_arguments)}'
    )
  for name in (params_argument, *cls._nonconfigurable_init_args):
    init_arguments.pop(name, None)
  params = dict(inspect.signature(cls.HParams).parameters)
  del params['cls']
  if duplicates := sorted(set(params) & set(init_arguments)):
    raise TypeError(
      f'Duplicated parameter between `{cls}` and `{cls}.HParams`: {duplicates}'
    )
  arguments = [
    argument
    if argument.kind is inspect.Parameter.VAR_KEYWORD
    else argument.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    for argument in (*params.values(), *init_arguments.values())
  ]
  first = inspect.Parameter('cls', inspect.Parameter.POSITIONAL_OR_KEYWORD)
  return inspect.Signature([first, *arguments], return_annotation=cls)
