# SPDX-License-Identifier: Apache-2.0
"""Moving averages of variables, extracted from optimizer states."""

from __future__ import annotations

from typing import Any

import jax

from pax import train_states
from praxis.optimizers import prefix_vectorization

_EMA = 'ema'


def is_vectorized(states: train_states.TrainState) -> bool:
  """Returns whether optimizer states are vectorized over repeated layers.

  Raises:
    ValueError: there are no optimizer states.
  """
  if not states.opt_states:
    raise ValueError(
      'is_vectorized needs opt_states, got none; call it before to_eval_state()'
    )
  return prefix_vectorization.NO_PREFIX_KEY in states.opt_states[0]


def has_ema(task: Any) -> bool:
  """Returns whether the optimizer of a task, or of its Config, has an EMA."""
  return task.train.learner.optimizer.ema_decay > 0.0


def extract_ema(
  model_states: train_states.TrainState,
  merge_for_bprop_exclusion: bool = True,
) -> train_states.TrainState:
  """Returns the state with variables replaced by their moving averages.

  The result has no optimizer states. Leaves may be arrays, shapes, shardings
  or partition specs. An average has the sharding of its variable: that of its
  optimizer state may use more mesh axes or host memory.

  Args:
    model_states: The training state.
    merge_for_bprop_exclusion: Whether variables without an average, which are
      not trained, keep their value; otherwise they become None.

  Raises:
    ValueError: the optimizer states hold no averages.
  """
  leaves = jax.tree_util.tree_flatten_with_path(model_states.opt_states)[0]
  averages = {}
  # The field `ema` of a NamedTuple, optax.EmaState, is an average of gradients.
  key_of_averages = jax.tree_util.DictKey(_EMA)
  for path, leaf in leaves:
    if key_of_averages in path:
      averages[_names(path[path.index(key_of_averages) + 1 :])] = leaf

  averaged_names = set()

  def average(path: tuple[Any, ...], variable: Any) -> Any:
    name = _names(path)
    if name not in averages:
      return variable if merge_for_bprop_exclusion else None
    averaged_names.add(name)
    return _sharded_as(variable, averages[name])

  mdl_vars = jax.tree_util.tree_map_with_path(average, model_states.mdl_vars)
  if not averaged_names:
    raise ValueError(
      'the optimizer states hold no averages of variables; set'
      ' task.train.learner.optimizer.ema_decay, or unset'
      ' eval_use_ema_states and decode_use_ema_states'
    )
  return train_states.TrainState(
    step=model_states.step, mdl_vars=mdl_vars, opt_states=[]
  )


def _sharded_as(variable: Any, average: Any) -> Any:
  if isinstance(variable, jax.sharding.Sharding | jax.sharding.PartitionSpec):
    return variable
  if isinstance(average, jax.core.Tracer):
    return average
  sharding = getattr(variable, 'sharding', None)
  if sharding is None:
    return average
  if isinstance(average, jax.ShapeDtypeStruct):
    return average.update(sharding=sharding)
  return jax.device_put(average, sharding)


def _names(path: tuple[Any, ...]) -> tuple[str, ...]:
  return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)
