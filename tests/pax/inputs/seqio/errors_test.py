# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: deps=@pypi_seqio//seqio
"""Settings and data of SeqIO tasks that are refused, in one sentence."""

from __future__ import annotations

import pytest

from pax.inputs.seqio import errors as seqio_errors
from tests.pax.inputs.seqio.seqio_input_test import (
  COUNTS,
  TEXTS,
  drain,
  function_source,
  make,
  tasks,
  two_counts,
  write_tfrecords,
)

seqio = pytest.importorskip('seqio')
tf = pytest.importorskip('tensorflow')

__all__ = ['tasks']


def _tokens_of_length(line):
  return {'targets': tf.fill([1], tf.strings.length(line))}


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'mixture_name': None}, 'one of mixture_name and mixture_or_task'),
    (
      {'mixture_or_task': object()},
      'one of mixture_name and mixture_or_task',
    ),
    (
      {'task_feature_lengths': None},
      'task_feature_lengths of .* must be set',
    ),
    ({'feature_converter': None}, 'feature_converter of .* must be set'),
    ({'deterministic_input': True}, 'deterministic_input must be False'),
    ({'repeat': True, 'eval_loop_num_batches': None}, 'would not end'),
    ({'mixture_name': 'other'}, "got 'other'"),
  ],
)
def test_settings(settings, message):
  with pytest.raises(ValueError, match=message):
    make(**settings)


def test_a_task_that_scores_targets_counts_nothing_else():
  task = seqio.Task(
    'scored',
    source=function_source(two_counts),
    preprocessors=[],
    output_features=seqio.get_mixture_or_task(COUNTS).output_features,
    metric_fns=[lambda targets, scores: {}],
  )
  settings = {'mixture_name': None, 'mixture_or_task': task}
  with pytest.raises(ValueError, match='weights_on_targets_only .* got None'):
    make(**settings)
  make(converter={'weights_on_targets_only': True}, **settings)


@pytest.mark.parametrize(
  ('source', 'message'),
  [
    (
      lambda: seqio.TextLineDataSource({'test': '/nowhere/a.txt'}),
      'cannot read the split .*SYNTHETIC_DATA=True.*TRAIN_FILES',
    ),
    (
      lambda: seqio.TfdsDataSource(
        'no_such_data:1.0.0', tfds_data_dir='/nowhere', splits=['test']
      ),
      'cannot read the split .*no_such_data.*SYNTHETIC_DATA=True',
    ),
  ],
)
def test_data_that_cannot_be_read(source, message):
  task = seqio.Task(
    'unreachable',
    source=source(),
    preprocessors=[lambda dataset: dataset.map(_tokens_of_length)],
    output_features=seqio.get_mixture_or_task(COUNTS).output_features,
  )
  with pytest.raises(ValueError, match=message) as error:
    make(mixture_name=None, mixture_or_task=task, reset_for_eval=True)
  assert '\n' not in str(error.value)


def test_a_bucket_that_cannot_be_reached():
  message = 'Error executing an HTTP request: libcurl code 6\n\t when reading'
  with pytest.raises(ValueError, match='cannot read the task: .* code 6; ch'):
    with seqio_errors.explained('task'):
      raise tf.errors.FailedPreconditionError(None, None, message)


def test_files_that_vanish(tmp_path):
  (tmp_path / 'a.txt').write_text('text\n')
  task = seqio.Task(
    'vanishing',
    source=seqio.TextLineDataSource({'train': str(tmp_path / 'a.txt')}),
    preprocessors=[lambda dataset: dataset.map(_tokens_of_length)],
    output_features=seqio.get_mixture_or_task(COUNTS).output_features,
  )
  source = make(
    mixture_name=None,
    mixture_or_task=task,
    is_training=True,
    warm_start=False,
    try_in_mem_cache=False,
  )
  (tmp_path / 'a.txt').unlink()
  with pytest.raises(ValueError, match="cannot read .* 'vanishing'.*a.txt"):
    source.get_next()


def test_a_damaged_record_is_named(tmp_path):
  path = tmp_path / 'texts.tfrecord'
  write_tfrecords(path, TEXTS)
  content = bytearray(path.read_bytes())
  content[-5] ^= 1
  path.write_bytes(content)
  task = seqio.Task(
    'damaged',
    source=seqio.TFExampleDataSource(
      {'test': str(path)}, {'targets': tf.io.FixedLenFeature([], tf.string)}
    ),
    preprocessors=[
      lambda dataset: dataset.map(lambda x: _tokens_of_length(x['targets']))
    ],
    output_features=seqio.get_mixture_or_task(COUNTS).output_features,
  )
  message = f"cannot read .* 'damaged'.*: record 4 of {path} is damaged"
  with pytest.raises(ValueError, match=message):
    drain(make(mixture_name=None, mixture_or_task=task))


def test_an_example_that_is_too_long():
  source = make(task_feature_lengths={'targets': 2}, trim_output_features=False)
  with pytest.raises(ValueError, match='an example of the split .* refused'):
    drain(source)
