# SPDX-License-Identifier: Apache-2.0
"""Lists the experiments: how large they are, and on what mesh they run.

pax list_experiments [PART_OF_A_NAME...]
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import sys
from collections.abc import Sequence
from typing import Any

import fiddle as fdl
import jax
import numpy as np

from pax import experiment_registry
from pax.runner import command_line
from pax.tools import abstract_experiment, tool
from praxis import base_layer
from praxis.layers import models
from praxis.pytypes import NestedMap

_USAGE = """\
Lists the experiments: how large they are, and on what mesh they run.

  pax list_experiments               all that come with Pax
  pax list_experiments lm_cloud      those with this in their name
  pax list_experiments my.module     those of a module of yours"""

# The shape of the batch for which variables are declared: it holds whole
# microbatches of every pipeline, and no variable depends on it.
_ROWS, _LENGTH = 512, 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """The flags of this tool."""

  parts: tuple[str, ...] = command_line.words('[PART_OF_A_NAME...]')
  json: bool = command_line.flag(
    False, 'Output', 'One line of JSON for each, instead of a table.'
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """One experiment."""

  name: str
  # None where the model cannot be declared without data; `note` says why.
  parameters: int | None
  # None for one replica per device.
  mesh: list[int] | None
  devices: int | None
  # The first line of its docstring, or what went wrong.
  note: str


def main(argv: Sequence[str] = sys.argv) -> int:
  """Prints the list; returns the exit code."""
  options = command_line.parse(Options, argv, _USAGE)
  found = [describe(name, cls) for name, cls in _selected(options.parts)]
  if not found:
    raise ValueError(f'no experiment has {" or ".join(options.parts)} in it')
  if options.json:
    lines = [json.dumps(dataclasses.asdict(row)) for row in found]
  else:
    lines = _table(found)
  print('\n'.join(lines))
  return 0


def describe(name: str, experiment: type) -> Row:
  """What there is to say about an experiment; nothing is allocated."""
  doc = (inspect.getdoc(experiment) or '').partition('\n')[0]
  row = Row(name=name, parameters=None, mesh=None, devices=None, note=doc)
  try:
    instance = experiment()
    task = instance.task()
    row = dataclasses.replace(
      row,
      mesh=task.model.mesh_shape and list(task.model.mesh_shape),
      devices=abstract_experiment.num_devices(task)
      if task.model.mesh_shape
      else None,
    )
    return dataclasses.replace(row, parameters=_num_params(instance, task))
  except Exception as e:
    # One that needs data that is not here should not hide the others.
    return dataclasses.replace(row, note=f'{type(e).__name__}: {e}')


def _num_params(experiment: Any, task: Any) -> int:
  model = task.Instantiate().model
  variables = model.abstract_init_with_metadata(_batch(experiment, task))
  weights = jax.tree.leaves(variables[base_layer.PARAMS])
  return sum(math.prod(weight.full_shape) for weight in weights)


def _batch(experiment: Any, task: Any) -> NestedMap:
  """The shapes of a batch: of tokens, or as the experiment tells."""
  if not issubclass(fdl.get_callable(task.model), models.LanguageModel):
    provider = experiment.get_input_specs_provider_params()
    return provider.Instantiate().get_input_specs()
  ints = jax.ShapeDtypeStruct((_ROWS, _LENGTH), np.int32)
  floats = jax.ShapeDtypeStruct((_ROWS, _LENGTH), np.float32)
  return NestedMap(
    ids=ints,
    labels=ints,
    segment_ids=ints,
    segment_pos=ints,
    paddings=floats,
    weights=floats,
  )


def _selected(parts: Sequence[str]) -> list[tuple[str, type]]:
  """(name, class) of the experiments with one of the parts in their name."""
  experiment_registry.import_all_experiments()
  for part in parts:
    _import(part)
  every = sorted(experiment_registry.get_all().items())
  named = [(name.removeprefix('pax.'), cls) for name, cls in every]
  wanted = [experiment_registry.pax_name(part) for part in parts] or ['']
  return [
    (name, cls)
    for name, cls in named
    if any(part in f'pax.{name}' for part in wanted)
  ]


def _import(module: str) -> None:
  """Lets a module of the user register what it has."""
  if '.' in module:
    # Asking for an experiment in it imports it.
    experiment_registry.get(f'{module}.')


def _table(found: Sequence[Row]) -> list[str]:
  width = max(len(row.name) for row in found)
  lines = [f'{"experiment":<{width}}  {"parameters":>10}  {"mesh":<12}  ']
  for row in found:
    params = '?' if row.parameters is None else _short(row.parameters)
    mesh = 'x'.join(map(str, row.mesh)) if row.mesh else 'replicas'
    lines.append(f'{row.name:<{width}}  {params:>10}  {mesh:<12}  {row.note}')
  return [line.rstrip() for line in lines]


def _short(count: int) -> str:
  """As 58M, 2.14B, 1.03T: what models are called by."""
  for limit, unit in ((1e12, 'T'), (1e9, 'B'), (1e6, 'M'), (1e3, 'k')):
    if count >= limit:
      return f'{count / limit:.3g}{unit}'
  return str(count)


if __name__ == '__main__':
  tool.console(main)
