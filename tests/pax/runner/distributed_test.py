# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""How JAX is set up before it looks for devices."""

from __future__ import annotations

import os
import types

import jax
import pytest

from pax.runner import distributed, options

_FORCED = '--xla_force_host_platform_device_count'
_SCHEDULER = '--xla_cpu_enable_concurrency_optimized_scheduler'
_GPU_SCHEDULER = '--xla_gpu_enable_latency_hiding_scheduler'
VARIABLES = [
  'SLURM_NTASKS',
  'SLURM_PROCID',
  'OMPI_COMM_WORLD_SIZE',
  'OMPI_COMM_WORLD_RANK',
  'TPU_WORKER_HOSTNAMES',
  'MEGASCALE_COORDINATOR_ADDRESS',
  'JAX_COORDINATOR_ADDRESS',
  'JAX_NUM_PROCESSES',
  'JAX_PROCESS_ID',
]


@pytest.fixture
def calls(monkeypatch):
  """What is asked of JAX, instead of doing it."""
  asked = {'config': {}, 'initialize': []}
  monkeypatch.setattr(jax.config, 'update', asked['config'].__setitem__)
  monkeypatch.setattr(
    jax.distributed,
    'initialize',
    lambda **kwargs: asked['initialize'].append(kwargs),
  )
  for name in VARIABLES:
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv('XLA_FLAGS', '')
  return asked


def _initialize(**fields):
  fields = {'compilation_cache_dir': '', **fields}
  distributed.initialize(options.RunOptions(**fields))


def test_nothing_is_touched_without_need(calls):
  _initialize()
  assert calls == {'config': {}, 'initialize': []}


def test_simulated_devices_replace_those_forced_before(calls, monkeypatch):
  forced = '--xla_a=1 --xla_force_host_platform_device_count=8 --xla_b=2'
  monkeypatch.setenv('XLA_FLAGS', forced)
  _initialize(host_device_count=3)
  assert calls['config'] == {'jax_platforms': 'cpu', 'jax_num_cpu_devices': 3}
  assert os.environ['XLA_FLAGS'].split() == [
    *('--xla_a=1', '--xla_b=2', f'{_SCHEDULER}=false'),
  ]


@pytest.mark.parametrize(
  ('count', 'xla_flags', 'expected'),
  [
    (2, '', f'{_SCHEDULER}=false'),
    (1, '', ''),
    (2, f'{_SCHEDULER}=true', f'{_SCHEDULER}=true'),
    (None, f'{_FORCED}=4', f'{_FORCED}=4 {_SCHEDULER}=false'),
    (None, f'{_FORCED}=1', f'{_FORCED}=1'),
    (None, '', ''),
  ],
)
def test_several_simulated_devices_enter_collectives_in_one_order(
  calls, monkeypatch, count, xla_flags, expected
):
  monkeypatch.setenv('XLA_FLAGS', xla_flags)
  monkeypatch.setattr(distributed.jaxlib, '__version__', '0.10.2')
  _initialize(host_device_count=count)
  assert os.environ['XLA_FLAGS'] == expected


def test_other_versions_of_xla_get_no_flag_that_they_may_not_know(
  calls, monkeypatch
):
  monkeypatch.setenv('XLA_FLAGS', '')
  monkeypatch.setattr(distributed.jaxlib, '__version__', '0.13.0')
  _initialize(host_device_count=2)
  assert os.environ['XLA_FLAGS'] == ''


@pytest.mark.parametrize(
  ('xla_flags', 'expected'),
  [
    ('', f'{_GPU_SCHEDULER}=true'),
    ('--xla_a=1', f'--xla_a=1 {_GPU_SCHEDULER}=true'),
    (_GPU_SCHEDULER, _GPU_SCHEDULER),
    (
      f'{_GPU_SCHEDULER}=0 {_GPU_SCHEDULER}=1',
      f'{_GPU_SCHEDULER}=0 {_GPU_SCHEDULER}=1',
    ),
    # Another flag, whose name begins like it.
    (
      f'{_GPU_SCHEDULER}_x=1',
      f'{_GPU_SCHEDULER}_x=1 {_GPU_SCHEDULER}=true',
    ),
  ],
)
def test_a_profile_guides_the_scheduler_of_gpus(
  calls, monkeypatch, xla_flags, expected
):
  gpu = types.SimpleNamespace(platform='gpu')
  monkeypatch.setattr(jax, 'devices', lambda: [gpu])
  monkeypatch.setenv('XLA_FLAGS', xla_flags)
  _initialize(pgle='manual')
  assert os.environ['XLA_FLAGS'] == expected


@pytest.mark.parametrize(
  'xla_flags',
  [
    f'{_GPU_SCHEDULER}=false',
    # As XLA reads them.
    f'{_GPU_SCHEDULER}=0',
    f'{_GPU_SCHEDULER}=False',
    f'{_GPU_SCHEDULER}=true {_GPU_SCHEDULER}=false',
  ],
)
def test_a_profile_without_the_scheduler_is_an_error(
  calls, monkeypatch, xla_flags
):
  monkeypatch.setenv('XLA_FLAGS', xla_flags)
  with pytest.raises(options.UsageError, match='--pgle needs .*XLA_FLAGS'):
    _initialize(pgle='auto')


def test_a_profile_is_for_gpus(calls):
  with pytest.raises(options.UsageError, match='GPUs, .* runs on cpu'):
    _initialize(pgle='auto')


