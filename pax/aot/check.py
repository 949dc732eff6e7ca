# SPDX-License-Identifier: Apache-2.0
"""From an experiment and a machine to the report: declares, traces, compiles.

The step is the one that trains: the same partitioner makes it, for devices that
need not be here, from shapes instead of arrays.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from pax import partitioning
from pax.aot import (
  advice,
  collectives,
  compiling,
  gpus,
  hlo,
  memory,
  prediction,
  reckoned,
  report,
  roofline,
  topology,
  traffic,
)
from pax.summaries import mfu
from pax.tools import declared, flops

# Levels of --check_level, as those of `pax validate_config`.
MESH, TRACED, COMPILED = 6, 7, 10

_PRODUCTS = ('dot_general', 'conv_general_dilated', 'ragged_dot_general')


@dataclasses.dataclass(frozen=True)
class Checked:
  """The report, and what was compiled for it."""

  report: report.Report
  program: compiling.Program | None


class Check:
  """One experiment on one machine."""

  def __init__(
    self, options: declared.ExperimentOptions, topology_name: str | None
  ):
    """Declares the experiment, for the machine named or its own one.

    Raises:
      ValueError: there is no such experiment or machine, or they do not fit
        each other.
    """
    began = time.monotonic()
    self._declared = declared.declare(
      options,
      lambda experiment, task: self._set_machine(
        task, topology_name or _natural(experiment, task)
      ),
    )
    self.partitioner = self._partitioner()
    self._declare_s = time.monotonic() - began

  def run(self, level: int = COMPILED, *, quickly: bool = True) -> Checked:
    """Returns the report, as deep as `level` says.

    `quickly` lets the compiler try less, which takes it a quarter of the time;
    what then fits or misses by little is compiled again.
    """
    base = dataclasses.replace(self._base(), level=level)
    if level < TRACED:
      return Checked(base, None)
    traced = self._traced(base)
    if level < COMPILED:
      return Checked(traced, None)
    if reason := self.topology.missing_compiler():
      return Checked(dataclasses.replace(traced, not_compiled=reason), None)
    checked = self._compiled(traced, quickly)
    held = checked.report.memory
    off = abs(held.total / held.capacity - 1) if held.capacity else 1.0
    if not quickly or off > _NEARLY:
      return checked
    again = self._compiled(traced, quickly=False)
    spent = checked.report.compile_s + again.report.compile_s
    report_again = dataclasses.replace(
      again.report, compile_s=spent, flops=checked.report.flops
    )
    return dataclasses.replace(again, report=report_again)

  def _set_machine(self, task: Any, name: str) -> int:
    """Finds the machine; returns how many devices it has."""
    model = task.model
    ici = _product(model.ici_mesh_shape or [1])
    dcn = _product(model.dcn_mesh_shape or [1])
    self.topology = topology.parse(name)
    wanted, there = ici * dcn, self.topology.num_devices
    if model.ici_mesh_shape is not None:
      small = wanted < there and self.topology.num_slices == 1
      if wanted != there and not (small and there <= _DEVICES_OF_A_HOST):
        raise ValueError(
          f'the mesh {list(model.ici_mesh_shape)} x'
          f' {list(model.dcn_mesh_shape or [])} has {wanted} devices and'
          f' {self.topology.name} has {there}; --topology='
          f'{topology.natural(ici, dcn)} fits, or --set ICI_MESH_SHAPE=...'
        )
      slices = self.topology.num_slices
      if self.topology.platform == 'tpu' and slices not in (1, dcn):
        raise ValueError(
          f'{self.topology.name} has {slices} slices and dcn_mesh_shape'
          f' {list(model.dcn_mesh_shape or [])} is of {dcn}; let'
          ' ICI_MESH_SHAPE be the mesh of a slice and DCN_MESH_SHAPE of slices'
        )
      return wanted
    return there

  def _partitioner(self) -> partitioning.Partitioner:
    found = self._declared
    if create := found.experiment.partitioner():
      if self.topology.platform != 'cpu':
        raise ValueError(
          f'{found.name} makes its partitioner itself, for devices that are'
          ' here; --topology=cpu:N simulates some'
        )
      return create(found.task, found.input_spec())
    devices = jax.devices()
    if not self.topology.missing_compiler():
      devices = self.topology.devices()
    model = found.task.model
    if model.ici_mesh_shape is not None:
      devices = devices[: declared.num_devices(found.task)]
    return partitioning.create_partitioner(
      found.task, found.input_spec(), devices=devices
    )

  def _base(self) -> report.Report:
    partitioner, machine = self.partitioner, self.topology
    names = partitioner.mesh.axis_names
    dcn = self._declared.task.model.dcn_mesh_shape or [1] * len(names)
    arrays = memory.held(partitioner)
    state = self._state_memory()
    leaves = jax.tree.leaves(partitioner.input_spec)
    return report.Report(
      experiment=self._declared.name,
      level=MESH,
      topology=machine.name,
      device_kind=machine.device_kind,
      num_devices=len(partitioner.devices),
      mesh=dict(partitioner.mesh.shape),
      slices=dict(zip(names, dcn, strict=True)),
      num_params=partitioner.num_params,
      batch=max((leaf.shape for leaf in leaves), key=_product),
      arrays=arrays,
      memory=state,
      declare_s=self._declare_s,
      fits=False if state.fits is False else None,
      warnings=advice.warnings(arrays, [], None, len(partitioner.devices)),
      advice=advice.to_fit(state, arrays) if state.fits is False else [],
    )

  def _state_memory(self) -> memory.Memory:
    chip = self.topology.chip
    return memory.of_state(self.partitioner, chip and chip.usable_bytes)

  def _traced(self, base: report.Report) -> report.Report:
    began = time.monotonic()
    step = self.partitioner.train_step()
    # Devices stand in for others where their compiler is missing.
    jaxpr = step.trace(platform=self.topology.platform).jaxpr.jaxpr
    counted = flops.count_jaxpr(jaxpr)
    self._once = sum(flops.count_jaxpr(jaxpr, loops_once=True).values())
    rows, *length = base.batch
    needed = mfu.model_flops(
      self.partitioner.var_weight_hparams,
      batch_size=rows,
      seq_len=length[0] if len(length) == 1 else 1,
    )
    products = sum(counted.get(name, 0) for name in _PRODUCTS)
    # The formula is of tokens, not of images, and counts all experts; then the
    # products themselves are told, with what is computed twice.
    found = report.Flops(
      model=min(needed.flops_per_step, products)
      if len(length) == 1
      else products,
      products=products,
      total=sum(counted.values()),
    )
    guess = prediction.predict(jaxpr, self.partitioner)
    held = dataclasses.replace(
      base.memory,
      activations=guess.activations,
      temporaries=guess.temporaries,
    )
    self._largest = [
      compiling.Buffer(num_bytes=size, shape=shape, op_name=name, what='')
      for size, shape, name in guess.largest
    ]
    return dataclasses.replace(
      base,
      memory=held,
      predicted=held,
      fits=False if held.fits is False else None,
      buffers=self._largest if held.fits is False else [],
      advice=advice.to_fit(held, base.arrays) if held.fits is False else [],
      flops=found,
      roofline=self._roofline(base, found),
      trace_s=time.monotonic() - began,
    )

  def _compiled(self, traced: report.Report, quickly: bool) -> Checked:
    began = time.monotonic()
    try:
      program = compiling.compile_step(
        self.partitioner.train_step(), quickly=quickly
      )
    except compiling.DoesNotFitError as e:
      failed = self._does_not_fit(traced, e)
      seconds = time.monotonic() - began
      return Checked(dataclasses.replace(failed, compile_s=seconds), None)
    model = self._declared.task.model
    between = model.dcn_mesh_shape if self.topology.num_slices > 1 else None
    place = collectives.Place.of(
      self.partitioner.mesh, between, self.topology.shape
    )
    sent = collectives.find(program.module, place)
    held = memory.of_program(
      self._state_memory(), program.memory, program.module
    )
    if self.topology.platform == 'gpu':
      held = gpus.as_allocated(held)
    counted = traced.flops
    if quickly or self.topology.platform != 'tpu':
      # Trying hard, the TPU compiler unrolls loops, which XLA counts once.
      counted = self._with_repeated(traced, program.cost)
    fits = held.fits
    return Checked(
      dataclasses.replace(
        traced,
        memory=held,
        flops=counted,
        collectives=_summed(sent),
        roofline=self._roofline(
          traced, counted, program.module, sent, is_as_run=not quickly
        ),
        compile_s=program.seconds,
        full_effort=not quickly,
        fits=fits,
        buffers=self._largest if fits is False else [],
        warnings=[
          *self._of_platform(held),
          *advice.warnings(traced.arrays, sent, counted, traced.num_devices),
        ],
        advice=advice.to_fit(held, traced.arrays) if fits is False else [],
      ),
      program,
    )

  def _of_platform(self, held: memory.Memory) -> Iterable[str]:
    return gpus.warnings(held) if self.topology.platform == 'gpu' else ()

  def _roofline(
    self,
    base: report.Report,
    counted: report.Flops,
    module: hlo.Module | None = None,
    sent: Sequence[collectives.Collective] | None = None,
    *,
    is_as_run: bool = False,
  ) -> roofline.Roofline | None:
    chip = self.topology.chip
    if chip is None:
      return None
    return roofline.predict(
      chip,
      model_flops=counted.model / base.num_devices,
      product_flops=counted.products / base.num_devices,
      memory_bytes=module and traffic.memory_bytes(module),
      collectives=sent,
      kernel_s=reckoned.kernel_seconds(module, chip) if is_as_run else None,
    )

  def _with_repeated(
    self, traced: report.Report, cost: dict[str, float]
  ) -> report.Flops:
    ours = self._once / traced.num_devices
    theirs = cost.get('flops', 0.0)
    repeated = theirs / ours if ours and theirs > 0 else None
    return dataclasses.replace(traced.flops, repeated=repeated)

  def _does_not_fit(
    self, traced: report.Report, error: compiling.DoesNotFitError
  ) -> report.Report:
    """The report of what the compiler finds too large."""
    held = traced.memory
    if error.needs is not None:
      held = self._state_memory()
      rest = max(0.0, error.needs - held.total)
      held = dataclasses.replace(held, temporaries=rest)
    held = dataclasses.replace(held, capacity=error.capacity or held.capacity)
    return dataclasses.replace(
      traced,
      memory=held,
      fits=False,
      buffers=error.buffers or self._largest,
      advice=advice.to_fit(held, traced.arrays),
    )


# By how much what the compiler allocates may change when it tries harder.
_NEARLY = 0.1
# A part of a host's devices may be used, as of a v4-8 two.
_DEVICES_OF_A_HOST = 8


# Where experiments for GPUs are declared.
_OF_GPUS = ('gpu', 'nvidia')


def _natural(experiment: Any, task: Any) -> str:
  """The machine that an experiment is made for: TOPOLOGY, or as its mesh is."""
  if declared_name := getattr(experiment, 'TOPOLOGY', None):
    return declared_name
  module = type(experiment).__module__.split('.')
  ici, dcn = (
    _product(shape or [1])
    for shape in (task.model.ici_mesh_shape, task.model.dcn_mesh_shape)
  )
  gpus = any(name in module for name in _OF_GPUS)
  return topology.natural(ici, dcn, gpus=gpus)


def _summed(sent: Sequence[collectives.Collective]) -> list[report.Sent]:
  return [
    report.Sent(kind=kind, axes=axes, times=times, ici_bytes=ici, dcn_bytes=dcn)
    for (kind, axes), (times, ici, dcn) in collectives.by_kind_and_axes(
      sent
    ).items()
  ]


def _product(shape: Sequence[int]) -> int:
  size = 1
  for dim in shape:
    size *= dim
  return size
