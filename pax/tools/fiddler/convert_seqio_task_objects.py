# SPDX-License-Identifier: Apache-2.0
"""Replaces SeqIO's tasks and mixtures by Configs that find them by name."""

from __future__ import annotations

from typing import Any

from fiddle import daglish

from pax.inputs import seqio_tasks
from praxis import pax_fiddle


def convert_seqio_tasks(config: Any) -> Any:
  """Returns a copy of Configs, or of a container of them, without objects."""

  def named(value: Any, state: daglish.State) -> Any:
    if is_seqio_task(value):
      return pax_fiddle.Config(find, name=value.name)
    return state.map_children(value) if state.is_traversable(value) else value

  return daglish.MemoizedTraversal.run(named, config)


def find(name: str) -> Any:
  """Returns the task or mixture of this name; SeqIO must be there."""
  return seqio_tasks.find(seqio_tasks.load(f'the task {name!r}'), name)


def is_seqio_task(value: Any) -> bool:
  """Whether it is a task or a mixture; SeqIO need not be there to tell."""
  return any(
    cls.__module__.partition('.')[0] == 'seqio'
    and cls.__name__ in ('Task', 'Mixture')
    for cls in type(value).__mro__
  )
