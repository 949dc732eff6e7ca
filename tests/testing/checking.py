# SPDX-License-Identifier: Apache-2.0
"""Checks what our functions are given and return against their annotations.

By jaxtyping and beartype, as an import hook of theirs would, but each function
is wrapped on its first call: that takes a millisecond, and a test calls few of
the functions it imports. beartype checks arguments and result in one wrapper;
jaxtyping's decorator has two, and binds the signature at each call. Functions
within functions are left as they are.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import importlib.machinery
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

import beartype
import jaxtyping

# What modules know `checked` by.
_NAME = '__checked__'
_CHECK = beartype.beartype(
  conf=beartype.BeartypeConf(violation_type=jaxtyping.TypeCheckError)
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def checked(target: Any) -> Any:
  """Returns a function that checks its calls, a class that does its fields."""
  if isinstance(target, type):
    if dataclasses.is_dataclass(target) and '__init__' in vars(target):
      target.__init__ = _on_first_call(target.__init__)
    return target
  if isinstance(target, types.FunctionType) and target.__annotations__:
    return _on_first_call(target)
  return target


def _on_first_call(function: Callable[..., Any]) -> Callable[..., Any]:
  check = None

  @functools.wraps(function)
  def call(*args: Any, **kwargs: Any) -> Any:
    nonlocal check
    if jaxtyping.config.jaxtyping_disable:
      return function(*args, **kwargs)
    if check is None:
      check = _check(function)
    # Names of dimensions are those of this call.
    with jaxtyping.jaxtyped('context'):
      return check(*args, **kwargs)

  return call


def _check(function: types.FunctionType) -> Callable[..., Any]:
  """Returns a function that checks what annotations mean something."""
  if '{' in ''.join(map(str, function.__annotations__.values())):
    # Dimensions that arguments say, `{size}`: jaxtyping binds them.
    return jaxtyping.jaxtyped(function, typechecker=beartype.beartype)
  same = types.FunctionType(
    function.__code__,
    function.__globals__,
    function.__name__,
    function.__defaults__,
    function.__closure__,
  )
  functools.update_wrapper(same, function)
  same.__kwdefaults__ = function.__kwdefaults__
  same.__annotations__ = _hints(function)
  del same.__wrapped__
  return _CHECK(same)


def _hints(function: types.FunctionType) -> dict[str, Any]:
  """Returns the annotations without those that have no meaning.

  Those of an inherited field name what the module of the base imports.
  """
  resolve = lambda annotations: typing.get_type_hints(
    types.SimpleNamespace(__annotations__=annotations),
    function.__globals__,
    include_extras=True,
  )
  try:
    return resolve(function.__annotations__)
  except (NameError, ValueError):
    hints = {}
    for name, annotation in function.__annotations__.items():
      with contextlib.suppress(NameError, ValueError):
        hints |= resolve({name: annotation})
    return hints


def _decorate(body: Sequence[ast.stmt]) -> None:
  """Puts `checked` next to functions, and around dataclasses."""
  for node in body:
    if not isinstance(node, _Function | ast.ClassDef):
      continue
    name = ast.copy_location(ast.Name(_NAME, ast.Load()), node)
    if isinstance(node, ast.ClassDef):
      _decorate(node.body)
      node.decorator_list.insert(0, name)
    else:
      node.decorator_list.append(name)


class _Loader(importlib.machinery.SourceFileLoader):
  """Never reads or writes a .pyc, which would be that of the plain module."""

  def get_code(self, fullname: str) -> types.CodeType:
    path = self.get_filename(fullname)
    tree = ast.parse(self.get_data(path), path)
    _decorate(tree.body)
    return compile(tree, path, 'exec', dont_inherit=True)

  def exec_module(self, module: types.ModuleType) -> None:
    setattr(module, _NAME, checked)
    super().exec_module(module)


class _Finder:
  """Finds the modules of some packages, for `_Loader`."""

  def __init__(self, packages: Sequence[str]):
    self._packages = packages

  def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
    if not any(f'{name}.'.startswith(f'{p}.') for p in self._packages):
      return None
    spec = importlib.machinery.PathFinder.find_spec(name, path, target)
    if spec and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
      spec.loader = _Loader(spec.loader.name, spec.loader.path)
    return spec


def install(*packages: str) -> None:
  """Checks calls to what is imported from these packages from now on."""
  sys.meta_path.insert(0, _Finder(packages))
