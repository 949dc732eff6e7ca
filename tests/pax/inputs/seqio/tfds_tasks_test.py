# SPDX-License-Identifier: Apache-2.0
# bazel: deps=@pypi_seqio//seqio
# bazel: size=small
"""The tasks of C4, the Pile, LAMBADA and BoolQ read data sets of TFDS."""

from __future__ import annotations

import json

import jax
import pytest
import sentencepiece

from pax.contrib.gpu.scripts_gpu import configs
from pax.inputs.seqio import c4_tasks, pile_lambada_boolq_tasks
from pax.inputs.seqio import tasks as seqio_tasks
from pax.tasks.lm.params import c4
from tests.testing import nightly, tfds_data

seqio = pytest.importorskip('seqio')
_LENGTH = 12


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  found = tmp_path_factory.mktemp('tfds')
  tfds_data.write(found, _LENGTH, max_id=50)
  return found


@pytest.fixture
def model(folder, monkeypatch):
  """Reads `folder`; returns the tokenizer."""
  monkeypatch.setattr(seqio_tasks, '_tfds_data_dir', str(folder))
  monkeypatch.setenv('VOCAB_PATH', str(folder / 'words.model'))
  yield sentencepiece.SentencePieceProcessor(str(folder / 'words.model'))
  seqio.set_tfds_data_dir_override(None)


def _examples(name, split, *, model_file=None, **lengths):
  if model_file:
    task = seqio_tasks.task_with_vocabulary(name, str(model_file))
  else:
    task = seqio_tasks.find(seqio_tasks.load('this test'), name)
  dataset = task.get_dataset(lengths, split, shuffle=False)
  return [
    {
      key: value.tolist()
      for key, value in example.items()
      if not key.endswith('_pretokenized')
    }
    for example in dataset.as_numpy_iterator()
  ]


def test_c4_is_rows_of_joined_documents(model, folder):
  found = _examples(
    c4_tasks.TRAIN_TASK,
    tfds_data.C4_TRAIN,
    model_file=folder / 'words.model',
    targets=_LENGTH,
  )
  tokens = sum(model.encode(tfds_data.sentences(60)), [])
  rows = [tokens[i : i + _LENGTH] for i in range(0, len(tokens), _LENGTH)]
  assert [example['targets'] for example in found] == rows


def test_the_validation_set_of_c4_is_tokens(model):
  found = _examples(c4_tasks.EVAL_TASK, tfds_data.C4_EVAL, targets=_LENGTH)
  assert len(found) == 10
  assert {len(example['targets']) for example in found} == {_LENGTH}


def test_rows_of_the_pile_end_in_eos(model):
  name = pile_lambada_boolq_tasks.PILE
  found = _examples(name, 'validation', targets=_LENGTH)
  tokens = sum(model.encode(tfds_data.sentences(7, seed=1)), [])
  rows = [tokens[i : i + _LENGTH] for i in range(0, len(tokens), _LENGTH)]
  expected = [[*row[: _LENGTH - 1], 1] for row in rows]
  assert [example['targets'] for example in found] == expected
  # The name with a version is the same task.
  assert _examples(f'{name}_1.0.0', 'validation', targets=_LENGTH) == found


@pytest.mark.parametrize('from_file', [False, True])
def test_the_target_of_lambada_is_the_last_word(
  from_file, model, tmp_path, monkeypatch
):
  texts = tfds_data.sentences(7, seed=3)
  if from_file:
    path = tmp_path / 'lambada_test.jsonl'
    path.write_text('\n'.join(json.dumps({'text': t}) for t in texts))
    monkeypatch.setenv('LAMBADA_PATH', str(path))
  task = seqio_tasks.load('this test').Task(
    'lambada', **pile_lambada_boolq_tasks.lambada_fields(seqio, None)
  )
  dataset = task.get_dataset(
    {'inputs': 40, 'targets': 8}, 'test', shuffle=False
  )
  found = [
    (example['inputs'].tolist(), example['targets'].tolist())
    for example in dataset.as_numpy_iterator()
  ]
  pairs = [text.rpartition(' ') for text in texts]
  assert found == [
    (model.encode(context), model.encode(word)) for context, _, word in pairs
  ]


def test_boolq_asks_about_a_passage(model):
  found = _examples(
    pile_lambada_boolq_tasks.BOOLQ, 'validation', inputs=200, targets=8
  )
  passages, questions = (tfds_data.sentences(9, seed) for seed in (1, 10))
  assert [example['inputs'] for example in found] == [
    model.encode(f'{passage}\nquestion: {question}?\nanswer:')
    for passage, question in zip(passages, questions, strict=True)
  ]
  assert [example['targets'] for example in found] == [
    model.encode(['no', 'yes'][i % 2]) for i in range(9)
  ]


@pytest.mark.parametrize(
  'cls',
  [c4.C4SpmdAdam, *nightly.cases(configs.LLaMA7B)],
)
def test_training_batches_are_those_of_the_specs_provider(cls, model, folder):
  constants = {
    'PERCORE_BATCH_SIZE': 2,
    'MAX_SEQ_LEN': 80,
    'TOKENIZER': str(folder / 'words.model'),
    'TRAIN_INPUT_RANDOM_SEED': 1,
  }
  experiment = type('Small', (cls,), constants)()
  provider = experiment.get_input_specs_provider_params().Instantiate()
  batch = experiment.training_dataset().Instantiate().get_next()
  specs = jax.tree.map(lambda x: (x.shape, x.dtype), provider.get_input_specs())
  assert jax.tree.map(lambda x: (x.shape, x.dtype), batch) == specs
