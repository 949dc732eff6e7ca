# SPDX-License-Identifier: Apache-2.0
"""From an experiment and a machine to the report: declares, traces, compiles.

The step is the one that trains: the same partitioner makes it, for devices that
need not be here, from shapes instead of arrays.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Sequence

import jax

from pax.aot import (
  advice,
  collectives,
  compiling,
  gpus,
  hlo,
  memory,
  placing,
  prediction,
  reckoned,
  report,
  roofline,
  traffic,
)
from pax.summaries import mfu
from pax.tools import abstract_experiment, flops

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
    self,
    options: abstract_experiment.ExperimentOptions,
    topology_name: str | None,
  ):
    """Declares the experiment, for the machine named or its own one.

    Raises:
      ValueError: there is no such experiment or machine, or they do not fit
        each other.
    """
    began = time.monotonic()
    placed = placing.place(options, topology_name)
    self._declared, self.topology = placed.declared, placed.topology
    self.partitioner = placed.partitioner
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
      batch=max((leaf.shape for leaf in leaves), key=math.prod),
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


def _summed(sent: Sequence[collectives.Collective]) -> list[report.Sent]:
  return [
    report.Sent(kind=kind, axes=axes, times=times, ici_bytes=ici, dcn_bytes=dcn)
    for (kind, axes), (times, ici, dcn) in collectives.by_kind_and_axes(
      sent
    ).items()
  ]
