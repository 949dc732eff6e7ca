# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: deps=//paxml:modules
"""Modules of paxml with a function or two: hooks, strings, paths, versions."""

from __future__ import annotations

import os
import sys
import threading
import types

import pytest
from absl import flags
from orbax import checkpoint as ocp

import paxml
from paxml import (
  checkpoint_version,
  eval_lib,
  first_result_metric_callback,
  host_callback,
  lineage_logging,
  ml_monitoring,
  profiling,
  test_helper,
  tf_data_service_lib,
)


def test_strings_by_id():
  strings = host_callback.repository('a')
  assert host_callback.repository('a') is strings
  assert host_callback.repository('b') is not strings
  first, second = strings.add('x'), strings.add('x')
  assert first != second and strings.size == 2
  assert strings.get(first) == 'x'
  assert strings.pop(first) and not strings.pop(first)
  with pytest.raises(KeyError):
    strings.get(first)


def test_the_oldest_strings_are_dropped():
  strings = host_callback.Repository(max_size=2)
  ids = [strings.add(text) for text in 'abc']
  assert strings.size == 2 and strings.get(ids[2]) == 'c'
  with pytest.raises(KeyError):
    strings.get(ids[0])
  strings.pop(ids[1])
  assert strings.add('d') == 3 and strings.size == 2
  assert host_callback.Repository.MAX_SIZE == 10000


def test_strings_of_several_threads():
  strings = host_callback.Repository()
  ids: list[int] = []
  add = lambda: ids.extend(strings.add('x') for _ in range(100))
  threads = [threading.Thread(target=add) for _ in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert sorted(ids) == list(range(400))


def test_hooks_record_nothing():
  event = ml_monitoring.MlEvent.TRAIN_STEP
  with ml_monitoring.ml_event_logger(event, step=1):
    ml_monitoring.record_step_number(1)
  boundary = ml_monitoring.EventBoundary.START
  assert ml_monitoring.record_event_boundary(event, boundary, step=1) is None
  assert lineage_logging.log_config_file_lineage('f') is None
  assert (
    first_result_metric_callback.train_first_result_callback_fn(True) is None
  )


def test_mean_duration_of_steps():
  profiler = profiling.Profiler(default_duration_sec=3.0)
  assert profiler.step_duration_estimate_sec == 3.0
  for duration in (1.0, 2.0):
    profiler.update_step_moving_mean(duration)
  assert profiler.step_duration_estimate_sec == 1.5
  profiler.capture_async()


def test_versions_of_checkpoints():
  assert checkpoint_version.get_version_key() == 'version'
  assert checkpoint_version.get_version(True) == 1.2
  assert checkpoint_version.get_version(tensorstore_use_ocdbt=False) == 1.1
  with pytest.raises(ValueError, match='value of `?tensorstore_use_ocdbt'):
    checkpoint_version.get_version()


def test_paths_of_test_data(monkeypatch):
  monkeypatch.delenv('TEST_SRCDIR', raising=False)
  assert os.path.exists(test_helper.test_src_dir_path('trainer_lib.py'))
  assert test_helper.test_src_dir_path('x').startswith(paxml.__path__[0])
  monkeypatch.setenv('TEST_SRCDIR', '/runfiles')
  path = test_helper.test_src_dir_path('testdata/x')
  assert path == '/runfiles/__main__/paxml/testdata/x'


class _Service:
  """Stands in for tf.data.experimental.service."""

  def __init__(self):
    self.started = []
    self.DispatcherConfig = self.WorkerConfig = dict

  def _start(self, kind, config):
    join = lambda: self.started.append((kind, config))
    return types.SimpleNamespace(join=join)

  def DispatchServer(self, config):
    return self._start('dispatcher', config)

  def WorkerServer(self, config):
    return self._start('worker', config)


def test_servers_of_tf_data(monkeypatch):
  service = _Service()
  experimental = types.SimpleNamespace(service=service)
  data = types.SimpleNamespace(experimental=experimental)
  tensorflow = types.SimpleNamespace(data=data)
  monkeypatch.setitem(sys.modules, 'tensorflow', tensorflow)
  assert tf_data_service_lib.get_tf_data_service_address() is None
  assert not tf_data_service_lib.run_tf_data_service('train')
  flags.FLAGS(['binary', '--tf_data_service_port=7'], known_only=True)
  try:
    assert tf_data_service_lib.run_tf_data_service('tf_data_service_dispatcher')
    flags.FLAGS(
      ['binary', '--tf_data_service_address=grpc://a'], known_only=True
    )
    assert tf_data_service_lib.get_tf_data_service_address() == 'grpc://a'
    assert tf_data_service_lib.run_tf_data_service('tf_data_service_worker')
  finally:
    flags.FLAGS.unparse_flags()
  (first, dispatcher), (second, worker) = service.started
  assert (first, second) == ('dispatcher', 'worker')
  assert dispatcher['port'] == 7 and not dispatcher['fault_tolerant_mode']
  assert worker['dispatcher_address'] is None


def test_servers_need_tensorflow(monkeypatch):
  monkeypatch.setitem(sys.modules, 'tensorflow', None)
  with pytest.raises(ValueError, match='needs the package tensorflow'):
    tf_data_service_lib.run_tf_data_service('tf_data_service_worker')


@pytest.mark.parametrize(
  ('name', 'options'),
  [
    ('checkpoint_00000004', {'step_prefix': 'checkpoint'}),
    ('4', {}),
  ],
)
def test_copies_of_checkpoints_are_deleted(tmp_path, name, options):
  if options:
    options = {**options, 'step_format_fixed_length': 8}
  (tmp_path / name).mkdir()
  names = ocp.path.step.standard_name_format(**options)
  steps = ocp.checkpoint_utils.checkpoints_iterator(
    tmp_path, step_name_format=names, timeout=1
  )
  assert next(steps) == 4
  # The iterator is not continued, as in a job that is preempted.
  copies = list(tmp_path.glob('*/' + name))
  assert len(copies) == 1
  eval_lib.release_all_snapshots(tmp_path, **options)
  assert not copies[0].exists() and (tmp_path / name).exists()
  eval_lib.release_all_snapshots(tmp_path, **options)
