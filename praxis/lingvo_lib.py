# SPDX-License-Identifier: Apache-2.0
"""The names of Lingvo that Praxis uses; Lingvo is optional.

Without Lingvo `HParams` and `InstantiableParams` serve in annotations and in
`isinstance`; everything else of them raises an ImportError.

Lingvo's compiled operations (`x_ops.so`) load only on systems with its version
of glibc. Elsewhere `import lingvo.core...` works after an import of this
module, and a call of such an operation raises an error with the reason.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import pathlib
import sys
import types
from collections.abc import Sequence
from typing import Any

from praxis import lazy_loader
from praxis.nested_map import NestedMap as NestedMap

_log = logging.getLogger(__name__)

_MISSING = (
  "this needs Lingvo; install it: pip install 'pax-jax[lingvo]', then"
  ' pip install --no-deps lingvo==0.14.2'
)
_HYPERPARAMS = 'lingvo.core.hyperparams'
# Lingvo imports this module, and loads x_ops.so if it does not exist.
_COMPILED_OPS = 'lingvo.core.ops.gen_x_ops'


class UnavailableOps(types.ModuleType):
  """Compiled operations that raise an error when they are called."""

  def __init__(self, name: str, reason: str):
    super().__init__(name)
    self._reason = reason

  def __getattr__(self, name: str) -> Any:
    if name.startswith('__'):
      raise AttributeError(name)

    def unavailable_op(*args: Any, **kwargs: Any) -> Any:
      del args, kwargs
      raise NotImplementedError(
        f'the operation {name!r} of Lingvo is compiled code that this system'
        f' cannot load: {self._reason}; use an input generator of tf.data, such'
        ' as DefineTFDataInput or TFDataSequenceInputGenerator'
      )

    return unavailable_op


class _CompiledOpsFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Finds a replacement of Lingvo's compiled operations if they do not load."""

  _reason = ''

  def find_spec(
    self,
    fullname: str,
    path: Sequence[str] | None = None,
    target: types.ModuleType | None = None,
  ) -> importlib.machinery.ModuleSpec | None:
    del target
    if fullname != _COMPILED_OPS or not path:
      return None
    self._reason = _error_of_op_library(pathlib.Path(path[0]) / 'x_ops.so')
    if not self._reason:
      return None
    _log.warning(
      'The compiled operations of Lingvo do not load (%s); only input'
      ' generators of tf.data work',
      self._reason,
    )
    return importlib.util.spec_from_loader(fullname, self)

  def create_module(
    self, spec: importlib.machinery.ModuleSpec
  ) -> types.ModuleType:
    return UnavailableOps(spec.name, self._reason)

  def exec_module(self, module: types.ModuleType) -> None:
    del module


def _error_of_op_library(library: pathlib.Path) -> str:
  """Returns why TensorFlow cannot load a library; '' if it can."""
  tf = importlib.import_module('tensorflow')
  try:
    tf.load_op_library(str(library))
  except tf.errors.OpError as e:
    return ' '.join(e.message.split())
  return ''


if not any(isinstance(f, _CompiledOpsFinder) for f in sys.meta_path):
  # The last one: a module that exists is preferred.
  sys.meta_path.append(_CompiledOpsFinder())


class _Params:
  """Replaces lingvo.core.hyperparams.Params if Lingvo is missing."""

  def __init__(self, *args: Any, **kwargs: Any):
    raise ImportError(_MISSING)


class _InstantiableParams(_Params):
  """Replaces lingvo.core.hyperparams.InstantiableParams."""


def current_cluster() -> Any:
  """Returns Lingvo's current cluster.

  Raises:
    ImportError: Lingvo is not installed.
  """
  return import_lingvo('cluster_factory').Current()


def infeed_context_scope(
  infeed_host_index: int, num_infeed_hosts: int
) -> contextlib.AbstractContextManager[Any]:
  """Returns Lingvo's context of an input on one of several hosts.

  Raises:
    ImportError: Lingvo is not installed.
  """
  return import_lingvo('cluster').InfeedContextScope(
    infeed_host_index, num_infeed_hosts
  )


def import_lingvo(module: str) -> types.ModuleType:
  """Returns a module of `lingvo.core`.

  Args:
    module: Its name, such as 'datasource'.

  Raises:
    ImportError: Lingvo or a package that it imports is not installed.
  """
  try:
    return importlib.import_module(f'lingvo.core.{module}')
  except ImportError as e:
    raise ImportError(f'{_MISSING} ({e})') from e


def is_imported() -> bool:
  """Returns whether the program has imported Lingvo's params."""
  return _HYPERPARAMS in sys.modules


def is_params(value: Any) -> bool:
  """Returns whether a value is Lingvo's params of a class."""
  return is_imported() and isinstance(
    value, sys.modules[_HYPERPARAMS].InstantiableParams
  )


def params_from_text(cls: Any, text: str) -> Any:
  """Returns the params of a class of Lingvo with the fields of a text.

  Args:
    cls: The class.
    text: The text of `Params.ToTextWithTypes`.
  """
  params = cls.Params()
  params.FromTextWithTypes(text)
  return params


# Imported at the first use: Lingvo takes seconds.
datasource = lazy_loader.LazyLoader(
  'datasource', globals(), 'lingvo.core.datasource'
)


def __getattr__(name: str) -> Any:
  if name in ('HParams', 'HParamsT', 'Params', 'ParamsT'):
    attribute, replacement = 'Params', _Params
  elif name == 'InstantiableParams':
    attribute, replacement = name, _InstantiableParams
  else:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  try:
    return getattr(import_lingvo('hyperparams'), attribute)
  except ImportError:
    return replacement
