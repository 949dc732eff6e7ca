# SPDX-License-Identifier: Apache-2.0
"""Sets JAX up before it looks for devices: simulated ones, hosts, the cache."""

from __future__ import annotations

import os
import random
import re
import time

import jax
from absl import logging

from pax.runner import tpu_vm
from pax.runner.options import RunOptions, UsageError

_FORCED_DEVICES = re.compile(r'--xla_force_host_platform_device_count=\S+')

# After so long without a sign of life of one process the others end.
_HEARTBEAT_TIMEOUT_SECS = 60
_MANY_PROCESSES = 128
_TRACEBACK_FILTERINGS = ('off', 'tracebackhide', 'remove_frames', 'auto')
_PROFILER_SERVERS: list[object] = []


def initialize(options: RunOptions) -> None:
  """Configures JAX; to be called before anything asks for a device."""
  if options.host_device_count is not None:
    simulate_devices(options.host_device_count)
  configure(options)
  _keep_compiled(options.compilation_cache_dir)
  _join_hosts(options)
  if jax.distributed.is_initialized():
    _jitter(options.startup_random_jitter_max_secs)


def simulate_devices(count: int) -> None:
  """Makes JAX find so many devices on the CPU, and no others.

  Raises:
    UsageError: not even one.
    RuntimeError: JAX has looked for devices before.
  """
  if count < 1:
    raise UsageError(f'--host_device_count must be at least 1, got {count}')
  jax.config.update('jax_num_cpu_devices', count)
  jax.config.update('jax_platforms', 'cpu')
  xla_flags = _FORCED_DEVICES.sub('', os.environ.get('XLA_FLAGS', ''))
  os.environ['XLA_FLAGS'] = xla_flags.strip()


def configure(options: RunOptions) -> None:
  """Passes on the flags that only JAX asks for; leaves its defaults."""
  if options.globally_use_hardware_rng:
    jax.config.update('jax_default_prng_impl', 'rbg')
  if options.jax_enable_checks:
    jax.config.update('jax_enable_checks', True)
  filtering = options.jax_traceback_filtering_option
  if filtering not in _TRACEBACK_FILTERINGS:
    raise UsageError(
      f'--jax_traceback_filtering_option={filtering} does not exist; use'
      f' {", ".join(_TRACEBACK_FILTERINGS)}'
    )
  if filtering != 'auto':
    jax.config.update('jax_traceback_filtering', filtering)
  if options.jax_profiler_port is not None:
    # It lives as long as somebody holds it.
    _PROFILER_SERVERS.append(
      jax.profiler.start_server(options.jax_profiler_port)
    )


def _jitter(max_secs: int) -> None:
  """Waits a random time when there are very many processes."""
  if jax.process_count() > _MANY_PROCESSES:
    time.sleep(random.uniform(0, max_secs))


def _keep_compiled(directory: str) -> None:
  if not directory:
    return
  path = directory
  if '://' not in directory:
    path = os.path.expanduser(directory)
    if path.startswith('~'):
      logging.info('no home directory: compiled programs are not kept')
      return
  jax.config.update('jax_compilation_cache_dir', path)
  # A small program takes longer to compile than to read.
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
  # The address of a kernel's partitioner differs in every process; the program
  # that it makes does not.
  jax.config.update('jax_remove_custom_partitioning_ptr_from_cache_key', True)


def _join_hosts(options: RunOptions) -> None:
  given = {
    '--server_addr': options.server_addr,
    '--num_hosts': options.num_hosts,
    '--host_idx': options.host_idx,
  }
  if options.multiprocess_gpu or options.server_addr:
    missing = [name for name, value in given.items() if value is None]
    if missing:
      raise UsageError(
        f'several processes need {" and ".join(missing)} too, as in'
        ' --multiprocess_gpu --server_addr=10.0.0.1:1234 --num_hosts=2'
        ' --host_idx=0'
      )
    jax.distributed.initialize(
      coordinator_address=options.server_addr,
      num_processes=options.num_hosts,
      process_id=options.host_idx,
      heartbeat_timeout_seconds=_HEARTBEAT_TIMEOUT_SECS,
    )
  elif _is_one_of_many():
    jax.distributed.initialize(
      num_processes=_number('JAX_NUM_PROCESSES'),
      process_id=_number('JAX_PROCESS_ID'),
      heartbeat_timeout_seconds=_HEARTBEAT_TIMEOUT_SECS,
    )


def _is_one_of_many() -> bool:
  """Whether the environment says that this is one process of a larger job."""
  counts = ('SLURM_NTASKS', 'OMPI_COMM_WORLD_SIZE', 'PMI_SIZE')
  if any(int(os.environ.get(name) or 1) > 1 for name in counts):
    # Slurm sets its variable in the batch script too, where no rank is.
    ranks = ('SLURM_PROCID', 'OMPI_COMM_WORLD_RANK', 'PMI_RANK')
    return any(name in os.environ for name in ranks)
  hosts = os.environ.get('TPU_WORKER_HOSTNAMES', '')
  return (
    ',' in hosts
    or 'MEGASCALE_COORDINATOR_ADDRESS' in os.environ
    or 'JAX_COORDINATOR_ADDRESS' in os.environ
    or tpu_vm.is_one_of_many()
  )


def _number(name: str) -> int | None:
  """What the environment says, or None for JAX to find out."""
  text = os.environ.get(name)
  if text is not None and not text.isdecimal():
    raise UsageError(f'{name} must be a number from 0, got {text!r}')
  return None if text is None else int(text)
