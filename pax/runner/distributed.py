# SPDX-License-Identifier: Apache-2.0
"""Configures JAX before it creates its backend: devices, processes, cache."""

from __future__ import annotations

import atexit
import os
import random
import re
import sys
import time

import jax
import jaxlib
from absl import logging

from pax import exit_codes, stop_signals
from pax.files import trusted_files
from pax.runner import console as console_lib
from pax.runner import coordination, error_report, peer_monitor, tpu_vm
from pax.runner.options import RunOptions, UsageError

_FORCED_DEVICES = re.compile(r'--xla_force_host_platform_device_count=(\S+)')
# With XLA's default, a device may enter a collective while its partner waits in
# another one (docs/known_issues.md). A flag that XLA does not know ends the
# process, so that only versions known to have it get it.
_CPU_SCHEDULER_FLAG = '--xla_cpu_enable_concurrency_optimized_scheduler'
_SCHEDULER_JAXLIB = ('0.10.', '0.11.', '0.12.')
# The scheduler that uses the profile of --pgle.
_GPU_SCHEDULER_FLAG = '--xla_gpu_enable_latency_hiding_scheduler'

# JAX's own detection, for processes that the peer monitor does not reach.
_HEARTBEAT_TIMEOUT_SECS = 60
# JAX aborts at its timeout; the message of the peer monitor comes before.
_JAX_TIMEOUT_MARGIN_SECS = 15
_MIN_PROCESSES_FOR_JITTER = 128
_PROFILER_SERVERS: list[object] = []


def initialize(options: RunOptions) -> None:
  """Configures JAX; call it before any use of devices."""
  count = options.host_device_count
  if count is None:
    count = _num_simulated_devices()
  else:
    simulate_devices(count)
  if count > 1:
    _order_collectives()
  if options.pgle:
    _hide_latencies()
  configure(options)
  _set_compilation_cache(
    options.compilation_cache_dir, options.trust_foreign_files
  )
  _join_processes(options)
  if jax.distributed.is_initialized():
    _sleep_jitter(options.startup_random_jitter_max_secs)
  if options.pgle:
    _check_gpu(options.pgle)


def simulate_devices(count: int) -> None:
  """Makes JAX simulate `count` devices on the CPU, and use no others.

  Raises:
    UsageError: `count` is below 1.
    RuntimeError: JAX has created its backend already.
  """
  if count < 1:
    raise UsageError(f'--host_device_count must be at least 1, got {count}')
  jax.config.update('jax_num_cpu_devices', count)
  jax.config.update('jax_platforms', 'cpu')
  xla_flags = _FORCED_DEVICES.sub('', os.environ.get('XLA_FLAGS', ''))
  os.environ['XLA_FLAGS'] = xla_flags.strip()


def _num_simulated_devices() -> int:
  """Returns the number of CPU devices that the environment sets."""
  forced = _FORCED_DEVICES.findall(os.environ.get('XLA_FLAGS', ''))
  # -1 by default, which leaves the number to XLA_FLAGS.
  count = jax.config.values['jax_num_cpu_devices']
  if count < 0 and forced and forced[-1].isdecimal():
    count = int(forced[-1])
  return count


def _order_collectives() -> None:
  """Makes simulated devices enter their collectives in the same order.

  A value of the flag in XLA_FLAGS stays.
  """
  xla_flags = os.environ.get('XLA_FLAGS', '')
  is_known = jaxlib.__version__.startswith(_SCHEDULER_JAXLIB)
  if is_known and _CPU_SCHEDULER_FLAG not in xla_flags:
    os.environ['XLA_FLAGS'] = f'{xla_flags} {_CPU_SCHEDULER_FLAG}=false'.strip()


def _hide_latencies() -> None:
  """Makes XLA for GPUs schedule by latencies.

  Raises:
    UsageError: XLA_FLAGS has the opposite.
  """
  xla_flags = os.environ.get('XLA_FLAGS', '').split()
  names_and_values = [flag.partition('=')[::2] for flag in xla_flags]
  values = [v for name, v in names_and_values if name == _GPU_SCHEDULER_FLAG]
  # Of several the last one counts.
  if values and values[-1].lower() in ('false', '0'):
    raise UsageError(
      f'--pgle needs {_GPU_SCHEDULER_FLAG}, which XLA_FLAGS sets to false; take'
      ' it out of XLA_FLAGS'
    )
  if not values:
    xla_flags.append(f'{_GPU_SCHEDULER_FLAG}=true')
    os.environ['XLA_FLAGS'] = ' '.join(xla_flags)


def _check_gpu(pgle: str) -> None:
  platform = jax.devices()[0].platform
  if platform != 'gpu':
    raise UsageError(
      f'--pgle={pgle} is for GPUs, and this job runs on {platform}: only XLA'
      ' for GPUs schedules by such a profile. Leave the flag out;'
      ' --profile_steps shows where the time of steps goes'
    )


