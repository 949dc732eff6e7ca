# SPDX-License-Identifier: Apache-2.0
"""An experiment that a tool inspects: declared, on simulated devices.

A mesh consists of devices, so as many CPU devices are simulated as the
experiment asks for. Nothing is allocated.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax

from pax import base_experiment, partitioning
from pax.files import storage
from pax.programs import batch_shapes
from pax.runner import (
  command_line,
  distributed,
  experiment_files,
  experiments,
  job_setup,
  overrides,
  run_config,
)
from praxis import pax_fiddle

Config = pax_fiddle.Config
NumDevicesFn = Callable[[base_experiment.BaseExperiment, Config[Any]], int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentOptions(command_line.CheckedOptions):
  """The flags that choose an experiment."""

  exp: str | None = command_line.flag(
    None,
    'What',
    'Experiment: module.Class, or any unique suffix of it; or a file of them.',
    is_path=True,
  )
  fdl: tuple[str, ...] = command_line.flag(
    (),
    'What',
    'Instead of --exp: make the experiment with Fiddle, as for a run.'
    ' Repeatable.',
    example='COMMAND',
  )
  set: tuple[str, ...] = command_line.flag(
    (),
    'What',
    'Set a constant of the experiment or a field of its configuration, as for a'
    ' run. Repeatable.',
  )
  trust_foreign_files: bool = command_line.flag(
    False,
    'What',
    'Read --fdl=config_file: even if other users own or can write the file; it'
    ' is code.',
  )

  def expand_files(self) -> Self:
    """Returns the flags with the content of an experiment file."""
    return experiment_files.expand(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AbstractExperiment:
  """An experiment and its configuration, nothing of it built."""

  name: str
  experiment: base_experiment.BaseExperiment
  tree: Config[run_config.RunConfig]

  @property
  def task(self) -> Config[Any]:
    return self.tree.task

  def input_spec(self) -> Any:
    """Returns shapes and dtypes of a training batch of one host.

    The experiment's own input specs provider returns them, if it has one; then
    the data need not exist.
    """
    provided = job_setup.declared_spec(self.experiment)
    return self.spec_of_data() if provided is None else provided

  def spec_of_data(self) -> Any:
    """Returns shapes and dtypes of the first training batch."""
    return batch_shapes.batch_spec(self.tree.train_input.Instantiate())

  def partitioner(self) -> partitioning.Partitioner:
    """Returns the task on its mesh of simulated devices."""
    return partitioning.partition_task(self.task, self.input_spec())


def declare(
  options: ExperimentOptions, num_devices_fn: NumDevicesFn | None = None
) -> AbstractExperiment:
  """Returns the experiment that the options choose.

  Args:
    options: which experiment.
    num_devices_fn: returns the number of devices to simulate for an experiment
      and its task; None simulates the devices of the mesh.

  Raises:
    ValueError: there is no such experiment, constant or field, or the
      experiment is not valid.
  """
  (experiment,) = declare_all([options], num_devices_fn)
  return experiment


def declare_all(
  all_options: Sequence[ExperimentOptions],
  num_devices_fn: NumDevicesFn | None = None,
) -> list[AbstractExperiment]:
  """Returns several experiments, with devices for the largest of their meshes.

  Args:
    all_options: which experiments.
    num_devices_fn: see `declare`.
  """
  experiment_list, counts = [], []
  for options in all_options:
    changes = overrides.parse(options.set)
    experiment = experiments.find(
      options.exp,
      changes,
      options.fdl,
      trust_foreign_files=options.trust_foreign_files,
    )
    experiments.validate(experiment)
    # Inputs depend on the number of devices, which depends on the task.
    task_changes = [c for c in changes if c.is_in('task')]
    tree = run_config.of_task(experiment, task_changes)
    if num_devices_fn is None:
      counts.append(num_devices(tree.task))
    else:
      counts.append(num_devices_fn(experiment, tree.task))
    experiment_list.append((options, experiment, changes))
  simulate_devices(max(counts))
  return [
    AbstractExperiment(
      name=options.exp or ' '.join(options.fdl),
      experiment=experiment,
      tree=run_config.from_experiment(experiment, changes),
    )
    for options, experiment, changes in experiment_list
  ]


def num_devices(task: Config[Any]) -> int:
  """Returns the number of devices of a task's mesh; 1 without a mesh."""
  ici = task.model.ici_mesh_shape or [1]
  dcn = task.model.dcn_mesh_shape or [1]
  return math.prod(ici) * math.prod(dcn)


def simulate_devices(count: int) -> None:
  """Makes JAX simulate CPU devices, or checks that it has enough already.

  Raises:
    ValueError: JAX is initialized with fewer devices.
  """
  try:
    distributed.simulate_devices(count)
  except RuntimeError:
    if jax.device_count() < count:
      raise ValueError(
        f'the experiment wants {count} devices and JAX has'
        f' {jax.device_count()}; run the tool in a process of its own'
      ) from None


def write(path: str, text: str) -> None:
  """Writes a text and a final newline to a file; `-` is standard output.

  Raises:
    ValueError: the file cannot be written, or is a URL.
  """
  if path in ('-', '/dev/stdout'):
    print(text.rstrip('\n'), flush=True)
    return
  file = storage.require_local(path, 'output').expanduser()
  try:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text.rstrip('\n') + '\n', encoding='utf-8')
  except OSError as e:
    raise ValueError(f'cannot write to {path}: {e.strerror or e}') from e
