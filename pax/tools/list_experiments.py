# SPDX-License-Identifier: Apache-2.0
"""Lists the experiments with parameter counts and meshes.

pax list_experiments [PART_OF_A_NAME...]
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import inspect
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import fiddle as fdl
import jax
import numpy as np
from fiddle import history

from pax import experiment_registry
from pax.runner import command_line
from pax.tools import abstract_experiment, parameter_count, tool
from praxis.layers import models
from praxis.pytypes import NestedMap

_USAGE = """\
Lists experiments: number of parameters, mesh, first line of the docstring.

  pax list_experiments               all experiments that come with Pax
  pax list_experiments lm_cloud      those with this text in their name
  pax list_experiments my.module     those of another module, which is imported

Parameters are those that layers declare in setup(); `pax model_analysis
--usage=params` traces the model and lists each variable."""

# Shape [B, T] of the batch of tokens that a language model is traced with: it
# holds whole microbatches of every pipeline, and no variable depends on it.
_TOKENS_SHAPE = (512, 128)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(command_line.CheckedOptions):
  """The flags of this tool."""

  parts: tuple[str, ...] = command_line.words('[PART_OF_A_NAME...]')
  json: bool = command_line.flag(
    False, 'Output', 'Print one JSON record per line instead of a table.'
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """One experiment."""

  name: str
  # None if the model cannot be built; `note` holds the error.
  parameters: int | None
  # None without a mesh: one replica per device.
  mesh: list[int] | None
  devices: int | None
  # First line of the docstring, or the error.
  note: str


def main(argv: Sequence[str] = sys.argv) -> int:
  """Prints the list; returns the exit code.

  Raises:
    ValueError: no experiment matches the command line.
  """
  options = command_line.parse(Options, argv, _USAGE)
  experiments = _selected(options.parts)
  if not experiments:
    raise ValueError(
      f'no experiment has {" or ".join(options.parts)} in its name'
    )
  counter = parameter_count.ParameterCounter()
  # The history of these Configs is not read, and costs time.
  with _no_garbage_collection(), history.suspend_tracking():
    rows = [describe(name, cls, counter) for name, cls in experiments]
  if options.json:
    lines = [json.dumps(dataclasses.asdict(row)) for row in rows]
  else:
    lines = _table(rows)
  print('\n'.join(lines))
  return 0


def describe(
  name: str, experiment: type, counter: parameter_count.ParameterCounter
) -> Row:
  """Returns the row of an experiment; nothing is allocated.

  Args:
    name: of the experiment, as the table prints it.
    experiment: its class.
    counter: counts the parameters; shared over rows, for it remembers layers.
  """
  doc = (inspect.getdoc(experiment) or '').partition('\n')[0]
  row = Row(name=name, parameters=None, mesh=None, devices=None, note=doc)
  try:
    instance = experiment()
    task = instance.task()
    shape = task.model.mesh_shape
    row = dataclasses.replace(
      row,
      mesh=shape and list(shape),
      devices=abstract_experiment.num_devices(task) if shape else None,
    )
    parameters = counter.count(task.model, lambda: _batch_spec(instance, task))
    return dataclasses.replace(row, parameters=parameters)
  except Exception as e:
    # One broken experiment does not hide the others.
    return dataclasses.replace(row, note=f'{type(e).__name__}: {e}')


def _batch_spec(experiment: Any, task: Any) -> NestedMap:
  """Shapes of a batch: of tokens for a language model, else the provider's."""
  model_cls: Any = fdl.get_callable(task.model)
  if not issubclass(model_cls, models.LanguageModel):
    provider = experiment.get_input_specs_provider_params()
    return provider.Instantiate().get_input_specs()
  ints = jax.ShapeDtypeStruct(_TOKENS_SHAPE, np.int32)
  floats = jax.ShapeDtypeStruct(_TOKENS_SHAPE, np.float32)
  return NestedMap(
    ids=ints,
    labels=ints,
    segment_ids=ints,
    segment_pos=ints,
    paddings=floats,
    weights=floats,
    eval_sample_weights=jax.ShapeDtypeStruct(_TOKENS_SHAPE[:1], np.float32),
  )


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
  """Stops the collection of cycles, a third of the time to make Configs.

  Memory stays below 400 MiB for the experiments of Pax.
  """
  gc.disable()
  try:
    yield
  finally:
    gc.enable()


def _selected(parts: Sequence[str]) -> list[tuple[str, type]]:
  """(name, class) of the experiments with one of the parts in their name."""
  experiment_registry.import_all_experiments()
  for part in parts:
    _import_module(part)
  patterns = [experiment_registry.pax_name(part) for part in parts] or ['']
  return [
    (name.removeprefix('pax.'), cls)
    for name, cls in sorted(experiment_registry.get_all().items())
    if any(pattern in name for pattern in patterns)
  ]


def _import_module(name: str) -> None:
  """Imports a module of the user, so that its experiments are registered."""
  if '.' in name:
    # The registry imports the module to look for an experiment in it.
    experiment_registry.get(f'{name}.')


def _table(rows: Sequence[Row]) -> list[str]:
  width = max(len(row.name) for row in rows)
  lines = [f'{"experiment":<{width}}  {"parameters":>10}  {"mesh":<12}  ']
  for row in rows:
    params = '?' if row.parameters is None else _short_count(row.parameters)
    mesh = 'x'.join(map(str, row.mesh)) if row.mesh else 'replicas'
    lines.append(f'{row.name:<{width}}  {params:>10}  {mesh:<12}  {row.note}')
  return [line.rstrip() for line in lines]


def _short_count(count: int) -> str:
  """Three digits and a unit, such as 58M, 2.14B, 1.03T."""
  for limit, unit in ((1e12, 'T'), (1e9, 'B'), (1e6, 'M'), (1e3, 'k')):
    if count >= limit:
      return f'{count / limit:.3g}{unit}'
  return str(count)


if __name__ == '__main__':
  tool.run_console(main)
