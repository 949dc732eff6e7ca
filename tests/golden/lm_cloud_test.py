# SPDX-License-Identifier: Apache-2.0
# bazel: data=//tests/golden:all_files
# bazel: size=large
# bazel: env=PAX_CHECK_SHAPES=0
"""What each lm_cloud experiment resolves to, as text that changes visibly.

    UPDATE_GOLDEN=1 pytest tests/golden    # accepts what it resolves to now

Nothing is allocated: variables are declared by abstract initialisation, though
the largest model has 10^12 of them.
"""

from __future__ import annotations

import functools
import math
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from pax import experiment_registry
from pax.tasks.lm.params import lm_cloud
from praxis import py_utils
from praxis.pytypes import NestedMap

_FOLDER = pathlib.Path(__file__).parent / 'lm_cloud'
# Numbers of parameters in millions, reckoned from the sizes alone: V * D for
# the embedding, 4 * D * D + 2 * D * F for a layer; no biases, no norms.
_MILLIONS = {
  'LargeMlp': 383.8,
  'SmallMlp': 9.4,
  'LmCloudTransformerAdam': 435.4,
  'LmCloudTransformerAdamTest': 57.9,
  'LmCloudTransformerAdamLimitSteps': 158.6,
  'LmCloudSpmdTest': 2.146,
  'LmCloudSpmd2B': 2136.7,
  'LmCloudSpmd2BLimitSteps': 2136.7,
  'LmCloudSpmd32B': 32474,
  'LmCloudSpmd64B': 64500,
  'LmCloudSpmd128B': 129040,
  'LmCloudSpmd256B': 258220,
  'LmCloudSpmd512B': 514040,
  'LmCloudSpmd1024B': 1029970,
  'LmCloudSpmdPipeline9B': 9795,
  'LmCloudSpmdPipeline175B': 174340,
  'LmCloudSpmdMultislice2B': 2136.7,
  'LmCloudSpmdPipelineMultislice2B': 2136.7,
  'LmCloudSpmdPipelineMultislice2BCircular': 2136.7,
}


@functools.cache
def _resolve(name: str) -> tuple[Any, Any, int]:
  """Returns (experiment, declared variables, devices) of an experiment."""
  experiment = experiment_registry.get_experiment(f'lm_cloud.{name}')()
  task_p = experiment.task()
  devices = math.prod(task_p.model.mesh_shape or [1])
  rows = max(1, round(experiment.PERCORE_BATCH_SIZE * devices))
  shape = (rows, experiment.MAX_SEQ_LEN)
  batch = NestedMap()
  for key in ('ids', 'labels', 'segment_ids', 'segment_pos'):
    batch[key] = jax.ShapeDtypeStruct(shape, np.int32)
  for key in ('paddings', 'weights'):
    batch[key] = jax.ShapeDtypeStruct(shape, np.float32)
  model = task_p.Instantiate().model
  return experiment, model.abstract_init_with_metadata(batch), devices


def _num_params(declared: Any) -> int:
  leaves = jax.tree.leaves(declared['params'])
  return sum(math.prod(leaf.full_shape) for leaf in leaves)


def _lines(name: str) -> Iterator[str]:
  experiment, declared, devices = _resolve(name)
  yield f'{name} on {devices} devices'
  yield f'{_num_params(declared)} parameters'
  yield '\n# Variables: shape, dtype, initialiser, split over the mesh'
  for path, weight in py_utils.tree_paths(declared):
    shape = ','.join(map(str, weight.full_shape))
    init = f'{weight.init.method}({weight.init.scale:g})'
    split = weight.full_split_dims_mapping
    yield f'{path} : {np.dtype(weight.dtype)}[{shape}] {init} {split}'
  yield '\n# Task'
  yield from _set_lines(experiment.task())
  for i, dataset in enumerate(experiment.datasets()):
    yield f'\n# Dataset {i}'
    yield from _set_lines(dataset)
  yield ''


def _set_lines(config: Any) -> Iterator[str]:
  """Yields the lines of a config that say something."""
  for line in config.to_text().splitlines():
    path, _, value = line.partition(' : ')
    if value != 'None' and not path.endswith('_split_dims_mapping.cls'):
      yield line


def test_these_are_all():
  registered = {
    name.rpartition('.')[2]
    for name in experiment_registry.get_all()
    if name.startswith(f'{lm_cloud.__name__}.')
  }
  assert registered == set(_MILLIONS)


@pytest.mark.parametrize('name', _MILLIONS)
def test_resolves_to_the_golden_text(name, monkeypatch):
  devices = _resolve(name)[2]
  monkeypatch.setattr(jax, 'local_device_count', lambda: devices)
  text = '\n'.join(_lines(name))
  golden = _FOLDER / f'{name}.txt'
  if os.environ.get('UPDATE_GOLDEN') == '1':
    golden.parent.mkdir(exist_ok=True)
    golden.write_text(text)
  assert golden.exists(), f'run UPDATE_GOLDEN=1 pytest {__file__}'
  assert text == golden.read_text()


@pytest.mark.parametrize('name', _MILLIONS)
def test_size_is_that_of_its_name(name):
  millions = _num_params(_resolve(name)[1]) / 1e6
  biases_and_norms = 0.02
  assert 1 <= millions / _MILLIONS[name] < 1 + biases_and_norms
