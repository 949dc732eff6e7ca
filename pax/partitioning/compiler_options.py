# SPDX-License-Identifier: Apache-2.0
"""XLA's compiler options for steps."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterator, Mapping

import jax
from absl import logging

from pax.summaries import chips

Option = bool | int | float | str
# By platform, then by name.
Options = Mapping[str, Mapping[str, Option]]

# Libtpu reads options from both.
_VARIABLES = ('LIBTPU_INIT_ARGS', 'XLA_FLAGS')
_PLATFORMS = ('cpu', 'gpu', 'tpu')
# Messages of XLA: no such name, and values of the wrong type for options of all
# platforms and of TPUs.
_UNKNOWN = re.compile("No such compile option: '([^']+)'")
_WRONG_VALUE = re.compile(
  r"While setting option (\w+), '|Failed to parse '.*' into flag (\w+)"
)
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
# Of v5p and v6e, by their kind in `chips`. Their asynchronous all-gathers are
# fused with matmuls; on a 3D torus XLA otherwise gathers by an all-reduce. v5e
# fuses them by default; v4 and TPU7x have other asynchronous all-gathers.
_FUSED_ALL_GATHERS: Mapping[str, Option] = {
  'xla_tpu_enable_async_collective_fusion_fuse_all_gather': True
}
_DEFAULTS_OF_CHIPS = {
  'TPU v5': _FUSED_ALL_GATHERS,
  'TPU v6': _FUSED_ALL_GATHERS,
}


def step_options(device: jax.Device, of_task: Options) -> dict[str, Option]:
  """Returns the options to compile a step with, by name.

  Those of the task replace the defaults of the platform and the chip. Options
  that LIBTPU_INIT_ARGS or XLA_FLAGS name are left to these. Logs each choice
  once.

  Args:
    device: one of the step's devices.
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
  platform, chip = device.platform, chips.find(device.device_kind)
  options = {
    **_DEFAULTS.get(platform, {}),
    **_DEFAULTS_OF_CHIPS.get(chip.kind if chip else '', {}),
    **of_task.get(platform, {}),
  }
  options = {name: x for name, x in options.items() if name not in named}
  if options:
    _log_once(platform, ', '.join(f'{name}={x}' for name, x in options.items()))
  return options


@contextlib.contextmanager
def checked(options: Mapping[str, Option]) -> Iterator[None]:
  """Compiles with these options.

  Raises:
    ValueError: XLA has no such option, or the value is not valid.
  """
  try:
    yield
  except jax.errors.JaxRuntimeError as e:
    unknown = _UNKNOWN.search(str(e))
    match = unknown or _WRONG_VALUE.search(str(e))
    name = match and match[match.lastindex or 0]
    if name is None or name not in options:
      raise
    reason = 'the name is unknown' if unknown else 'the value is not valid'
    raise ValueError(
      'task.train.compiler_options must have options of XLA for the platform,'
      f' got {name}={options[name]!r}: {reason}; correct or remove it, in'
      ' COMPILER_OPTIONS if the experiment has that constant'
    ) from e


@functools.cache
def _log_once(platform: str, options: str) -> None:
  logging.info('Compiler options of steps on %s: %s.', platform, options)
