# SPDX-License-Identifier: Apache-2.0
"""What experiments resolve to, as text that is short and changes visibly.

A family of experiments has one golden file. Its first experiment stands there
whole: size, variables (shape, dtype, initializer, split over the mesh), task
and datasets. Each other one has the lines in which it differs from the nearest
before it: ~ changed, + added, - gone. Where that is longer it stands whole.

Nothing is allocated: variables are declared by abstract initialization, though
the largest model has 10^12 of them.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import os
import pathlib
import re
import types
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import jax
import numpy as np

from pax import experiment_registry
from praxis import base_input, py_utils
from praxis.pytypes import NestedMap

_FOLDER = pathlib.Path(__file__).parent
_TITLE = '=== '


@dataclasses.dataclass(frozen=True)
class Resolved:
  """An experiment, the variables its model declares, and its devices."""

  experiment: Any
  declared: Any
  devices: int

  @functools.cached_property
  def num_params(self) -> int:
    leaves = jax.tree.leaves(self.declared['params'])
    return sum(math.prod(leaf.full_shape) for leaf in leaves)

  def lines(self) -> Iterator[str]:
    """Yields its text, no line twice."""
    yield f'devices : {self.devices}'
    yield f'parameters : {self.num_params}'
    yield from self._variables()
    yield from _set_lines('task', self.experiment.task())
    count = 'local_device_count'
    with mock.patch.object(jax, count, lambda: self.devices):
      datasets = self.experiment.datasets()
    for i, dataset in enumerate(datasets):
      yield from _set_lines(f'datasets[{i}]', dataset)

  def _variables(self) -> Iterator[str]:
    """Yields the variables, those of like layers once."""
    found = collections.Counter()
    for path, weight in py_utils.tree_paths(self.declared):
      shape = ','.join(map(str, weight.full_shape))
      init = f'{weight.init.method}({weight.init.scale:g})'
      split = weight.full_split_dims_mapping
      path = re.sub(r'x_layers_\d+', 'x_layers_*', path)
      dtype = np.dtype(weight.dtype)
      found[f'{path} : {dtype}[{shape}] {init} {split}'] += 1
    for line, times in found.items():
      yield line if times == 1 else f'{times} x {line}'


@functools.cache
def resolve(experiment_class: type) -> Resolved:
  """Returns what an experiment on PERCORE_BATCH_SIZE rows resolves to."""
  experiment = experiment_class()
  task_p = experiment.task()
  devices = math.prod(task_p.model.mesh_shape or [1])
  model = task_p.Instantiate().model
  declared = model.abstract_init_with_metadata(_batch(experiment, devices))
  return Resolved(experiment, declared, devices)


class Family:
  """Experiments with one golden file."""

  def __init__(self, name: str, experiments: Iterable[type]):
    self._path = _FOLDER / 'experiments' / f'{name}.txt'
    self._texts = self._generate(experiments)
    self._made: dict[str, str] = {}

  def made(self, name: str) -> str:
    """Returns the text of one; resolves it and those before it only."""
    while name not in self._made:
      made, text = next(self._texts)
      self._made[made] = text
    return self._made[name]

  def _generate(self, experiments: Iterable[type]) -> Iterator[tuple[str, str]]:
    """Yields the name and the text of each experiment."""
    wholes: dict[str, list[str]] = {}
    for experiment in experiments:
      name, lines = experiment.__name__, list(resolve(experiment).lines())
      shortest = [_title(name), *lines]
      for other, others in wholes.items():
        changes = _changes(others, lines)
        if len(changes) + 1 < len(shortest):
          shortest = [_title(f'{name}, which is {other} but for'), *changes]
      wholes[name] = lines
      yield name, '\n'.join([*shortest, ''])

  @functools.cached_property
  def golden(self) -> dict[str, str]:
    """The accepted texts; with UPDATE_GOLDEN=1 set those that are made."""
    if os.environ.get('UPDATE_GOLDEN') == '1':
      self._path.parent.mkdir(exist_ok=True)
      self._made.update(self._texts)
      self._path.write_text('\n'.join(self._made.values()))
    text = self._path.read_text() if self._path.exists() else ''
    parts = re.split(f'^(?={_TITLE})', text, flags=re.MULTILINE)[1:]
    name_of = lambda part: re.match(rf'{_TITLE}(\w+)', part)[1]
    return {name_of(part): part.rstrip('\n') + '\n' for part in parts}

  def accepted(self, name: str) -> str:
    """The accepted text of one, or how to accept it."""
    return self.golden.get(name, 'run UPDATE_GOLDEN=1 pytest tests/golden')


def registered(*modules: types.ModuleType) -> set[str]:
  """Returns the names of the experiments that modules register."""
  of_modules = tuple(f'{module.__name__}.' for module in modules)
  return {
    name.rpartition('.')[2]
    for name in experiment_registry.get_all()
    if name.startswith(of_modules)
  }


def _batch(experiment: Any, devices: int) -> NestedMap:
  """Returns the shapes of a batch as the experiment says them, or an LM's."""
  with mock.patch.object(jax, 'local_device_count', lambda: devices):
    provider_p = experiment.get_input_specs_provider_params()
  reads_data = provider_p.cls is base_input.DatasetInputSpecsProvider
  if not (reads_data and hasattr(experiment, 'PERCORE_BATCH_SIZE')):
    return provider_p.Instantiate().get_input_specs()
  rows = max(1, round(experiment.PERCORE_BATCH_SIZE * devices))
  shape = (rows, experiment.MAX_SEQ_LEN)
  batch = NestedMap(eval_sample_weights=_spec(shape[:1], np.float32))
  for key in ('ids', 'labels', 'segment_ids', 'segment_pos'):
    batch[key] = _spec(shape, np.int32)
  for key in ('paddings', 'weights'):
    batch[key] = _spec(shape, np.float32)
  return batch


def _spec(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, dtype)


def _title(text: str) -> str:
  return f'{_TITLE}{text}'


def _changes(old: list[str], new: list[str]) -> list[str]:
  """Returns lines that only `new` has (~, or + if the field is new), and -."""
  fields_old, fields_new = set(map(_field, old)), set(map(_field, new))
  gone = [f'- {x}' for x in map(_field, old) if x not in fields_new]
  known = set(old)
  mark = lambda line: '~' if _field(line) in fields_old else '+'
  return gone + [f'{mark(x)} {x}' for x in new if x not in known]


def _field(line: str) -> str:
  return line.partition(' : ')[0]


def _set_lines(of: str, config: Any) -> Iterator[str]:
  """Yields the lines of a config that say something."""
  for line in config.to_text().splitlines():
    path, _, value = line.partition(' : ')
    if value != 'None' and not path.endswith('_split_dims_mapping.cls'):
      yield f'{of}.{line}'
