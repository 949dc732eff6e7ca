# SPDX-License-Identifier: Apache-2.0
# bazel: deps=@pypi_seqio//seqio
# bazel: data=//:all_files
"""Metrics of SeqIO tasks are those of `seqio.Evaluator`."""

from __future__ import annotations

import functools
import io
import json

import numpy as np
import pytest

from pax.inputs.seqio import evaluation, sequence_features
from pax.inputs.seqio import outputs as seqio_outputs
from pax.programs import seqio_results, vocabulary_record
from paxml import seqio_input as paxml_seqio_input
from paxml import summary_utils
from praxis import pax_fiddle, py_utils
from praxis.pytypes import NestedMap
from tests.docs import pages
from tests.pax.summaries import event_files
from tests.testing import nightly

seqio = pytest.importorskip('seqio')
tf = pytest.importorskip('tensorflow')

MetricType = seqio_outputs.MetricType
_VOCABULARY = seqio.ByteVocabulary()
_LENGTHS = {'inputs': 12, 'targets': 10}
_NUM_EXAMPLES = 7
_QUESTIONS = [f'{i} + {i}' for i in range(_NUM_EXAMPLES)]
_ANSWERS = [f'is {2 * i}' for i in range(_NUM_EXAMPLES)]


def _postprocess(text, example=None, is_target=False):
  del is_target
  # Scores come with the ids of the targets.
  if not isinstance(text, str):
    return [int(x) for x in text]
  assert 'targets_pretokenized' in example
  return text.removeprefix('is ')


def matches(targets, predictions):
  pairs = zip(targets, predictions, strict=True)
  return {'matches': float(np.mean([t == p for t, p in pairs]))}


def lengths(targets, predictions):
  return {
    'length': seqio.metrics.Scalar(np.mean([len(p) for p in predictions])),
    'sample': seqio.metrics.Text(f'{targets[0]}: {predictions[0]}'),
  }


def weighted(targets, predictions, aux_values):
  rows = zip(targets, predictions, aux_values['logprobs'], strict=True)
  return {'weighted': float(np.mean([(t == p) * x[0] for t, p, x in rows]))}


def mean_score(targets, scores):
  assert len(targets) == len(scores)
  # Depends on the order of the examples.
  return {'mean_score': float(np.mean(scores * np.arange(len(scores))))}


class Counting(seqio.metrics.CollectingMetric):
  """A metric object; its output is the model's for each example."""

  model_output_type = seqio.metrics.ModelOutputType.PREDICTION

  def actual_compute(
    self, task_dataset_as_numpy, task_output_features,
    target_field_name='targets', cached_targets=None,
  ):  # fmt: skip
    count = sum(1 for _ in task_dataset_as_numpy)
    return {'count': count}, {'targets': []}


def parse_lines(dataset):
  def parse(line):
    inputs, targets = tf.unstack(tf.strings.split(line, '\t'), num=2)
    return {'inputs': inputs, 'targets': targets}

  return dataset.map(parse)


def _source(num_examples):
  def examples(split, shuffle_files, seed=None):
    dataset = tf.data.Dataset.from_tensor_slices(
      {'inputs': _QUESTIONS, 'targets': _ANSWERS}
    )
    return dataset.take(num_examples)

  return seqio.FunctionDataSource(examples, splits=['validation'])


def _add(name, num_examples=_NUM_EXAMPLES, **kwargs):
  settings = {
    'metric_fns': [matches, lengths, mean_score],
    'postprocess_fn': _postprocess,
    'preprocessors': [seqio.preprocessors.tokenize],
    'source': _source(num_examples),
    'output_features': {
      n: seqio.Feature(_VOCABULARY, add_eos=False) for n in _LENGTHS
    },
    **kwargs,
  }
  return seqio.TaskRegistry.add(name, **settings)


@pytest.fixture(scope='module', autouse=True)
def _tasks():
  _add('sums')
  _add('sums_with_aux', metric_fns=[weighted])
  _add('sums_with_object', metric_fns=[], metric_objs=[Counting])
  _add('sums_without_metrics', metric_fns=[])
  _add('no_sums', num_examples=0)
  seqio.MixtureRegistry.add(
    'all_sums', ['sums', 'sums_with_aux', 'sums_without_metrics'], 1.0
  )


@pytest.fixture(scope='module')
def _shared_sums(_tasks):
  (inp,) = make_inputs('sums', MetricType.PREDICT)
  return inp


@pytest.fixture
def sums(_shared_sums):
  """The task `sums`, at its first batch; to trace its dataset takes seconds."""
  _shared_sums.reset()
  return _shared_sums


