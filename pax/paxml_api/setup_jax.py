# SPDX-License-Identifier: Apache-2.0
"""Sets JAX up for programs of users, as `pax.main` does for itself."""

from __future__ import annotations

import dataclasses

import jax
from absl import logging

from pax.runner import distributed, unsupported_flags
from pax.runner.options import RunOptions


@dataclasses.dataclass
class JaxDistributedOptions:
  """Which process of a job this is."""

  # Address of process 0, as host:port.
  coordinator_address: str
  # Number of processes.
  num_processes: int
  # Number of this process, from 0.
  process_id: int


def setup_jax(
  globally_use_hardware_rng: bool,
  jax_backend_target: str | None,
  jax_xla_backend: str | None,
  jax_enable_checks: bool,
  jax_traceback_filtering_option: str = 'auto',
  should_initialize_jax_distributed: bool = False,
  jax_distributed_options: JaxDistributedOptions | None = None,
) -> None:
  """Configures JAX, and joins other processes; see the flags of these names.

  Args:
    globally_use_hardware_rng: draw random numbers by the hardware's generator.
    jax_backend_target: must be None, JAX has given it up.
    jax_xla_backend: must be None, like it.
    jax_enable_checks: let JAX check itself.
    jax_traceback_filtering_option: how much of JAX tracebacks show.
    should_initialize_jax_distributed: whether there are other processes.
    jax_distributed_options: which one this is; None asks the environment.

  Raises:
    ValueError: one of the two that must be None is not.
  """
  for name, value in (
    ('jax_backend_target', jax_backend_target),
    ('jax_xla_backend', jax_xla_backend),
  ):
    if value is not None:
      raise ValueError(
        f'{name} must be None, got {value!r}: {unsupported_flags.REFUSED[name]}'
      )
  options = RunOptions(
    globally_use_hardware_rng=globally_use_hardware_rng,
    jax_enable_checks=jax_enable_checks,
    jax_traceback_filtering_option=jax_traceback_filtering_option,
    compilation_cache_dir='',
  )
  if should_initialize_jax_distributed and jax_distributed_options:
    options = dataclasses.replace(
      options,
      multiprocess_gpu=True,
      server_addr=jax_distributed_options.coordinator_address,
      num_hosts=jax_distributed_options.num_processes,
      host_idx=jax_distributed_options.process_id,
    )
  distributed.initialize(options)
  wants_others = should_initialize_jax_distributed
  if wants_others and not jax.distributed.is_initialized():
    jax.distributed.initialize()
  logging.info(
    'Process %d of %d, devices %s',
    jax.process_index(),
    jax.process_count(),
    jax.devices(),
  )
