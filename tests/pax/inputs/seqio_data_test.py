# SPDX-License-Identifier: Apache-2.0
# bazel: deps=@pypi_seqio//seqio
"""SeqIO itself: inputs of tasks over files that the tests write."""

from __future__ import annotations

import seqio
import tensorflow as tf


def test_a_task_reads_a_file(tmp_path):
  (tmp_path / 'a.txt').write_text('one\ntwo\n')
  task = seqio.Task(
    'lines',
    source=seqio.TextLineDataSource({'train': str(tmp_path / 'a.txt')}),
    preprocessors=[
      lambda dataset: dataset.map(lambda line: {'targets': line}),
      seqio.preprocessors.tokenize,
    ],
    output_features={'targets': seqio.Feature(seqio.ByteVocabulary())},
  )
  dataset = task.get_dataset({'targets': 8}, 'train', shuffle=False)
  assert isinstance(dataset, tf.data.Dataset)
  lengths = [len(x['targets']) for x in dataset.as_numpy_iterator()]
  assert lengths == [3, 3]