def make_inputs(task, metric_type, num_hosts=1, **kwargs):
  """Returns the input of each host."""
  (config,) = evaluation.get_eval_hparams_for_seqio(
    task, 2, _LENGTHS, seed=3, metric_type=metric_type
  )
  return [
    config.clone()
    .set(num_infeed_hosts=num_hosts, infeed_host_index=host, **kwargs)
    .Instantiate()
    for host in range(num_hosts)
  ]


def read_rows(inp, num_batches=None):
  rows = []
  while num_batches != 0 and inp.peek_padded() is not None:
    batch = inp.get_next_padded()
    rows += py_utils.tree_unstack(NestedMap(batch), 0)
    num_batches = num_batches and num_batches - 1
  return rows


def model_text(row):
  """Returns what the model says: right for even sums only."""
  question = _VOCABULARY.decode(row.ids[row.inputs_indicator > 0].tolist())
  number = int(question.replace('\0', '').strip().partition(' ')[0])
  return f'is {2 * number}' if number % 2 == 0 else 'is odd', number


def predictions(inputs, num_batches=None):
  outputs = []
  for row in [row for inp in inputs for row in read_rows(inp, num_batches)]:
    if row.eval_sample_weights:
      text, number = model_text(row)
      output = NestedMap(
        prefix=str(number),
        decoded_substr=text,
        logprobs=np.full(number + 1, -number, np.float32),
      )
      outputs.append((py_utils.get_enumeration_id(row), output))
  return outputs[::-1]


def scores(inputs, num_batches=None):
  outputs = []
  for row in [row for inp in inputs for row in read_rows(inp, num_batches)]:
    _, number = model_text(row)
    # A padding row must not count.
    score = np.float32(-number if row.eval_sample_weights else 1e6)
    ids = {key: row[key] for key in py_utils.ENUM_PROVENANCE_KEYS}
    output = NestedMap(scores=score, **ids)
    outputs.append((py_utils.get_enumeration_id(row), output))
  return outputs[::-1]


def evaluate(task, **fns):
  evaluator = seqio.Evaluator(
    task,
    seqio.DecoderFeatureConverter(pack=False),
    sequence_length=_LENGTHS,
    async_compute_metrics=False,
  )
  metrics, _ = evaluator.evaluate(compute_metrics=True, **fns)
  return metrics.result()[task]


def _numbers_of(dataset):
  return [int(index) for index, _ in dataset.enumerate().as_numpy_iterator()]


def predict_fn(dataset):
  texts = [f'is {2 * n}' if n % 2 == 0 else 'is odd' for n in range(7)]
  ids = [_VOCABULARY.encode(text)[:6] for text in texts]
  # SeqIO takes rows of one length; the vocabulary ends texts at EOS.
  ids = [row + [_VOCABULARY.eos_id] * (6 - len(row)) for row in ids]
  return [(n, ids[n]) for n in _numbers_of(dataset)]


def predict_with_aux_fn(dataset):
  values = [np.full(n + 1, -n, np.float32) for n in _numbers_of(dataset)]
  longest = max(map(len, values))
  rows = [np.pad(v, (0, longest - len(v))) for v in values]
  return predict_fn(dataset), {'logprobs': rows}


@functools.cache
def _evaluated_sums():
  return evaluate(
    'sums',
    predict_fn=predict_fn,
    score_fn=lambda d: [(n, -float(n)) for n in _numbers_of(d)],
  )


def evaluate_sums():
  """Returns the metrics of the task `sums`, in a dict of its own."""
  return dict(_evaluated_sums())


def merged(metrics):
  values = {k: v for metric in metrics for k, v in metric.items()}
  return {k: getattr(v, 'value', v) for k, v in values.items()}


@pytest.mark.parametrize(
  'num_hosts',
  [
    1,
    *nightly.cases(2, 3),
  ],
)
def test_predictions(num_hosts, sums):
  inputs = [sums]
  if num_hosts > 1:
    inputs = make_inputs('sums', MetricType.PREDICT, num_hosts)
  outputs = predictions(inputs)
  wanted = evaluate_sums()
  wanted.pop('mean_score')
  found = merged(inputs[0].compute_metrics(outputs))
  sample = found.pop('sample')
  assert sample.textdata == ('0: 0' if num_hosts == 1 else sample.textdata)
  assert wanted.pop('sample').textdata == '0: 0'
  assert found == merged([wanted])
  assert found['matches'] == 4 / 7
  # Files of outputs get the target of each example.
  by_text = {o.prefix: o for _, o in outputs}
  assert by_text['3'].seqio_targets == '6'
  assert by_text['3'].seqio_postprocessed_predictions == 'odd'


