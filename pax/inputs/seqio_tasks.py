# SPDX-License-Identifier: Apache-2.0
"""Lazy declaration of SeqIO tasks by name.

Importing SeqIO imports TensorFlow and takes seconds. A module therefore
registers a function for each task, which the input that reads the task calls.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

# Adds tasks to the registry of the module `seqio`.
AddTasks = Callable[[Any], None]

_declarations: dict[str, AddTasks] = {}


def provides(*names: str) -> Callable[[AddTasks], AddTasks]:
  """Registers the decorated function as the declaration of tasks `names`."""

  def register(add_tasks: AddTasks) -> AddTasks:
    _declarations.update(dict.fromkeys(names, add_tasks))
    return add_tasks

  return register


def load(wanted_by: str) -> Any:
  """Returns the module `seqio`.

  Args:
    wanted_by: The name of the object that needs it, for the message.

  Raises:
    ValueError: SeqIO is not installed.
  """
  try:
    return importlib.import_module('seqio')
  except ModuleNotFoundError as error:
    raise ValueError(
      f'{wanted_by} needs the package seqio: {error}; run `pip install seqio`,'
      ' or train an experiment on C4 with --set SYNTHETIC_DATA=True'
    ) from error


def find(seqio: Any, name: str) -> Any:
  """Returns the task or mixture `name`, declaring it first if necessary.

  Args:
    seqio: The module.
    name: The name in SeqIO's registry.

  Raises:
    ValueError: no module declares it.
  """
  known = (*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names())
  if name not in known:
    if name not in _declarations:
      raise ValueError(
        f'mixture_name must be one of {sorted({*known, *_declarations})}, got '
        f'{name!r}; import the module that adds it to seqio.TaskRegistry'
      )
    _declarations[name](seqio)
  return seqio.get_mixture_or_task(name)
