# SPDX-License-Identifier: Apache-2.0
"""Setup of JAX for programs of users, as `pax.main` sets it up."""

from __future__ import annotations

import dataclasses

import jax
from absl import logging

from pax.runner import distributed, unsupported_flags
from pax.runner.options import RunOptions


@dataclasses.dataclass
class JaxDistributedOptions:
  """The place of this process in a multi-process job."""

  # Address of process 0, as host:port.
  coordinator_address: str
  num_processes: int
  # Index of this process, from 0.
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
  """Configures JAX and connects the processes of a job.

  Args:
    globally_use_hardware_rng: Whether random numbers come from the generator of
      the hardware.
    jax_backend_target: Must be None; JAX has removed this flag.
    jax_xla_backend: Must be None; JAX has removed this flag.
    jax_enable_checks: Whether JAX checks its internal invariants.
    jax_traceback_filtering_option: Which frames of JAX tracebacks show.
    should_initialize_jax_distributed: Whether the job has other processes.
    jax_distributed_options: The place of this process; None is detected from
      the environment.

  Raises:
    ValueError: `jax_backend_target` or `jax_xla_backend` is set.
  """
  for name, value in (
    ('jax_backend_target', jax_backend_target),
    ('jax_xla_backend', jax_xla_backend),
  ):
    if value is not None:
      raise ValueError(
        f'{name} must be None, got {value!r}: {unsupported_flags.FLAGS[name]}'
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
  if should_initialize_jax_distributed:
    if not jax.distributed.is_initialized():
      jax.distributed.initialize()
  logging.info(
    'Process %d of %d, devices %s',
    jax.process_index(),
    jax.process_count(),
    jax.devices(),
  )
