# SPDX-License-Identifier: Apache-2.0
# bazel: deps=@pypi_seqio//seqio
# bazel: size=large
# bazel: tags=nightly
"""Metrics of a SeqIO task through the real program, as seqio.Evaluator's."""

from __future__ import annotations

import numpy as np
import pytest

from pax import io_utils
from pax.inputs.seqio import tasks as seqio_tasks
from tests.integration import binary, seqio_experiments

seqio = pytest.importorskip('seqio')
_EXPERIMENT = f'{seqio_experiments.__name__}.TinySeqIO'
_TASK = seqio_experiments.TASK
_NUM_STEPS = 6


@pytest.fixture(scope='module', autouse=True)
def data(tmp_path_factory):
  directory = tmp_path_factory.mktemp('data')
  seqio_experiments.write_data(directory)
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv(seqio_experiments.DATA_VARIABLE, str(directory))
    seqio_tasks.find(seqio, _TASK)
    yield directory


def outputs_by_index(job, kind, step):
  """Returns the outputs of a step by the position of the example."""
  examples = io_utils.load_outputs(job, _TASK, kind, step)
  by_index = {}
  for key, output in examples:
    parts = dict(part.rpartition('=')[::2] for part in key.split('/_'))
    names = {n.rpartition('/')[2]: int(v) for n, v in parts.items()}
    if names['num_shards'] > 0:
      index = names['index_within_shard'] * names['num_shards']
      by_index[index + names['shard_index']] = output
  assert by_index.keys() == set(range(seqio_experiments.NUM_EVALUATED))
  return by_index


def evaluate(job, step):
  """Returns the metrics that SeqIO computes from the outputs in the files."""
  scores = outputs_by_index(job, 'eval', step)
  decoded = outputs_by_index(job, 'decoder', step)
  evaluator = seqio.Evaluator(
    _TASK,
    seqio.DecoderFeatureConverter(pack=False),
    sequence_length=seqio_experiments.LENGTHS,
    async_compute_metrics=False,
  )

  def predict(dataset):
    del dataset
    length = seqio_experiments.LENGTHS['targets']
    rows = {i: np.asarray(o.decoded_ids) for i, o in decoded.items()}
    # SeqIO takes rows of one length; the vocabulary ends texts at EOS, 1.
    pad = lambda row: np.pad(row, (0, length - len(row)), constant_values=1)
    return [(i, pad(row).tolist()) for i, row in rows.items()]

  metrics, _ = evaluator.evaluate(
    compute_metrics=True,
    predict_fn=predict,
    score_fn=lambda _: [(i, float(o.scores)) for i, o in scores.items()],
  )
  return metrics.result()[_TASK]


def tagged(job, split, step):
  """Returns the metrics of SeqIO in metrics.jsonl by name."""
  (record,) = [
    r for r in binary.records(job) if (r['split'], r['step']) == (split, step)
  ]
  prefix = 'scoring_eval/' if split.startswith('eval') else 'decoder/'
  return {
    tag.removeprefix(prefix): value
    for tag, value in record.items()
    if tag.startswith(prefix)
  }


def check(job, step):
  """Compares all places of the metrics with SeqIO's."""
  wanted = evaluate(job, step)
  scored = tagged(job, f'eval_test_{_TASK}', step)
  decoded = tagged(job, f'decode_test_{_TASK}', step)
  assert {**scored, **decoded} == pytest.approx(wanted, rel=1e-6)
  assert scored.keys() == {'mean_score'} and scored['mean_score'] < 0
  assert decoded['num_letters'] > 0
  for kind in ('eval', 'decoder'):
    folder = job / f'{kind}_out' / _TASK
    line = (folder / f'{_TASK}-metrics.jsonl').read_text().splitlines()[-1]
    assert f'"step": {step}' in line


def test_training_evaluates_and_decodes(tmp_path):
  words = ['--eval_on_test', '--decode_during_train']
  done = binary.run(_EXPERIMENT, tmp_path, *words)
  assert done.returncode == 0, done.stderr
  check(tmp_path, _NUM_STEPS)
  assert tagged(tmp_path, f'eval_test_{_TASK}', _NUM_STEPS // 2)
  assert f'{_TASK} similarity' in done.stdout + done.stderr
  assert f'{_TASK} mean_score' in done.stdout + done.stderr
  text = tmp_path / 'decoder_out' / _TASK
  assert '>>>' in (text / f'decoder_out_{_NUM_STEPS}_shard_0.txt').read_text()