def configure(options: RunOptions) -> None:
  """Sets JAX's options from the flags; keeps JAX's defaults otherwise."""
  if options.globally_use_hardware_rng:
    jax.config.update('jax_default_prng_impl', 'rbg')
  if options.jax_enable_checks:
    jax.config.update('jax_enable_checks', True)
  filtering = options.jax_traceback_filtering_option
  if filtering != 'auto':
    jax.config.update('jax_traceback_filtering', filtering)
  if options.jax_profiler_port is not None:
    # The server stops when it is garbage collected.
    _PROFILER_SERVERS.append(
      jax.profiler.start_server(options.jax_profiler_port)
    )


def _sleep_jitter(max_secs: int) -> None:
  """Sleeps for a random time if there are many processes."""
  if jax.process_count() > _MIN_PROCESSES_FOR_JITTER:
    time.sleep(random.uniform(0, max_secs))


def _set_compilation_cache(directory: str, trust_foreign_files: bool) -> None:
  if not directory:
    return
  path = directory
  if '://' not in directory:
    path = os.path.expanduser(directory)
    if path.startswith('~'):
      logging.info('No home directory: compiled programs are not cached')
      return
    if not trust_foreign_files and not _is_trusted_directory(path):
      return
  jax.config.update('jax_compilation_cache_dir', path)
  # Even a small program takes longer to compile than to read.
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
  # The address of a kernel's partitioner differs between processes, though the
  # program does not.
  jax.config.update('jax_remove_custom_partitioning_ptr_from_cache_key', True)


def _is_trusted_directory(path: str) -> bool:
  """Creates the directory of the cache; warns if others can write programs."""
  try:
    os.makedirs(path, mode=0o700, exist_ok=True)
    trusted_files.check_directory(path)
  except trusted_files.UntrustedFileError as e:
    logging.warning(
      'Compiled programs are not cached: --compilation_cache_dir: %s', e
    )
    return False
  except OSError as e:
    # JAX reports what it cannot read or write.
    logging.info('Cannot check --compilation_cache_dir=%s: %s', path, e)
  return True


def _join_processes(options: RunOptions) -> None:
  if options.multiprocess_gpu or options.server_addr:
    flags = {
      'coordinator_address': options.server_addr,
      'num_processes': options.num_hosts,
      'process_id': options.host_idx,
    }
  elif _is_one_of_several_processes():
    flags = {
      'num_processes': _process_number('JAX_NUM_PROCESSES'),
      'process_id': _process_number('JAX_PROCESS_ID'),
    }
  else:
    return
  # JAX's service would take SIGTERM; stop_agreement replaces it.
  jax.config.update('jax_enable_preemption_service', False)
  _connect(options, **flags)


def _connect(options: RunOptions, **place: str | int | None) -> None:
  """Connects the processes by JAX, and each with the peer monitor."""
  monitors: list[peer_monitor.PeerMonitor] = []

  def start_monitor(address: str, index: int, num_processes: int) -> None:
    if num_processes > 1:
      membership = peer_monitor.Membership(
        index=index,
        num_processes=num_processes,
        coordinator=address,
        timeout_secs=options.peer_timeout_secs,
        join_secs=options.initialization_timeout_secs,
      )
      monitors.append(peer_monitor.start(membership))

  def report_error(status: str) -> None:
    for monitor in monitors:
      monitor.report_jax_error(status)

  coordination.initialize(
    start_monitor,
    report_error,
    peer_monitor.await_verdict,
    **place,
    initialization_timeout=(
      options.initialization_timeout_secs + _JAX_TIMEOUT_MARGIN_SECS
    ),
    heartbeat_timeout_seconds=_HEARTBEAT_TIMEOUT_SECS,
  )
  for monitor in monitors:
    monitor.joined()
  atexit.register(_end_script)


def _end_script() -> None:
  """Announces how a script ends, before JAX waits for the other processes.

  `pax.main` has announced its exit code before. After an uncaught exception the
  others do not come, and this process ends.
  """
  is_interactive = hasattr(sys, 'ps1')
  error = getattr(sys, 'last_value', None)
  if is_interactive or error is None:
    peer_monitor.announce_exit(exit_codes.DONE)
    return
  stop_signals.wait_if_ending()
  peer_monitor.announce_exit(exit_codes.ERROR, error_report.text(error))
  console_lib.flush_streams()
  os._exit(exit_codes.ERROR)


def _is_one_of_several_processes() -> bool:
  """Whether a launcher, Slurm, MPI or a TPU pod started several processes."""
  counts = ('SLURM_NTASKS', 'OMPI_COMM_WORLD_SIZE', 'PMI_SIZE')
  if any((_process_number(name) or 1) > 1 for name in counts):
    # Slurm sets the count in the batch script too, where there is no rank.
    ranks = ('SLURM_PROCID', 'OMPI_COMM_WORLD_RANK', 'PMI_RANK')
    return any(name in os.environ for name in ranks)
  hosts = os.environ.get('TPU_WORKER_HOSTNAMES', '')
  return (
    ',' in hosts
    or 'MEGASCALE_COORDINATOR_ADDRESS' in os.environ
    or 'JAX_COORDINATOR_ADDRESS' in os.environ
    or tpu_vm.is_multihost()
  )


def _process_number(name: str) -> int | None:
  """An environment variable as a number; None lets JAX detect it."""
  text = os.environ.get(name) or None
  if text is not None and not text.isdecimal():
    raise UsageError(f'{name} must be a number from 0, got {text!r}')
  return None if text is None else int(text)
