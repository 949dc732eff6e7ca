# SPDX-License-Identifier: Apache-2.0
"""Analysis of a target's train step: sharding, trace, compilation, report.

The step is that of training: the same partitioner creates it, from shapes and
for the devices of the target.
"""

from __future__ import annotations

import dataclasses
import math
import time

import jax

from pax.aot import compilation
from pax.aot.hlo import (
  bytes_accessed,
  collectives,
  hlo_parser,
  kernel_time,
)
from pax.aot.jaxpr import jaxpr_walk, liveness
from pax.aot.report import advice, memory, roofline
from pax.aot.report.step_report import Flops, Report
from pax.aot.target import Target
from pax.summaries import mfu
from pax.tools import flops as flops_lib
from praxis.py_utils import jaxprs

# Values of --check_level; those below are of `pax validate_config`.
MESH, TRACED, COMPILED = 6, 7, 10

# With more effort the compiler's allocations change by less than this.
_EFFORT_TOLERANCE = 0.1


@dataclasses.dataclass(frozen=True)
class Analysis:
  """The report, and the compiled step; None: not compiled."""

  report: Report
  compiled_step: compilation.CompiledStep | None


def analyze(
  target: Target, level: int = COMPILED, *, full_effort: bool = False
) -> Analysis:
  """Returns the analysis of a train step.

  Args:
    target: the experiment and its machine.
    level: MESH, TRACED or COMPILED.
    full_effort: compiles as for a run. Otherwise with the least effort, a
      quarter of the time, and again with full effort if the memory is close to
      the capacity.
  """
  report = dataclasses.replace(_report_sharding(target), level=level)
  if level < TRACED:
    return Analysis(report, None)
  trace = _trace_step(target)
  report = _add_trace(target, report, trace)
  if level < COMPILED:
    return Analysis(report, None)
  if reason := target.topology.missing_compiler():
    return Analysis(dataclasses.replace(report, not_compiled=reason), None)
  analysis = _compile(target, report, trace, full_effort=full_effort)
  if full_effort or not _is_borderline(analysis.report.memory):
    return analysis
  again = _compile(target, report, trace, full_effort=True)
  return dataclasses.replace(
    again,
    report=dataclasses.replace(
      again.report,
      compile_s=sum(a.report.compile_s or 0.0 for a in (analysis, again)),
      # Full effort unrolls loops, which XLA's count of FLOPs then includes.
      flops=analysis.report.flops,
    ),
  )


def _is_borderline(step_memory: memory.Memory) -> bool:
  if not step_memory.capacity:
    return False
  difference = abs(step_memory.total / step_memory.capacity - 1)
  return difference <= _EFFORT_TOLERANCE


def _state_memory(target: Target) -> memory.Memory:
  chip = target.topology.chip
  capacity = chip.usable_bytes if chip else None
  return memory.state_memory(target.partitioner, capacity)


# Sharding: the state on the mesh.


def _report_sharding(target: Target) -> Report:
  partitioner, topology = target.partitioner, target.topology
  axis_names = partitioner.mesh.axis_names
  dcn_mesh = target.experiment.task.model.dcn_mesh_shape
  arrays = memory.state_arrays(partitioner)
  state = _state_memory(target)
  num_devices = len(partitioner.devices)
  return Report(
    experiment=target.experiment.name,
    level=MESH,
    topology=topology.name,
    device_kind=topology.device_kind,
    num_devices=num_devices,
    mesh=dict(partitioner.mesh.shape),
    dcn_mesh=dict(
      zip(axis_names, dcn_mesh or [1] * len(axis_names), strict=True)
    ),
    num_params=partitioner.num_params,
    batch=_batch_shape(target),
    arrays=arrays,
    memory=state,
    setup_s=target.seconds,
    fits=False if state.fits is False else None,
    warnings=advice.warnings(arrays, [], None, num_devices),
    advice=advice.memory_savings(state, arrays) if state.fits is False else [],
  )


def _batch_shape(target: Target) -> tuple[int, ...]:
  """The shape of the largest array of a global batch."""
  leaves = jax.tree.leaves(target.partitioner.input_spec)
  return max((leaf.shape for leaf in leaves), key=math.prod)


