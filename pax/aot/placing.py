# SPDX-License-Identifier: Apache-2.0
"""An experiment on a machine: which one it is made for, and its partitioner."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax

from pax import partitioning
from pax.aot import topology
from pax.tools import abstract_experiment

# A part of a host's devices may be used, as of a v4-8 two.
_DEVICES_OF_A_HOST = 8
# Where experiments for GPUs are declared.
_OF_GPUS = ('gpu', 'nvidia')


@dataclasses.dataclass(frozen=True)
class Placed:
  """What is checked."""

  declared: abstract_experiment.Declared
  topology: topology.Topology
  # For the devices of the machine, or where their compiler is missing for as
  # many simulated ones.
  partitioner: partitioning.Partitioner


def place(
  options: abstract_experiment.ExperimentOptions, name: str | None
) -> Placed:
  """Declares an experiment for the machine `name`, or for its own one.

  Raises:
    ValueError: there is no such experiment or machine, or they do not fit each
      other.
  """
  machines: list[topology.Topology] = []

  def num_devices(experiment: Any, task: Any) -> int:
    machine = topology.parse(name or _natural(experiment, task))
    machines.append(machine)
    return _num_devices(task.model, machine)

  found = abstract_experiment.declare(options, num_devices)
  (machine,) = machines
  return Placed(found, machine, _partitioner(found, machine))


def _num_devices(model: Any, machine: topology.Topology) -> int:
  """How many devices of the machine the mesh has, which has to fit it."""
  if model.ici_mesh_shape is None:
    return machine.num_devices
  ici, dcn = _sizes(model)
  wanted, there = ici * dcn, machine.num_devices
  small = wanted < there <= _DEVICES_OF_A_HOST and machine.num_slices == 1
  if wanted != there and not small:
    raise ValueError(
      f'the mesh {list(model.ici_mesh_shape)} x'
      f' {list(model.dcn_mesh_shape or [])} has {wanted} devices and'
      f' {machine.name} has {there}; --topology={topology.natural(ici, dcn)}'
      ' fits, or --set ICI_MESH_SHAPE=...'
    )
  slices = machine.num_slices
  if machine.platform == 'tpu' and slices not in (1, dcn):
    raise ValueError(
      f'{machine.name} has {slices} slices and dcn_mesh_shape'
      f' {list(model.dcn_mesh_shape or [])} is of {dcn}; let ICI_MESH_SHAPE be'
      ' the mesh of a slice and DCN_MESH_SHAPE of slices'
    )
  return wanted


def _partitioner(
  found: abstract_experiment.Declared, machine: topology.Topology
) -> partitioning.Partitioner:
  if create := found.experiment.partitioner():
    if machine.platform != 'cpu':
      raise ValueError(
        f'{found.name} makes its partitioner itself, for devices that are'
        ' here; --topology=cpu:N simulates some'
      )
    return create(found.task, found.input_spec())
  devices = jax.devices()
  if not machine.missing_compiler():
    devices = machine.devices()
  if found.task.model.ici_mesh_shape is not None:
    devices = devices[: abstract_experiment.num_devices(found.task)]
  return partitioning.create_partitioner(
    found.task, found.input_spec(), devices=devices
  )


def _natural(experiment: Any, task: Any) -> str:
  """The machine that an experiment is made for: TOPOLOGY, or as its mesh is."""
  if declared_name := getattr(experiment, 'TOPOLOGY', None):
    return declared_name
  module = type(experiment).__module__.split('.')
  gpus = any(name in module for name in _OF_GPUS)
  return topology.natural(*_sizes(task.model), gpus=gpus)


def _sizes(model: Any) -> tuple[int, int]:
  """Devices of a slice of the mesh, and slices."""
  return (
    math.prod(model.ici_mesh_shape or [1]),
    math.prod(model.dcn_mesh_shape or [1]),
  )
