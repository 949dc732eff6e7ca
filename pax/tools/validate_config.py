# SPDX-License-Identifier: Apache-2.0
"""Checks whether an experiment can run, as deep as one asks.

pax validate_config --exp=... --check_level=7
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from pax import partitioning
from pax.partitioning import memory
from pax.runner import command_line, experiments, overrides
from pax.tools import abstract_experiment, tool

_USAGE = """\
Checks whether an experiment can run. Every level does what is below it too.

  pax validate_config --exp=lm_cloud.LmCloudSpmd2B --check_level=7

   0  the experiment is found, its constants fit together
   1  its task is made
   3  a training batch has shapes, and all variables of the model can be
      declared for it
   5  all its datasets are declared
   6  the mesh fits the model and the batch; bytes per device
   7  the train step is traced
   8  all its inputs are made
   9  each gives a batch
  10  the train step is compiled"""

_GIB = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(abstract_experiment.ExperimentOptions):
  """The flags of this tool."""

  check_level: int = command_line.flag(
    0, 'What', 'How much to check: 0 is least, 10 is all.'
  )


class _Checks:
  """The levels; each returns what it found, or raises."""

  def __init__(self, options: Options):
    self._options = options
    self._declared: Any = None
    self._partitioner: partitioning.Partitioner | None = None
    self._inputs: list[Any] = []

  def levels(self) -> Iterator[tuple[int, Callable[[], str]]]:
    """(level, check) pairs, the cheapest first."""
    checks = {
      0: self.found, 1: self.task, 3: self.model, 5: self.datasets,
      6: self.mesh, 7: self.step, 8: self.inputs, 9: self.batches,
      10: self.compiled,
    }  # fmt: skip
    return iter(checks.items())

  def found(self) -> str:
    settings = overrides.parse(self._options.set)
    options = self._options
    experiment = experiments.find(options.exp, settings, options.fdl)
    experiment.validate()
    return f'{type(experiment).__module__}.{type(experiment).__qualname__}'

  def task(self) -> str:
    self._declared = abstract_experiment.declare(self._options)
    task = self._declared.task.Instantiate()
    return f'{type(task).__name__} of {type(task.model).__name__}'

  def model(self) -> str:
    self._spec = self._declared.input_spec()
    model = self._declared.task.Instantiate().model
    model.abstract_init_with_mdl_config(self._spec)
    variables = model.abstract_init_with_metadata(self._spec)
    return f'{len(jax.tree.leaves(variables))} variables'

  def datasets(self) -> str:
    experiment = self._declared.experiment
    found = [*experiment.datasets(), *experiment.decode_datasets()]
    self._configs = found
    return f'{len(found)} datasets'

  def mesh(self) -> str:
    self._partitioner = partitioning.create_partitioner(
      self._declared.task, self._spec
    )
    metadata = self._partitioner.state_metadata
    gib = memory.state_bytes_per_device(metadata) / _GIB
    return (
      f'{self._partitioner.num_params} parameters on'
      f' {len(self._partitioner.devices)} devices, {gib:.3f} GiB of state each'
    )

  def step(self) -> str:
    self._partitioner.train_step().lower()
    return 'traced'

  def inputs(self) -> str:
    self._inputs = [config.Instantiate() for config in self._configs]
    return ', '.join(i.name or type(i).__name__ for i in self._inputs)

  def batches(self) -> str:
    sizes = [len(jax.tree.leaves(i.get_next_padded())) for i in self._inputs]
    return f'{sum(sizes)} arrays'

  def compiled(self) -> str:
    self._partitioner.train_step().compile()
    return 'compiled'


def main(argv: Sequence[str] = sys.argv) -> int:
  """Prints a line for each level that is passed; returns the exit code.

  Raises:
    ValueError: a level is not passed; the message says which.
  """
  options = command_line.parse(Options, argv, _USAGE)
  for level, check in _Checks(options).levels():
    if level > max(0, options.check_level):
      break
    try:
      found = check()
    except Exception as e:
      kind = '' if isinstance(e, ValueError) else f'{type(e).__name__}: '
      raise ValueError(f'level {level} is not passed: {kind}{e}') from e
    name = check.__name__
    print(f'level {level:2}  {name:9}  ok  {found}', flush=True)
  return 0


if __name__ == '__main__':
  tool.console(main)