# Trace: FLOPs and estimated memory.


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Trace:
  """Analyses of the step's jaxpr."""

  flops: Flops
  # FLOPs on all devices with one iteration of each loop, as XLA counts.
  flops_loops_once: float
  # FLOPs of one call of each Pallas kernel, by name.
  mosaic_flops: dict[str, int]
  peak: liveness.PeakMemory
  seconds: float

  @property
  def buffers(self) -> list[memory.Buffer]:
    """The arrays at the estimated peak, the largest first."""
    return [
      memory.Buffer(
        num_bytes=array.num_bytes, shape=array.type_text, op_name=array.op_name
      )
      for array in self.peak.arrays
    ]


def _trace_step(target: Target) -> _Trace:
  start = time.monotonic()
  step = target.partitioner.train_step()
  # The devices are simulated CPUs where the compiler is missing.
  platform = target.topology.platform
  jaxpr = jaxprs.select_platform(
    step.trace(platform=platform).jaxpr.jaxpr, platform
  )
  by_primitive = flops_lib.count_jaxpr(jaxpr)
  loops_once = flops_lib.count_jaxpr(jaxpr, loops_once=True)
  matmuls = sum(by_primitive.get(p, 0) for p in jaxpr_walk.CONTRACTIONS)
  return _Trace(
    flops=Flops(
      model=_model_flops(target, matmuls),
      matmuls=matmuls,
      total=sum(by_primitive.values()),
    ),
    flops_loops_once=sum(loops_once.values()),
    mosaic_flops=flops_lib.pallas_kernels(jaxpr),
    peak=liveness.estimate_peak_memory(jaxpr, target.partitioner),
    seconds=time.monotonic() - start,
  )


def _model_flops(target: Target, matmul_flops: float) -> float:
  """FLOPs that the model needs, at most those of the step's matmuls.

  The formula holds for sequences of tokens only; of other batches it is the
  matmuls, recomputation included.
  """
  batch_size, *example_shape = _batch_shape(target)
  if len(example_shape) != 1:
    return matmul_flops
  hparams = target.partitioner.var_weight_hparams
  (learner,) = target.partitioner.task.learners
  formula = mfu.model_flops(
    hparams,
    batch_size=batch_size,
    seq_len=example_shape[0],
    learned=learner.bprop_mask(hparams),
  )
  return min(formula.flops_per_step, matmul_flops)


def _add_trace(target: Target, report: Report, trace: _Trace) -> Report:
  estimate = dataclasses.replace(
    report.memory,
    activations=trace.peak.saved_activations,
    temporaries=trace.peak.temporaries,
  )
  report = dataclasses.replace(
    report,
    memory=estimate,
    predicted=estimate,
    fits=None,
    advice=[],
    flops=trace.flops,
    roofline=_roofline(target, trace),
    trace_s=trace.seconds,
  )
  if estimate.fits is not False:
    return report
  return _does_not_fit(report, estimate, trace.buffers)


def _does_not_fit(
  report: Report,
  step_memory: memory.Memory,
  buffers: list[memory.Buffer],
) -> Report:
  return dataclasses.replace(
    report,
    memory=step_memory,
    fits=False,
    buffers=buffers,
    advice=advice.memory_savings(step_memory, report.arrays),
  )


# Compilation: XLA's memory, and the collectives and kernels of the program.


def _compile(
  target: Target, report: Report, trace: _Trace, *, full_effort: bool
) -> Analysis:
  start = time.monotonic()
  try:
    compiled = compilation.compile_step(
      target.partitioner.train_step(), full_effort=full_effort
    )
  except compilation.DoesNotFitError as error:
    report = dataclasses.replace(
      _does_not_fit(
        report,
        _rejected_memory(target, report, error),
        error.buffers or trace.buffers,
      ),
      compile_s=time.monotonic() - start,
      full_effort=full_effort,
    )
    return Analysis(report, None)
  is_gpu = target.topology.platform == 'gpu'
  step_memory = memory.compiled_memory(
    _state_memory(target),
    compiled.memory_analysis,
    compiled.module,
    is_fragmentation_allocated=is_gpu,
  )
  flops = trace.flops
  if not full_effort or target.topology.platform != 'tpu':
    # With full effort the TPU compiler unrolls loops.
    flops = _compare_with_xla(target, trace, compiled)
  sent = collectives.find_collectives(compiled.module, _mesh_topology(target))
  warnings = advice.warnings(report.arrays, sent, flops, report.num_devices)
  if is_gpu:
    warnings = [*advice.gpu_preallocation_warnings(step_memory), *warnings]
  report = dataclasses.replace(
    report,
    memory=step_memory,
    flops=flops,
    collectives=collectives.totals(sent),
    roofline=_roofline(
      target, trace, compiled.module, sent, has_cycles=full_effort
    ),
    compile_s=compiled.seconds,
    full_effort=full_effort,
    fits=step_memory.fits,
    buffers=[],
    warnings=warnings,
    advice=[],
  )
  if step_memory.fits is False:
    report = _does_not_fit(report, step_memory, trace.buffers)
  else:
    report = _add_steps_besides_update(target, report, full_effort=full_effort)
  return Analysis(report, compiled)


