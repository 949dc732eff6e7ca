# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""--set TRAIN_DATA gives any language model experiment other data."""

from __future__ import annotations

import numpy as np
import pytest

from pax.contrib.gpu.scripts_gpu import configs
from pax.inputs import grain_input, lm_input
from pax.runner import overrides
from pax.tasks.lm.params import c4, lm_cloud, quickstart


@pytest.fixture(scope='module')
def data(tmp_path_factory) -> str:
  path = tmp_path_factory.mktemp('data') / 'tokens.bin'
  np.random.default_rng(0).integers(0, 250, 40_000).astype('u2').tofile(path)
  return str(path)


def inputs_of(experiment, *settings):
  parsed = overrides.parse(settings)
  return overrides.set_constants(experiment, parsed)().datasets()


@pytest.mark.parametrize(
  'experiment',
  [
    quickstart.TinyLm,
    quickstart.TinyLmPmap,
    lm_cloud.LmCloudSpmd2B,
    c4.C4SpmdAdam,
    configs.Pile126M,
    configs.Lambada126M,
    configs.LLaMA7B,
  ],
)
def test_experiments_take_files_of_tokens(experiment, data):
  own = experiment().datasets()[0]
  train, held_out = inputs_of(
    experiment, f'TRAIN_DATA={data}', f'EVAL_DATA={data}', 'MAX_SEQ_LEN=64'
  )
  assert train.cls is held_out.cls is lm_input.LanguageModelInput
  assert train.is_training and not held_out.is_training
  assert train.batch_size == own.batch_size
  assert train.vocab_size == experiment.VOCAB_SIZE
  batch = train.Instantiate().get_next_padded()
  assert batch.ids.shape == (own.batch_size, 64)
  assert held_out.Instantiate().get_next_padded().ids.shape[1] == 64


def test_a_mixture_with_weights(data):
  text = f"TRAIN_DATA={{'{data}': 0.5, '{data.replace('tokens', '*')}': 0.5}}"
  (train,) = inputs_of(quickstart.TinyLm, text)
  assert len(train.Instantiate().sources) == 2


def test_stages_of_a_mixture(data):
  text = f"TRAIN_DATA_STAGES={{64: {{'{data}': 0.5, '{data}*': 0.5}}}}"
  settings = [f'TRAIN_DATA={data}', text, f'EVAL_DATA={data}']
  train, held_out = inputs_of(quickstart.TinyLm, *settings)
  assert train.Instantiate().source_weights == {0: [1, 0], 64: [0.5, 0.5]}
  assert held_out.data_stages is None


def test_evaluation_sets_with_names(data):
  mixture = {data: 0.25}
  named = {'web': data, 'code': mixture}
  train, web, code = inputs_of(
    quickstart.TinyLm,
    f'TRAIN_DATA={data}',
    f'EVAL_DATA={named}',
    'EVAL_MAX_BATCHES=3',
  )
  assert [train.name, web.name, code.name] == ['train', 'web', 'code']
  assert (web.data, code.data) == (data, mixture)
  for held_out in (web, code):
    assert not held_out.is_training and held_out.reset_for_eval
    assert held_out.max_batches == 3
    assert held_out.batch_size == quickstart.TinyLm.EVAL_BATCH_SIZE


@pytest.mark.parametrize('eval_data', ['a.bin', {'a.bin': 2, 'b.bin': 0.5}])
def test_evaluation_data_without_names_are_one_set(eval_data):
  _, held_out = inputs_of(
    quickstart.TinyLm, 'TRAIN_DATA=a.bin', f'EVAL_DATA={eval_data}'
  )
  assert (held_out.name, held_out.data) == ('held_out', eval_data)


@pytest.mark.parametrize(
  ('eval_data', 'message'),
  [
    ({'web': 'a.bin', 'b.bin': 0.5}, r"weights \{'b.bin': 0.5\} among data"),
    ({'/data/a.bin': '0.5'}, r"names .* got '/data/a.bin'; .* are numbers"),
    ({'': 'a.bin'}, "names .* got ''"),
    ({3: 'a.bin'}, 'names .* got 3;'),
    ({'web': None}, r"EVAL_DATA\['web'\] must be files .*, got None"),
  ],
)
def test_wrong_evaluation_sets_are_refused(eval_data, message):
  settings = ['TRAIN_DATA=a.bin', f'EVAL_DATA={eval_data}']
  with pytest.raises(ValueError, match=message):
    inputs_of(quickstart.TinyLm, *settings)


def test_a_data_set_of_grain():
  (train,) = inputs_of(
    quickstart.TinyLm, 'GRAIN_DATASET=my_data:make', 'GRAIN_WORKERS=2'
  )
  assert train.cls is grain_input.GrainInput
  assert (train.make_dataset, train.num_workers) == ('my_data:make', 2)
  assert train.batch_size == quickstart.TinyLm().datasets()[0].batch_size


def test_without_files_the_data_is_the_experiments():
  first, *_ = inputs_of(lm_cloud.LmCloudSpmd2B)
  assert first.cls is not lm_input.LanguageModelInput


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    (['EVAL_DATA=a.jsonl'], 'EVAL_DATA needs TRAIN_DATA or GRAIN_DATASET'),
    (
      ['TRAIN_DATA_STAGES={64: {"a.jsonl": 1.0}}'],
      'TRAIN_DATA_STAGES need TRAIN_DATA, the data before them',
    ),
    (
      ['TRAIN_DATA=a.jsonl', 'GRAIN_DATASET=my_data:make'],
      "got 'a.jsonl' and 'my_data:make'; set one",
    ),
  ],
)
def test_data_without_an_effect_are_refused(settings, message):
  with pytest.raises(ValueError, match=message):
    inputs_of(quickstart.TinyLm, *settings)
