# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Steps are profiled, compiled again and compute the same."""

from __future__ import annotations

import contextlib
import itertools
import os
import warnings

import jax
import pytest

from pax import partitioning
from pax.files import storage, working_copy
from pax.partitioning import profile_guided
from tests.pax import tiny

# Each of three executables first runs a step that is not timed.
_STEPS = 9


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch):
  monkeypatch.setattr(profile_guided, 'NUM_TIMED', 2)
  monkeypatch.setattr(profile_guided, 'NUM_TRACED', 2)
  monkeypatch.setattr(profile_guided, 'NUM_STEPS', _STEPS)


def _partitioner():
  return partitioning.partition_task(
    tiny.task(mesh=[1, 1, 1]),
    tiny.spec(tiny.batch()),
    devices=jax.devices()[:1],
  )


@pytest.fixture(name='partitioner')
def _partitioner_fixture():
  return _partitioner()


@pytest.fixture(scope='module', name='expected')
def _expected():
  """Losses of the step as it is compiled without a profile."""
  return _losses(_partitioner(), _STEPS)


@pytest.fixture(name='compiler_options')
def _compiler_options(monkeypatch):
  """Options of each compilation of a lowered step."""
  options = []
  original = jax.stages.Lowered.compile

  def compile_and_record(lowered, compiler_options=None):
    options.append(compiler_options)
    return original(lowered, compiler_options)

  monkeypatch.setattr(jax.stages.Lowered, 'compile', compile_and_record)
  return options


def _losses(partitioner, num_steps):
  key = jax.random.key(3)
  state, step = partitioner.initialize(key), partitioner.train_step()
  losses = []
  for seed in range(num_steps):
    batch = partitioner.put_batch(tiny.batch(seed=seed))
    state, output = step(state, batch, key)
    losses.append(float(output.loss))
  return losses


def _recompilation(partitioner, folder, num_train_steps=_STEPS):
  reports = []
  recompilation = profile_guided.ManualRecompilation(
    partitioner.train_step(),
    folder,
    reports.append,
    contextlib.nullcontext,
    num_train_steps,
  )
  recompilation.compile()
  return reports


def test_a_profile_is_stored_and_compiled_with(
  partitioner, expected, compiler_options, monkeypatch, tmp_path
):
  # CPUs have no such profile, and accept any.
  traces = []

  def convert(folder):
    traces.extend(sorted(os.listdir(folder)))
    return b'durations'

  clock = itertools.count()
  monkeypatch.setattr(
    profile_guided.jax_profiler, 'get_profiled_instructions_proto', convert
  )
  monkeypatch.setattr(profile_guided.time, 'perf_counter', clock.__next__)
  reports = _recompilation(partitioner, tmp_path)
  assert _losses(partitioner, _STEPS) == pytest.approx(expected, rel=1e-6)
  assert traces == ['0.xplane.pb', '1.xplane.pb']
  assert compiler_options == [
    None,
    {'xla_gpu_enable_command_buffer': ''},
    {'fdo_profile': b'durations'},
  ]
  assert (tmp_path / 'profile.pb').read_bytes() == b'durations'
  assert reports == [
    'PGLE: 1000.0 ms a step before, 1000.0 ms after (+0.0 %);'
    f' {tmp_path}/profile.pb is used from now on'
  ]


def test_a_stored_profile_is_used_from_the_first_step(
  partitioner, expected, compiler_options, tmp_path
):
  (tmp_path / 'profile.pb').write_bytes(b'durations')
  reports = _recompilation(partitioner, tmp_path)
  assert _losses(partitioner, 3) == pytest.approx(expected[:3], rel=1e-6)
  assert compiler_options == [{'fdo_profile': b'durations'}]
  assert reports == [f'PGLE: the step is compiled with {tmp_path}/profile.pb']


def test_a_profile_in_a_bucket_is_named_there(partitioner):
  bucket = storage.to_path('memory://profiles/run')
  copy = working_copy.WorkingCopy(bucket)
  try:
    (copy.path / 'profile.pb').write_bytes(b'durations')
    (report,) = _recompilation(partitioner, copy.path)
  finally:
    copy.close()
  assert report.endswith(' memory://profiles/run/profile.pb')


def test_a_job_of_too_few_steps_says_so(partitioner, expected, tmp_path):
  reports = _recompilation(partitioner, tmp_path, num_train_steps=4)
  assert _losses(partitioner, 4) == pytest.approx(expected[:4], rel=1e-6)
  (report,) = reports
  assert 'takes 9 steps, and this job has 4' in report


def test_training_continues_if_the_profile_cannot_be_stored(
  partitioner, expected, compiler_options, monkeypatch, tmp_path
):
  monkeypatch.setattr(
    profile_guided.jax_profiler,
    'get_profiled_instructions_proto',
    lambda folder: b'durations',
  )
  reports = _recompilation(partitioner, tmp_path / 'gone')
  assert _losses(partitioner, _STEPS) == pytest.approx(expected, rel=1e-6)
  assert compiler_options[-1] == {'fdo_profile': b'durations'}
  (report,) = reports
  assert report.endswith(
    '/profile.pb is not written: the next start profiles again'
  )


def test_training_continues_without_instructions_of_a_gpu(
  partitioner, expected, compiler_options, tmp_path
):
  reports = _recompilation(partitioner, tmp_path)
  assert _losses(partitioner, _STEPS) == pytest.approx(expected, rel=1e-6)
  (report,) = reports
  assert 'no instruction of a GPU' in report
  assert not (tmp_path / 'profile.pb').exists()
  assert len(compiler_options) == 2


def test_training_continues_within_another_trace(
  partitioner, expected, tmp_path
):
  reports = _recompilation(partitioner, tmp_path)
  with jax.profiler.trace(str(tmp_path / 'trace')):
    assert _losses(partitioner, _STEPS) == pytest.approx(expected, rel=1e-6)
  assert len(reports) == 1 and 'another profiler' in reports[0]


@pytest.fixture(name='two_profiling_runs')
def _two_profiling_runs():
  previous = jax.config.jax_pgle_profiling_runs
  jax.config.update('jax_pgle_profiling_runs', 2)
  yield
  jax.config.update('jax_pgle_profiling_runs', previous)


def test_jax_profiles_the_step_and_nothing_else(
  partitioner, expected, two_profiling_runs
):
  profile_guided.run_automatically(partitioner.train_step())
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    losses = _losses(partitioner, 4)
  # JAX traced two functions, and CPUs have no such profile.
  assert ['collected an empty trace' in str(w.message) for w in caught] == [
    *(True, True)
  ]
  assert losses == pytest.approx(expected[:4], rel=1e-6)
