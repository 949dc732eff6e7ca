# SPDX-License-Identifier: Apache-2.0
"""Compilation targets: an experiment partitioned over a machine."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import jax

from pax import base_experiment, partitioning
from pax.aot import topology as topology_lib
from pax.tools import abstract_experiment
from praxis import pax_fiddle

# A mesh may use a part of the devices of a machine of up to this many.
_MAX_PARTIAL_DEVICES = 8
# Packages of experiments that are for GPUs.
_GPU_PACKAGES = ('gpu', 'nvidia')


@dataclasses.dataclass(frozen=True)
class Target:
  """An experiment partitioned over the devices of a machine."""

  experiment: abstract_experiment.AbstractExperiment
  topology: topology_lib.Topology
  # Over as many simulated devices where the compiler is missing.
  partitioner: partitioning.Partitioner
  # Time to build the configuration and the partitioner.
  seconds: float


def create_target(
  options: abstract_experiment.ExperimentOptions, topology_name: str | None
) -> Target:
  """Partitions an experiment over a machine.

  Args:
    options: the experiment and its overrides.
    topology_name: the machine; None: the experiment's TOPOLOGY, or the default
      for its mesh.

  Raises:
    ValueError: the experiment or the machine is unknown, or the mesh does not
      match the machine.
  """
  start = time.monotonic()

  def num_devices(
    experiment: base_experiment.BaseExperiment, task: pax_fiddle.Config[Any]
  ) -> int:
    topology = _topology_of(topology_name, experiment, task.model)
    return _num_mesh_devices(task.model, topology)

  declared = abstract_experiment.declare(options, num_devices)
  model = declared.task.model
  topology = _topology_of(topology_name, declared.experiment, model)
  partitioner = _create_partitioner(declared, topology)
  seconds = time.monotonic() - start
  return Target(declared, topology, partitioner, seconds)


def _topology_of(
  name: str | None,
  experiment: base_experiment.BaseExperiment,
  model: pax_fiddle.Config[Any],
) -> topology_lib.Topology:
  name = name or getattr(experiment, 'TOPOLOGY', None)
  if name is None:
    packages = type(experiment).__module__.split('.')
    is_gpu = any(package in packages for package in _GPU_PACKAGES)
    platform = 'gpu' if is_gpu else 'tpu'
    name = topology_lib.default_topology(*_mesh_sizes(model), platform=platform)
  return topology_lib.parse_topology(name)


def _mesh_sizes(model: pax_fiddle.Config[Any]) -> tuple[int, int]:
  """Devices in a slice of the mesh, and the number of slices."""
  return (
    math.prod(model.ici_mesh_shape or [1]),
    math.prod(model.dcn_mesh_shape or [1]),
  )


def _num_mesh_devices(
  model: pax_fiddle.Config[Any], topology: topology_lib.Topology
) -> int:
  """Devices that the mesh takes, after checks that it matches the machine."""
  if model.ici_mesh_shape is None:
    return topology.num_devices
  ici, dcn = _mesh_sizes(model)
  mesh_size, available = ici * dcn, topology.num_devices
  is_partial_host = (
    mesh_size < available <= _MAX_PARTIAL_DEVICES and topology.num_slices == 1
  )
  if mesh_size != available and not is_partial_host:
    fitting = topology_lib.default_topology(
      ici, dcn, platform=topology.platform
    )
    raise ValueError(
      f'the mesh {_mesh_text(model)} has {mesh_size} devices and'
      f' {topology.name} has {available}; use'
      f' --topology={fitting} or --set ICI_MESH_SHAPE=...'
    )
  slices = topology.num_slices
  if topology.platform == 'tpu' and slices not in (1, dcn):
    raise ValueError(
      f'{topology.name} has {slices} slices and the mesh {_mesh_text(model)}'
      f' has {dcn}; set ICI_MESH_SHAPE to the mesh of a slice and'
      ' DCN_MESH_SHAPE to that of the slices'
    )
  return mesh_size


def _mesh_text(model: pax_fiddle.Config[Any]) -> str:
  """Returns `[1, 8, 1]`, or `[1, 8, 1] x [2, 1, 1]` for several slices."""
  shapes = (model.ici_mesh_shape, model.dcn_mesh_shape)
  return ' x '.join(str(list(shape)) for shape in shapes if shape)


def _create_partitioner(
  declared: abstract_experiment.AbstractExperiment,
  topology: topology_lib.Topology,
) -> partitioning.Partitioner:
  partitioner = declared.experiment.partitioner()
  if partitioner is not None:
    if topology.platform != 'cpu':
      raise ValueError(
        f'{declared.name} creates its own partitioner, over the devices of this'
        ' host; use --topology=cpu:N to simulate N of them'
      )
    task = declared.task.Instantiate()
    partitioner.setup(task, None, partitioner.init_spec(declared.input_spec()))
    return partitioner
  has_compiler = topology.missing_compiler() is None
  devices = topology.devices() if has_compiler else jax.devices()
  if declared.task.model.ici_mesh_shape is not None:
    devices = devices[: abstract_experiment.num_devices(declared.task)]
  return partitioning.partition_task(
    declared.task, declared.input_spec(), devices=devices
  )