@pytest.mark.parametrize('num_hosts', [1, *nightly.cases(2)])
def test_scores(num_hosts):
  inputs = make_inputs(
    'sums', MetricType.SCORE, num_hosts, log_preprocessed_targets=True
  )
  outputs = scores(inputs)
  assert len(outputs) == 8  # With a row that pads.
  found = merged(inputs[0].compute_metrics(outputs, score_metrics=True))
  wanted = evaluate_sums()
  if num_hosts == 1:
    assert found == {'mean_score': wanted['mean_score']}
  assert found.keys() == {'mean_score'} and found['mean_score'] < 0
  (output,) = [o for _, o in outputs if o.scores == -3]
  assert output.seqio_preprocessed_targets.targets_pretokenized == 'is 6'
  assert output.seqio_postprocessed_targets == _VOCABULARY.encode('is 6')


def test_auxiliary_outputs():
  (inp,) = make_inputs('sums_with_aux', MetricType.PREDICT)
  wanted = evaluate('sums_with_aux', predict_with_aux_fn=predict_with_aux_fn)
  assert merged(inp.compute_metrics(predictions([inp]))) == wanted


def test_metric_objects():
  (inp,) = make_inputs('sums_with_object', MetricType.PREDICT)
  assert merged(inp.compute_metrics(predictions([inp]))) == {'count': 7}


def test_batches_that_are_not_an_epoch():
  settings = {'reset_for_eval': False, 'eval_loop_num_batches': 2}
  (inp,) = make_inputs('sums', MetricType.PREDICT, repeat=True, **settings)
  for right in (2, 3, 2):
    outputs = predictions([inp], num_batches=2)
    assert len(outputs) == 4
    found = merged(inp.compute_metrics(outputs))
    assert found['matches'] == right / 4


def test_fields_of_targets(sums):
  fields = ['targets', 'targets_pretokenized']
  (inp,) = make_inputs(
    'sums', MetricType.SCORE, eval_metrics_filter_targets_fields=fields
  )
  assert inp.targets_by_id().popitem()[1].keys() == set(fields)
  # The model gets one id of the targets, metrics all of them.
  assert sums.task_feature_lengths['targets'] == 1
  targets = sums.targets_by_id().values()
  assert [len(t.targets) for t in targets] == [4, 4, 4, 4, 4, 5, 5]


def test_shards_of_different_sizes(tmp_path):
  for name, numbers in (('a', [0]), ('b', [1, 2, 3, 4])):
    lines = [f'{i} + {i}\tis {2 * i}' for i in numbers]
    (tmp_path / f'{name}.tsv').write_text('\n'.join(lines))
  # Files are the shards: the first host reads one line, the second four.
  _add(
    'sums_of_files',
    source=seqio.TextLineDataSource({'validation': str(tmp_path / '*.tsv')}),
    preprocessors=[
      parse_lines,
      seqio.preprocessors.tokenize,
    ],
  )
  inputs = make_inputs('sums_of_files', MetricType.PREDICT, num_hosts=2)
  assert len(inputs[0].targets_by_id()) == 5
  found = merged(inputs[0].compute_metrics(predictions(inputs)))
  assert found['matches'] == 3 / 5


def test_an_empty_split():
  with pytest.raises(ValueError, match="split 'validation' must have examples"):
    make_inputs('no_sums', MetricType.SCORE)[0].get_next()


def test_another_vocabulary_than_that_of_training(tmp_path):
  (train,) = make_inputs('sums', MetricType.SCORE)
  vocabulary_record.record(str(tmp_path), train, has_checkpoints=False)
  vocabulary_record.check([tmp_path], [train])
  features = {n: seqio.Feature(seqio.ByteVocabulary(9)) for n in _LENGTHS}
  _add('other_sums', output_features=features)
  evaluated = make_inputs('other_sums', MetricType.SCORE)
  with pytest.raises(
    vocabulary_record.VocabularyError,
    match="inputs in input 'other_sums' is ByteVocabulary of 268 ids.*"
    'trained with ByteVocabulary of 259 ids',
  ):
    vocabulary_record.check([tmp_path], evaluated)


def test_missing_outputs(sums):
  outputs = predictions([sums])
  with pytest.raises(ValueError, match='Example not found.*2 of 7 examples'):
    sums.compute_metrics(outputs[2:])
  with pytest.raises(ValueError, match='no enumeration ids'):
    sums.compute_metrics([(None, output) for _, output in outputs])


def test_no_metrics(sums):
  output = NestedMap(prediction='x')
  assert sums.compute_metrics([]) == []
  assert sums.compute_metrics([('id', output)]) == []
  config = sums.hparams.clone()
  config.mixture_or_task = seqio.get_mixture_or_task('sums_without_metrics')
  assert config.Instantiate().compute_metrics([('id', output)]) == []
  config.mixture_or_task = seqio.get_mixture_or_task('all_sums')
  config.task_feature_lengths = dict(_LENGTHS)
  assert config.Instantiate().compute_metrics([('id', output)]) == []


