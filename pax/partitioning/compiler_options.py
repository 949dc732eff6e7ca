# SPDX-License-Identifier: Apache-2.0
"""XLA's compiler options for steps."""

from __future__ import annotations

import os

# Libtpu reads options from both.
_VARIABLES = ('LIBTPU_INIT_ARGS', 'XLA_FLAGS')
_TPU_OPTIONS = {
  # Weights that are sharded over data are gathered while matmuls run.
  'xla_enable_async_all_gather': True,
  # On a 3D torus XLA otherwise gathers by an all-reduce of padded shards, which
  # sends twice the bytes and cannot overlap with matmuls.
  'xla_tpu_prefer_async_allgather_to_allreduce': True,
  # By default XLA decomposes matmuls of gathered activations into loops of
  # smaller matmuls and permutes, which take longer than the gather saves
  # (docs/aot.md). A threshold above any array leaves the matmuls whole.
  'xla_jf_spmd_threshold_for_windowed_einsum_mib': 1_000_000,
}


def step_options(platform: str) -> dict[str, bool | int]:
  """Returns the options to compile a step with, by name.

  Options that LIBTPU_INIT_ARGS or XLA_FLAGS names are left to these.

  Args:
    platform: of the step's devices.
  """
  if platform != 'tpu':
    return {}
  named = {
    argument.lstrip('-').partition('=')[0]
    for variable in _VARIABLES
    for argument in os.environ.get(variable, '').split()
  }
  return {k: v for k, v in _TPU_OPTIONS.items() if k not in named}
