# SPDX-License-Identifier: Apache-2.0
"""Comparison of remat policies: memory and recomputed FLOPs of a step.

A policy that saves more tensors recomputes less in the backward pass. The step
is traced with each policy, not compiled, so the memory is an estimate
(docs/aot.md).
"""

from __future__ import annotations

import dataclasses
from typing import cast

from pax.aot import analysis, target
from pax.aot.report.step_report import Flops, RematPolicy, Report
from pax.runner import experiments, overrides
from pax.tools import abstract_experiment
from praxis.layers import checkpoint_policy

_CONSTANT = 'CHECKPOINT_POLICY'
# The policies for stacks of transformer layers.
_POLICIES = tuple(
  checkpoint_policy.AutodiffCheckpointType[name]
  for name in (
    'SAVE_NOTHING', 'SAVE_OUT_PROJ', 'SAVE_CONTEXT_AND_OUT_PROJ',
    'SAVE_QKV_OUT_PROJ', 'SAVE_DOT_FOR_MLPERF_200B',
    'SAVE_DOT_EXCEPT_LOGITS_FFN1', 'SAVE_DOT_EXCEPT_LOGITS',
    'SAVE_DOT_WITH_NO_BATCH_DIM',
  )
)  # fmt: skip
# Share of the capacity that the estimate may fill; it is off by some percent.
_MAX_FILL = 0.9


def compare(
  options: abstract_experiment.ExperimentOptions, topology: str | None
) -> list[RematPolicy]:
  """Returns the policies, that with the fewest FLOPs first.

  Args:
    options: the experiment and its overrides.
    topology: the machine; None: the default of the experiment.

  Raises:
    ValueError: the experiment has no constant CHECKPOINT_POLICY.
  """
  experiment = experiments.find(
    options.exp,
    overrides.parse(options.set),
    options.fdl,
    trust_foreign_files=options.trust_foreign_files,
  )
  if not hasattr(experiment, _CONSTANT):
    raise ValueError(
      f'--aot_remat needs an experiment with the constant {_CONSTANT}, got'
      f' {type(experiment).__name__}; leave out the flag'
    )
  policies = [
    _measure(
      analysis.analyze(
        target.create_target(_with_policy(options, policy), topology),
        analysis.TRACED,
      ).report,
      policy,
    )
    for policy in _POLICIES
  ]
  return sorted(policies, key=lambda p: (p.flops, p.num_bytes))


def _with_policy(
  options: abstract_experiment.ExperimentOptions,
  policy: checkpoint_policy.AutodiffCheckpointType,
) -> abstract_experiment.ExperimentOptions:
  setting = f'{_CONSTANT}=AutodiffCheckpointType.{policy.name}'
  return dataclasses.replace(options, set=(*options.set, setting))


def _measure(
  report: Report, policy: checkpoint_policy.AutodiffCheckpointType
) -> RematPolicy:
  capacity, total = report.memory.capacity, report.memory.total
  # A step that has been traced has a count.
  flops = cast(Flops, report.flops)
  return RematPolicy(
    name=policy.name,
    num_bytes=total,
    flops=flops.matmuls,
    fits=None if capacity is None else total <= _MAX_FILL * capacity,
  )