def _add_steps_besides_update(
  target: Target, report: Report, *, full_effort: bool
) -> Report:
  """Returns the report with the memory of the other steps of the program."""
  experiment = target.experiment
  program = experiment.experiment.train_programs()[0]
  steps = program.steps_besides_update(
    target.partitioner, experiment.tree.train_input
  )
  memories: dict[str, memory.Memory] = {}
  for name, step in steps.items():
    try:
      compiled = compilation.compile_step(step, full_effort=full_effort)
    except compilation.DoesNotFitError as error:
      memories[name] = _rejected_memory(target, report, error)
      continue
    memories[name] = memory.compiled_memory(
      _state_memory(target),
      compiled.memory_analysis,
      None,
      is_fragmentation_allocated=target.topology.platform == 'gpu',
    )
  rejected = [name for name, x in memories.items() if x.fits is False]
  return dataclasses.replace(
    report,
    memory_besides_update=memories,
    fits=False if rejected else report.fits,
    advice=[*report.advice, *map(advice.decoding_savings, rejected)],
  )


def _rejected_memory(
  target: Target, report: Report, error: compilation.DoesNotFitError
) -> memory.Memory:
  """Memory of a step that XLA rejects; the estimate if XLA gives no figure."""
  capacity = error.capacity or report.memory.capacity
  if error.required_bytes is None:
    return dataclasses.replace(report.memory, capacity=capacity)
  state = _state_memory(target)
  temporaries = max(0.0, error.required_bytes - state.total)
  return dataclasses.replace(state, temporaries=temporaries, capacity=capacity)


def _compare_with_xla(
  target: Target, trace: _Trace, compiled: compilation.CompiledStep
) -> Flops:
  per_device = trace.flops_loops_once / len(target.partitioner.devices)
  xla_flops = compiled.cost_analysis.get('flops', 0.0)
  ratio = xla_flops / per_device if per_device and xla_flops > 0 else None
  return dataclasses.replace(trace.flops, xla_ratio=ratio)


def _mesh_topology(target: Target) -> collectives.MeshTopology:
  topology = target.topology
  dcn_shape = target.experiment.task.model.dcn_mesh_shape
  return collectives.MeshTopology.from_mesh(
    target.partitioner.mesh,
    dcn_shape if topology.num_slices > 1 else None,
    topology.torus,
  )


def _roofline(
  target: Target,
  trace: _Trace,
  module: hlo_parser.Module | None = None,
  sent: list[collectives.Collective] | None = None,
  *,
  has_cycles: bool = False,
) -> roofline.Roofline | None:
  """The roofline; None for CPUs.

  Args:
    target: the experiment and its machine.
    trace: analyses of the step's jaxpr.
    module: the compiled step; None: not compiled.
    sent: its collectives; None: not compiled.
    has_cycles: whether XLA's cycle estimates hold: at full effort.
  """
  chip = target.topology.chip
  if chip is None:
    return None
  num_devices = len(target.partitioner.devices)
  memory_bytes = kernels = None
  if module is not None:
    memory_bytes = bytes_accessed.program_bytes(module)
    if has_cycles:
      kernels = kernel_time.kernel_seconds(module, chip, trace.mosaic_flops)
  return roofline.compute_roofline(
    chip,
    model_flops=trace.flops.model / num_devices,
    matmul_flops=trace.flops.matmuls / num_devices,
    memory_bytes=memory_bytes,
    collectives=sent,
    kernels=kernels,
  )