def test_at_least_one_device(calls):
  with pytest.raises(options.UsageError, match='from 1 to 65536, got 0'):
    _initialize(host_device_count=0)


def test_compiled_programs_are_kept(calls, monkeypatch, tmp_path):
  monkeypatch.setenv('HOME', str(tmp_path))
  _initialize(compilation_cache_dir='~/xla')
  kept = calls['config']['jax_compilation_cache_dir']
  assert kept == str(tmp_path / 'xla')
  _initialize(compilation_cache_dir='gs://bucket/xla')
  assert calls['config']['jax_compilation_cache_dir'] == 'gs://bucket/xla'


def test_programs_that_others_can_write_are_not_loaded(calls, tmp_path, caplog):
  cache = tmp_path / 'xla'
  _initialize(compilation_cache_dir=str(cache))
  assert calls['config'].pop('jax_compilation_cache_dir') == str(cache)
  assert cache.stat().st_mode & 0o777 == 0o700
  cache.chmod(0o777)
  _initialize(compilation_cache_dir=str(cache))
  assert 'jax_compilation_cache_dir' not in calls['config']
  assert '--trust_foreign_files' in caplog.text
  _initialize(compilation_cache_dir=str(cache), trust_foreign_files=True)
  assert calls['config']['jax_compilation_cache_dir'] == str(cache)


def test_joins_as_told(calls):
  _initialize(multiprocess_gpu=True, server_addr='h:1', num_hosts=2, host_idx=0)
  (joined,) = calls['initialize']
  del joined['heartbeat_timeout_seconds']
  assert joined == {
    'coordinator_address': 'h:1',
    'num_processes': 2,
    'process_id': 0,
    # The peer monitor gives up before.
    'initialization_timeout': 315,
  }


def test_warns_if_jax_has_another_client(calls, caplog):
  """It creates none here."""
  _initialize(multiprocess_gpu=True, server_addr='h:1', num_hosts=2, host_idx=0)
  assert 'the loss of a process is noticed by JAX only' in caplog.text


def test_says_which_flag_is_missing(calls):
  with pytest.raises(options.UsageError, match='--server_addr and --host_idx'):
    _initialize(multiprocess_gpu=True, num_hosts=2)


@pytest.mark.parametrize(
  ('environment', 'joins'),
  [
    ({'SLURM_NTASKS': '4', 'SLURM_PROCID': '1'}, True),
    ({'SLURM_NTASKS': '4'}, False),
    ({'SLURM_NTASKS': '1', 'SLURM_PROCID': '0'}, False),
    ({'OMPI_COMM_WORLD_SIZE': '2', 'OMPI_COMM_WORLD_RANK': '0'}, True),
    ({'TPU_WORKER_HOSTNAMES': 'a,b'}, True),
    ({'TPU_WORKER_HOSTNAMES': 'localhost'}, False),
  ],
)
def test_joins_the_job_it_is_part_of(calls, monkeypatch, environment, joins):
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  _initialize()
  assert bool(calls['initialize']) == joins


def test_a_count_of_processes_that_is_no_number(calls, monkeypatch):
  monkeypatch.setenv('SLURM_NTASKS', '4x')
  with pytest.raises(options.UsageError, match='SLURM_NTASKS must be a number'):
    _initialize()


def test_a_place_that_the_environment_tells(calls, monkeypatch):
  monkeypatch.setenv('JAX_COORDINATOR_ADDRESS', 'h:1')
  monkeypatch.setenv('JAX_NUM_PROCESSES', '2')
  monkeypatch.setenv('JAX_PROCESS_ID', '1')
  _initialize()
  (joined,) = calls['initialize']
  assert (joined['num_processes'], joined['process_id']) == (2, 1)
  monkeypatch.setenv('JAX_PROCESS_ID', 'one')
  with pytest.raises(options.UsageError, match='JAX_PROCESS_ID must be'):
    _initialize()


def test_tpu_vms_are_joined(calls, monkeypatch):
  monkeypatch.setattr(distributed.tpu_vm, 'is_multihost', lambda: True)
  _initialize()
  assert len(calls['initialize']) == 1


def test_flags_that_jax_asks_for(calls, monkeypatch):
  served = []
  monkeypatch.setattr(jax.profiler, 'start_server', served.append)
  _initialize(
    globally_use_hardware_rng=True,
    jax_enable_checks=True,
    jax_traceback_filtering_option='off',
    jax_profiler_port=9999,
  )
  assert calls['config'] == {
    'jax_default_prng_impl': 'rbg',
    'jax_enable_checks': True,
    'jax_traceback_filtering': 'off',
  }
  assert served == [9999]
  with pytest.raises(
    options.UsageError, match='must be one of off, tracebackhide'
  ):
    _initialize(jax_traceback_filtering_option='some')


def test_very_many_processes_do_not_start_at_once(calls, monkeypatch):
  slept = []
  monkeypatch.setattr(distributed.time, 'sleep', slept.append)
  monkeypatch.setattr(jax.distributed, 'is_initialized', lambda: True)
  for count in (128, 129):
    monkeypatch.setattr(jax, 'process_count', lambda count=count: count)
    _initialize(startup_random_jitter_max_secs=2)
  assert len(slept) == 1 and 0 <= slept[0] <= 2
