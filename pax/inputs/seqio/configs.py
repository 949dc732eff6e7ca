# SPDX-License-Identifier: Apache-2.0
"""Configs that find SeqIO tasks by name, instead of task objects."""

from __future__ import annotations

from typing import Any

from fiddle import daglish

from pax.inputs.seqio import tasks
from praxis import pax_fiddle

Config = pax_fiddle.Config


def convert_seqio_tasks(config: Any) -> Any:
  """Returns a copy in which SeqIO tasks are Configs that find them by name."""

  def convert(value: Any, state: daglish.State) -> Any:
    if is_seqio_task(value):
      return Config(find_seqio_task, task_or_mixture_name=value.name)
    return state.map_children(value) if state.is_traversable(value) else value

  return daglish.MemoizedTraversal.run(convert, config)


def find_seqio_task(task_or_mixture_name: str) -> Any:
  """Returns the SeqIO task or mixture with this name; needs SeqIO."""
  seqio = tasks.load(f'the task {task_or_mixture_name!r}')
  return tasks.find(seqio, task_or_mixture_name)


def is_seqio_task(value: Any) -> bool:
  """Whether a value is a SeqIO task or mixture; does not import SeqIO."""
  return any(
    cls.__module__.partition('.')[0] == 'seqio'
    and cls.__name__ in ('Task', 'Mixture')
    for cls in type(value).__mro__
  )
