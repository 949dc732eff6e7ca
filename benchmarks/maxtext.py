# SPDX-License-Identifier: Apache-2.0
"""Estimated step time of Pax and MaxText: same model, mesh and compiler.

    python -m benchmarks.maxtext --source=MAXTEXT/src \
        --exp=lm_cloud.LmCloudSpmd2BLimitSteps --topology=v4-8

Compiles the train step of an experiment and MaxText's of the same sizes for a
machine that is not attached, and prints the step time that XLA's cycles
estimate for each (docs/aot.md). Run it in an environment with libtpu and the
requirements of both; docs/benchmarks.md has the commands. `--pax_set` changes
the experiment, as --set of Pax does, `--set` settings of MaxText;
`--pax_options` compiles it with the compiler options of Pax. Of MaxText's
buffers of experts' rows, those of balanced experts count, as of ours, if
`ragged_buffer_factor` says how many they are.
"""

# bazel: deps=//pax/tasks:experiments
from __future__ import annotations

import argparse
import importlib
import pathlib
import sys
import tempfile
import typing
from typing import Any

from benchmarks import maxtext_settings, measure
from pax.aot import analysis, target
from pax.aot.hlo import collectives, hlo_parser, kernel_time
from pax.aot.report import roofline
from pax.partitioning import compiler_options
from pax.tasks.lm.params import fine_tuning
from pax.tools import abstract_experiment, flops

# MaxText is no package of the lock.
_TRAIN_COMPILE = 'maxtext.trainers.pre_train.train_compile'


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--source', required=True, help='src of MaxText')
  parser.add_argument('--exp', required=True)
  parser.add_argument('--topology', required=True)
  parser.add_argument('--pax_set', action='append', default=[])
  parser.add_argument('--set', action='append', default=[], help='NAME=VALUE')
  parser.add_argument('--pax_options', action='store_true')
  options = parser.parse_args()
  compiled = target.create_target(
    abstract_experiment.ExperimentOptions(
      exp=options.exp, set=tuple(options.pax_set)
    ),
    options.topology,
  )
  ours = _times(analysis.analyze(compiled, full_effort=True).report.roofline)
  experiment = compiled.experiment.experiment
  if isinstance(experiment, fine_tuning.HuggingFaceLm):
    settings = maxtext_settings.mixture_settings(experiment)
  else:
    settings = maxtext_settings.settings(
      typing.cast(maxtext_settings.LanguageModelConstants, experiment)
    )
  theirs = _times(_maxtext_roofline(options, compiled, settings))
  model_s = ours.mfu * ours.step_s
  measure.report(
    'maxtext',
    {
      'exp': options.exp,
      'topology': compiled.topology.name,
      'pax_set': options.pax_set,
      'maxtext': options.set,
      'pax_options': options.pax_options,
      'mfu_over_maxtext': round(theirs.step_s / ours.step_s, 4),
      'pax': _summary(ours, model_s),
      'maxtext_step': _summary(theirs, model_s),
    },
  )


class _Times(typing.NamedTuple):
  """A step by XLA's estimates of cycles; times in seconds."""

  step_s: float
  mosaic_s: float
  waiting_s: float
  mfu: float


def _times(step: roofline.Roofline | None) -> _Times:
  if step is None or step.compiler_s is None:
    raise SystemExit('--topology must be of TPUs, whose cycles XLA estimates')
  return _Times(
    step_s=step.compiler_s,
    mosaic_s=step.mosaic_s or 0.0,
    waiting_s=step.waiting_s or 0.0,
    mfu=step.compiler_mfu or 0.0,
  )


def _summary(step: _Times, model_s: float) -> dict[str, float]:
  return {
    'mfu': round(model_s / step.step_s, 4),
    'step_s': round(step.step_s, 4),
    'mosaic_s': round(step.mosaic_s, 4),
    'waiting_s': round(step.waiting_s, 4),
  }


def _maxtext_roofline(
  options: argparse.Namespace,
  compiled: target.Target,
  settings: dict[str, Any],
) -> roofline.Roofline | None:
  """Compiles MaxText's step by its own program, and analyzes it as ours."""
  topology = compiled.topology
  if topology.chip is None:
    return None
  sys.path.insert(0, options.source)
  train_compile: Any = importlib.import_module(_TRAIN_COMPILE)

  step: dict[str, Any] = {}
  compile_step = train_compile.jit_and_compile

  def keep_jaxpr(config: Any, jitted: Any, args: Any) -> None:
    del config
    step['jaxpr'] = jitted.trace(*args).jaxpr.jaxpr

  def keep_executable(func: Any, args: Any, kwargs: Any, mesh: Any, *rest: Any):
    step['mesh'] = mesh
    step['executable'] = compile_step(func, args, kwargs, mesh, *rest)
    return step['executable']

  train_compile.maxtext_utils.maybe_dump_jaxpr = keep_jaxpr
  train_compile.jit_and_compile = keep_executable
  config = _config(options, compiled, settings)
  base = pathlib.Path(options.source, 'maxtext/configs/base.yml')
  with tempfile.TemporaryDirectory() as folder:
    config['base_output_directory'] = folder
    arguments = [f'{name}={value}' for name, value in config.items()]
    train_compile.main(['train_compile', str(base), *arguments])
  kernels = flops.pallas_kernels(step['jaxpr'])
  # Those of experts have no name. The default, -1, is the worst case.
  factor = max(1.0, float(config.get('ragged_buffer_factor', -1)))
  if '' in kernels:
    kernels[''] = int(kernels[''] / factor)
  mesh = step['mesh']
  module = hlo_parser.parse(step['executable'].as_text())
  dcn_shape = [settings.get(f'dcn_{a}_parallelism', 1) for a in mesh.axis_names]
  positions = collectives.MeshTopology.from_mesh(
    mesh, dcn_shape if topology.num_slices > 1 else None, topology.torus
  )
  return roofline.compute_roofline(
    topology.chip,
    model_flops=0.0,
    matmul_flops=0.0,
    memory_bytes=None,
    collectives=collectives.find_collectives(module, positions),
    kernels=kernel_time.kernel_seconds(module, topology.chip, kernels),
  )


def _config(
  options: argparse.Namespace,
  compiled: target.Target,
  settings: dict[str, Any],
) -> dict[str, Any]:
  """Returns the settings of MaxText's train_compile."""
  name, _, slices = compiled.topology.name.partition('x')
  config = settings | {
    'run_name': 'compile',
    'compile_topology': name,
    'compile_topology_num_slices': int(slices or 1),
    'dataset_type': 'synthetic',
    'enable_checkpointing': False,
    'attention': 'flash',
  }
  config.pop('num_slices')
  if options.pax_options:
    task, mesh = compiled.partitioner.task, compiled.partitioner.mesh
    ours = compiler_options.step_options(
      mesh.devices.flat[0], task.train.compiler_options
    )
    config['compile_xla_flags'] = ' '.join(
      f'--{name}={str(value).lower()}' for name, value in ours.items()
    )
  return config | dict(argument.split('=', 1) for argument in options.set)


if __name__ == '__main__':
  main()
