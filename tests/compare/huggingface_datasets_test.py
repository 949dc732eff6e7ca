# SPDX-License-Identifier: Apache-2.0
"""Data sets of the package `datasets`, by name and saved, without network."""

from __future__ import annotations

import json
import pathlib
import sys

import datasets
import numpy as np
import pytest

from pax.inputs import lm_input
from pax.inputs.records import huggingface_datasets
from pax.inputs.tokens import tokenizers
from pax.tools import prepare
from praxis import pax_fiddle

COUNT = 50
TEXTS = [f'document {i} ' * (1 + i % 7) for i in range(COUNT)]


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch) -> None:
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  cache = str(tmp_path / 'huggingface')
  monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', cache)
  monkeypatch.setattr(datasets.config, 'HF_HUB_OFFLINE', True)


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
  """A folder of data files, as those of the hub."""
  folder = tmp_path / 'texts'
  folder.mkdir()
  for split, texts in (('train', TEXTS), ('test', TEXTS[:5])):
    lines = [json.dumps({'text': text}) for text in texts]
    (folder / f'{split}.jsonl').write_text('\n'.join(lines))
  return folder


def read_texts(data: str) -> list[str]:
  """The documents that an input of this data has, in their order."""
  source = lm_input.LanguageModelInput.config(
    data=data,
    tokenizer_tpl=pax_fiddle.Config(tokenizers.ByteTokenizer),
    layout='truncate',
    seq_len=200,
    batch_size=COUNT,
  ).Instantiate()
  batch = source.get_next()
  lengths = batch.weights.sum(axis=1).astype(int)
  rows = batch.eval_sample_weights > 0
  return source.ids_to_strings(batch.ids[rows], lengths[rows])


def test_a_data_set_by_name(folder):
  assert read_texts(f'hf://{folder}') == TEXTS
  assert read_texts(f'hf://{folder}:test') == TEXTS[:5]


def test_a_data_set_that_was_downloaded_is_read_from_the_cache(folder):
  files = huggingface_datasets.arrow_files(f'hf://{folder}')
  assert huggingface_datasets.arrow_files(f'hf://{folder}') == files


def test_a_saved_data_set_without_the_caches_in_its_folder(tmp_path):
  dataset = datasets.Dataset.from_dict({'text': TEXTS})
  saved = tmp_path / 'saved'
  dataset.save_to_disk(saved, num_shards=3)
  loaded = datasets.load_from_disk(saved)
  loaded.map(lambda row: {'text': row['text'].upper()})
  assert len(list(saved.glob('*.arrow'))) > 3
  assert read_texts(str(saved)) == TEXTS
  datasets.DatasetDict(train=dataset).save_to_disk(tmp_path / 'splits')
  with pytest.raises(ValueError, match=r"the splits \['train'\]; name one"):
    read_texts(str(tmp_path / 'splits'))
  assert read_texts(str(tmp_path / 'splits' / 'train')) == TEXTS


def test_prepare_takes_names(folder, tmp_path, capsys):
  output = str(tmp_path / 'tokens')
  assert prepare.main(['prepare', f'hf://{folder}', output]) == 0
  assert f'{COUNT} documents' in capsys.readouterr().out
  tokens = np.fromfile(f'{output}.bin', np.uint16)
  assert len(tokens) == sum(map(len, TEXTS)) + 2 * COUNT


def test_errors(folder, monkeypatch):
  for name, message in (
    (f'hf://{folder}:dev', 'with the split .dev.: Unknown split'),
    ('hf://owner/missing', "owner/missing must be .* 'train': Couldn't reach"),
    ('hf://owner/name/config/more', 'must be hf://OWNER/NAME'),
    (f'hf://{folder}:train[:10%]', 'must be hf://OWNER/NAME'),
  ):
    with pytest.raises(ValueError, match=message):
      huggingface_datasets.arrow_files(name)
  monkeypatch.setitem(sys.modules, 'datasets', None)
  with pytest.raises(ValueError, match=r"pip install 'pax-jax\[hf\]'"):
    huggingface_datasets.arrow_files('hf://owner/name')
