# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Files that paths, globs, folders and names select."""

from __future__ import annotations

import json

import pytest

from pax.inputs.records import data_files

SUFFIXES = ('.bin', '.arrow')


def test_globs_and_folders_are_sorted_and_have_known_suffixes(tmp_path):
  for name in ('b.bin', 'a.bin', 'a.idx', 'c.arrow'):
    (tmp_path / name).touch()
  names = [f'{tmp_path}/{name}' for name in ('a.bin', 'b.bin', 'c.arrow')]
  assert data_files.expand(str(tmp_path), SUFFIXES) == names
  assert data_files.expand(f'{tmp_path}/*.bin', SUFFIXES) == names[:2]
  with pytest.raises(ValueError, match=r'no file .*folders of .bin, .arrow'):
    data_files.expand(f'{tmp_path}/*.idx', SUFFIXES)


def test_names_that_exist_are_no_globs(tmp_path):
  folder = tmp_path / 'v[1]'
  folder.mkdir()
  (tmp_path / 'v1').mkdir()
  for path in (folder, tmp_path / 'v1'):
    (path / 'a*[0].bin').touch()
  names = [f'{folder}/a*[0].bin']
  assert data_files.expand(str(folder), SUFFIXES) == names
  assert data_files.expand(names[0], SUFFIXES) == names


def test_a_saved_data_set_has_its_own_order(tmp_path):
  for name in ('cache-1.arrow', 'data-0.arrow', 'data-1.arrow'):
    (tmp_path / name).touch()
  files = [{'filename': f'data-{i}.arrow'} for i in (1, 0)]
  (tmp_path / 'state.json').write_text(json.dumps({'_data_files': files}))
  names = [f'{tmp_path}/data-{i}.arrow' for i in (1, 0)]
  assert data_files.expand(str(tmp_path), SUFFIXES) == names
  (tmp_path / 'dataset_dict.json').write_text('{"splits": ["train"]}')
  with pytest.raises(ValueError, match=rf'such as {tmp_path}/train'):
    data_files.expand(str(tmp_path), SUFFIXES)


def test_names_of_data_sets():
  for name in ('hf://', 'hf://a/b/c/d', 'hf://a b', 'hf://a:train[:10%]'):
    with pytest.raises(ValueError, match='must be hf://OWNER/NAME'):
      data_files.expand(name, SUFFIXES)
