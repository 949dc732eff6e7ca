# SPDX-License-Identifier: Apache-2.0
"""The averaged variables that an optimizer keeps, as variables."""

from __future__ import annotations

from typing import Any

import jax

from pax import train_states
from praxis.optimizers import prefix_vectorization

_EMA = 'ema'


def is_vectorized(states: train_states.TrainState) -> bool:
  """Whether optimizer states are stacked over the repeats of layers.

  Raises:
    ValueError: there are no optimizer states.
  """
  if not states.opt_states:
    raise ValueError(
      'whether a model is vectorized is told by opt_states, got none; ask'
      ' before to_eval_state()'
    )
  return prefix_vectorization.NO_PREFIX in states.opt_states[0]


def has_ema(task: Any) -> bool:
  """Whether the optimizer of a task, or of its Config, keeps averages."""
  return task.train.learner.optimizer.ema_decay > 0.0


def extract_ema(
  model_states: train_states.TrainState,
  merge_for_bprop_exclusion: bool = True,
) -> train_states.TrainState:
  """Returns the state whose variables are their averages.

  There are no optimizer states in it. It works on arrays as on anything that
  stands for them.

  Args:
    model_states: The state of training.
    merge_for_bprop_exclusion: Whether variables that are not trained, of which
      there is no average, are taken as they are; else they are None.

  Raises:
    ValueError: there are no averages.
  """
  leaves = jax.tree_util.tree_flatten_with_path(model_states.opt_states)[0]
  averages = {}
  for path, leaf in leaves:
    names = [jax.tree_util.keystr((key,), simple=True) for key in path]
    if _EMA in names:
      averages[tuple(names[names.index(_EMA) + 1 :])] = leaf

  found = set()

  def average(path: tuple[Any, ...], variable: Any) -> Any:
    name = tuple(jax.tree_util.keystr((key,), simple=True) for key in path)
    if name not in averages:
      return variable if merge_for_bprop_exclusion else None
    found.add(name)
    return averages[name]

  mdl_vars = jax.tree_util.tree_map_with_path(average, model_states.mdl_vars)
  if not found:
    raise ValueError(
      'the optimizer states hold no averages of variables; set'
      ' task.train.learner.optimizer.ema_decay, or unset what asks for them'
    )
  return train_states.TrainState(
    step=model_states.step, mdl_vars=mdl_vars, opt_states=[]
  )
