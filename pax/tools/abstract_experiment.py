# SPDX-License-Identifier: Apache-2.0
"""An experiment as the tools see it: all that it declares, nothing allocated.

A mesh needs devices to be made of; they are simulated, as many as the
experiment asks for, so that a laptop tells what would happen on a pod.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax

from pax import base_experiment, partitioning
from pax.runner import (
  build_train,
  command_line,
  distributed,
  experiments,
  job_setup,
  overrides,
  run_config,
)
from praxis import pax_fiddle

Config = pax_fiddle.Config
DevicesFor = Callable[[base_experiment.BaseExperiment, Config[Any]], int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentOptions:
  """The flags that say which experiment."""

  exp: str | None = command_line.flag(
    None, 'What', 'Experiment, as module.Class or any unique end of it.'
  )
  fdl: tuple[str, ...] = command_line.flag(
    (),
    'What',
    'Makes the experiment, instead of --exp, as for a run. Repeatable.',
    example='COMMAND',
  )
  set: tuple[str, ...] = command_line.flag(
    (),
    'What',
    'Sets a constant of the experiment or a field of the configuration, as for'
    ' a run. Repeatable.',
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Declared:
  """What an experiment declares."""

  name: str
  experiment: base_experiment.BaseExperiment
  # Task, training input, eval inputs.
  tree: Config[run_config.RunConfig]

  @property
  def task(self) -> Config[Any]:
    return self.tree.task

  def input_spec(self) -> Any:
    """Shapes and dtypes of a training batch of one host.

    Where the experiment has a specs provider of its own, that tells them, and
    the data need not be there.
    """
    provided = job_setup.declared_spec(self.experiment)
    return self.spec_of_data() if provided is None else provided

  def spec_of_data(self) -> Any:
    """The same of the first training batch."""
    return build_train.batch_spec(self.tree.train_input.Instantiate())

  def partitioner(self) -> partitioning.Partitioner:
    """The task on its mesh of simulated devices."""
    return partitioning.create_partitioner(self.task, self.input_spec())


def declare(
  options: ExperimentOptions,
  devices_for: DevicesFor | None = None,
) -> Declared:
  """What the experiment of the options declares, with devices for its mesh.

  Args:
    options: which experiment.
    devices_for: tells how many devices to simulate for an experiment and its
      task; as many as the mesh has, if None.

  Raises:
    ValueError: no such experiment, constant or field; or it is not valid.
  """
  (found,) = declare_all([options], devices_for)
  return found


def declare_all(
  every: Sequence[ExperimentOptions],
  devices_for: DevicesFor | None = None,
) -> list[Declared]:
  """What several experiments declare, with devices for the largest mesh."""
  found = [_find(options, devices_for or _of_mesh) for options in every]
  simulate_devices(max(count for _, count in found))
  return [
    Declared(
      name=options.exp or ' '.join(options.fdl),
      experiment=experiment,
      tree=run_config.from_experiment(experiment, overrides.parse(options.set)),
    )
    for options, (experiment, _) in zip(every, found, strict=True)
  ]


def _find(
  options: ExperimentOptions, devices_for: DevicesFor
) -> tuple[base_experiment.BaseExperiment, int]:
  """The experiment, and how many devices it wants."""
  settings = overrides.parse(options.set)
  experiment = experiments.find(options.exp, settings, options.fdl)
  experiment.validate()
  tree = Config(run_config.RunConfig, task=experiment.task())
  of_task = [s for s in settings if s.name.startswith('task.')]
  overrides.set_fields(tree, of_task)
  return experiment, devices_for(experiment, tree.task)


def _of_mesh(
  experiment: base_experiment.BaseExperiment, task: Config[Any]
) -> int:
  del experiment
  return num_devices(task)


def num_devices(task: Config[Any]) -> int:
  """How many devices the mesh of a task has; 1 without a mesh."""
  ici = task.model.ici_mesh_shape or [1]
  dcn = task.model.dcn_mesh_shape or [1]
  return math.prod(ici) * math.prod(dcn)


def simulate_devices(count: int) -> None:
  """Makes JAX find so many devices; those it has found before may do.

  Raises:
    ValueError: it has found fewer.
  """
  try:
    distributed.simulate_devices(count)
  except RuntimeError:
    if jax.device_count() < count:
      raise ValueError(
        f'the experiment wants {count} devices and JAX has found'
        f' {jax.device_count()}; use the tool in a process of its own'
      ) from None


def write(path: str, text: str) -> None:
  """Writes a text, ending in a new line; `-` is standard output."""
  if path in ('-', '/dev/stdout'):
    print(text.rstrip('\n'), flush=True)
    return
  file = pathlib.Path(path).expanduser()
  file.parent.mkdir(parents=True, exist_ok=True)
  file.write_text(text.rstrip('\n') + '\n', encoding='utf-8')
