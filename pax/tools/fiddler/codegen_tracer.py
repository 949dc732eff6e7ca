# SPDX-License-Identifier: Apache-2.0
"""Constants that remember their names on their way into a Config."""

from __future__ import annotations

from typing import Any

from fiddle import daglish

from pax import base_experiment
from pax.runner import overrides
from praxis.pax_fiddle import config_codegen

# Types whose values can have a name; a bool is one of two, and None the one.
_NAMED = {
  base: type(f'Named{base.__name__.title()}', (base,), {})
  for base in (int, float, str, list, tuple)
}


def make_tracer(name: str, value: Any) -> Any:
  """Returns a value equal to `value` that code is to call by its name.

  What cannot have one, as a bool, stays what it is.
  """
  kind = _NAMED.get(type(value))
  if kind is None:
    return value
  named = kind(value)
  setattr(named, config_codegen.CODE_NAME, name)
  return named


def make_subclass_mixin(
  experiment_cls: type[base_experiment.BaseExperiment],
) -> type[base_experiment.BaseExperiment]:
  """Returns the experiment with constants that remember their names."""
  constants = overrides.constants_of(experiment_cls)
  body = {
    '__module__': experiment_cls.__module__,
    '__doc__': experiment_cls.__doc__,
  }
  named = {name: make_tracer(name, x) for name, x in constants.items()}
  return type(experiment_cls.__name__, (experiment_cls,), body | named)


def remove_tracers(root: Any) -> Any:
  """Returns a copy of Configs whose values have no names."""

  def plain(value: Any, state: daglish.State) -> Any:
    for base, kind in _NAMED.items():
      if type(value) is kind:
        return base(value)
    return state.map_children(value) if state.is_traversable(value) else value

  return daglish.MemoizedTraversal.run(plain, root)
