# SPDX-License-Identifier: Apache-2.0
"""All experiments of Pax, with as many devices as their meshes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import jax

from pax import experiment_registry


def names() -> list[str]:
  """Returns the names of all registered experiments."""
  experiment_registry.import_all_experiments()
  registered = experiment_registry.get_all()
  return sorted(name for name in registered if name.startswith('pax.'))


@contextmanager
def on_its_devices(name: str) -> Iterator[tuple[Any, Any]]:
  """Yields an experiment and its task; JAX reports the devices of its mesh."""
  experiment = experiment_registry.get_all()[name]()
  devices = math.prod(experiment.task().model.mesh_shape or [1])
  with (
    mock.patch.object(jax, 'local_device_count', lambda: devices),
    mock.patch.object(jax, 'device_count', lambda: devices),
  ):
    yield experiment, experiment.task()
