# SPDX-License-Identifier: Apache-2.0
"""SeqIO's tasks by name, declared when they are asked for.

To import SeqIO takes TensorFlow and seconds. So a module that has tasks says
which, and only the input that reads one has it declared.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

_makers: dict[str, Callable[[Any], None]] = {}

MakerT = Callable[[Any], None]


def provides(*names: str) -> Callable[[MakerT], MakerT]:
  """Decorates a function of the module `seqio` that adds the tasks `names`."""

  def note(make: MakerT) -> MakerT:
    _makers.update(dict.fromkeys(names, make))
    return make

  return note


def load(wanted_by: str) -> Any:
  """Returns the module `seqio`.

  Raises:
    ValueError: it is not installed; `wanted_by` is told so.
  """
  try:
    return importlib.import_module('seqio')
  except ModuleNotFoundError as error:
    raise ValueError(
      f'{wanted_by} wants the package seqio, got {error}; run `pip install '
      'seqio`, or let an experiment on C4 train on made-up tokens with --set '
      'SYNTHETIC_DATA=True'
    ) from error


def find(seqio: Any, name: str) -> Any:
  """Returns the task or mixture `name`, which is declared if need be.

  Raises:
    ValueError: nobody has declared it.
  """
  known = (*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names())
  if name not in known:
    if name not in _makers:
      raise ValueError(
        f'mixture_name must be one of {sorted({*known, *_makers})}, got '
        f'{name!r}; import the module that adds it to seqio.TaskRegistry'
      )
    _makers[name](seqio)
  return seqio.get_mixture_or_task(name)
