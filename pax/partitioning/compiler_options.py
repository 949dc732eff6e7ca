# SPDX-License-Identifier: Apache-2.0
"""XLA's compiler options for steps."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping

from absl import logging

Option = bool | int | float | str
# By platform, then by name.
Options = Mapping[str, Mapping[str, Option]]

# Libtpu reads options from both.
_VARIABLES = ('LIBTPU_INIT_ARGS', 'XLA_FLAGS')
_PLATFORMS = ('cpu', 'gpu', 'tpu')
_DEFAULTS: Options = {
  'tpu': {
    # Weights that are sharded over data are gathered while matmuls run.
    'xla_enable_async_all_gather': True,
    # On a 3D torus XLA otherwise gathers by an all-reduce of padded shards,
    # which sends twice the bytes and cannot overlap with matmuls.
    'xla_tpu_prefer_async_allgather_to_allreduce': True,
    # Gradients are reduce-scattered where XLA, for the layout of some shards,
    # otherwise reduces all of them on every device and takes a slice.
    'xla_tpu_relayout_group_size_threshold_for_reduce_scatter': 1,
    # By default XLA decomposes matmuls of gathered activations into loops of
    # smaller matmuls and permutes, which take longer than the gather saves
    # (docs/aot.md). A threshold above any array leaves the matmuls whole.
    'xla_jf_spmd_threshold_for_windowed_einsum_mib': 1_000_000,
  }
}


def step_options(platform: str, of_task: Options) -> dict[str, Option]:
  """Returns the options to compile a step with, by name.

  Those of the task replace the defaults of the platform. Options that
  LIBTPU_INIT_ARGS or XLA_FLAGS name are left to these. Logs each choice once.

  Args:
    platform: of the step's devices.
    of_task: `task.train.compiler_options`.

  Raises:
    ValueError: the options of the task are of an unknown platform.
  """
  if unknown := [name for name in of_task if name not in _PLATFORMS]:
    raise ValueError(
      f'task.train.compiler_options must have keys of {_PLATFORMS}, got'
      f" {unknown[0]!r}; write {{'tpu': {{'xla_...': VALUE}}}}"
    )
  named = {
    argument.lstrip('-').partition('=')[0]
    for variable in _VARIABLES
    for argument in os.environ.get(variable, '').split()
  }
  options = {**_DEFAULTS.get(platform, {}), **of_task.get(platform, {})}
  options = {name: x for name, x in options.items() if name not in named}
  if options:
    _log_once(platform, ', '.join(f'{name}={x}' for name, x in options.items()))
  return options


@functools.cache
def _log_once(platform: str, options: str) -> None:
  logging.info('Compiler options of steps on %s: %s.', platform, options)