@pytest.mark.parametrize('name', ['all_sums', 'sums'])
@pytest.mark.parametrize('metric_type', MetricType)
def test_inputs_of_a_mixture(name, metric_type):
  configs = evaluation.get_eval_hparams_for_seqio(
    name, 4, {**_LENGTHS, 'x': 2}, 1, metric_type,
    split_name=lambda task: f'{task}_split', use_cached=True,
    pass_entire_feature_lengths=True,
  )  # fmt: skip
  is_score = metric_type is MetricType.SCORE
  names = ['sums', 'sums_with_aux'] if name == 'all_sums' else ['sums']
  assert [c.name for c in configs] == (['sums'] if is_score else names)
  config = configs[0]
  assert config.split_name == 'sums_split' and config.use_cached
  targets = _LENGTHS['targets'] if is_score else 1
  lengths = {'inputs': 12, 'targets': targets, 'x': 2}
  assert config.task_feature_lengths == lengths
  assert config.eval_metrics_targets_length == (None if is_score else 10)
  assert config.feature_converter.weights_on_targets_only
  assert config.reset_for_eval and config.eval_loop_num_batches is None


def test_inputs_without_metrics_or_split():
  def names(**kwargs):
    configs = paxml_seqio_input.get_eval_hparams_for_seqio(
      seqio.get_mixture_or_task('all_sums'), 4, _LENGTHS, 1, MetricType.SCORE,
      **kwargs,
    )  # fmt: skip
    return [config.name for config in configs]

  assert len(names(require_metric_fns=False)) == 3
  assert names(split_name='test', check_split_exists=True) == []
  converter = pax_fiddle.Config(sequence_features.SequenceModelFeatures)
  assert names(feature_converter=converter) == ['sums']
  get = evaluation.get_eval_hparams_for_seqio
  with pytest.raises(TypeError, match='must be a seqio.Task'):
    get(1, 4, _LENGTHS, 1, MetricType.SCORE)
  with pytest.raises(ValueError, match="add 'inputs'"):
    get('sums', 4, {'targets': 2}, 1, MetricType.SCORE)
  with pytest.raises(ValueError, match='metric_type must be one of'):
    get('sums', 4, _LENGTHS, 1, 'SCORE')


def test_files_and_summaries(tmp_path, sums):
  outputs = predictions([sums])
  folder = tmp_path / 'decoder_out' / 'sums'
  for step in (3, 4):
    with summary_utils.get_summary_writer(tmp_path / 'events') as writer:
      found = paxml_seqio_input.process_outputs(
        sums, outputs, writer, MetricType.PREDICT, step, folder,
        plain_text_output_fname=str(folder / 'out.txt'),
      )  # fmt: skip
  assert found == {'matches': 4 / 7, 'length': pytest.approx(2.0)}
  lines = (folder / 'sums-metrics.jsonl').read_text().splitlines()
  assert [json.loads(line) for line in lines] == [
    {'step': step, **found, 'sample': '0: 0'} for step in (3, 4)
  ]
  text = (folder / 'out.txt').read_text()
  assert '---\n3\n>>>\nis odd\nREF\n6\n' in text
  tags = {v.tag: v for _, v in event_files.read(str(tmp_path / 'events'))}
  assert tags.keys() == {'decoder/matches', 'decoder/length', 'decoder/sample'}
  assert tags['decoder/matches'].simple_value == pytest.approx(4 / 7)
  with pytest.raises(ValueError, match='metric_type must be one of'):
    seqio_results.compute(sums, outputs, 'PREDICT')


def test_verbose_entries(caplog, sums):
  caplog.set_level('INFO')
  text = io.StringIO()
  sums.compute_metrics(
    predictions([sums]), verbose_entries=2, plain_text_output=text
  )
  assert text.getvalue().count('>>>') == 7


def test_the_documented_evaluation():
  """Blocks `py` need TensorFlow; tests/docs runs the blocks `python`."""
  (block,) = (b for b in pages.blocks('py') if 'get_eval_hparams' in b.text)
  scope = {}
  exec(compile(block.text, block.page, 'exec'), scope)
  (inp,) = (config.Instantiate() for config in scope['decode_datasets'])
  outputs = [
    (py_utils.get_enumeration_id(row), NestedMap(decoded_substr=text))
    for row, text in zip(read_rows(inp), ['2', '5', '6'], strict=False)
  ]
  assert inp.compute_metrics(outputs) == [{'accuracy': 2 / 3}]
