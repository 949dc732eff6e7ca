# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Objects of gs://, which gcsfs and TensorStore read and write."""

from __future__ import annotations

import os

import fsspec
import pytest
import tensorstore

from pax.files import storage
from tests.testing import bucket_server

job, proxy = bucket_server.job, bucket_server.proxy
pytestmark = pytest.mark.parametrize('proxy', ['gs'], indirect=True)


@pytest.fixture
def kvstore(job):
  return tensorstore.KvStore.open(storage.kvstore(job)).result()


def test_objects(job, kvstore):
  data = b'first\r\n\nlast\r\n'
  (job / 'a/b').write_bytes(data)
  assert (job / 'a/b').read_bytes() == data == kvstore['a/b']
  assert (job / 'a/b').read_range(3, 8) == data[3:8]
  assert (job / 'a/b').stat().st_size == len(data)
  kvstore['a/ü c'] = b''
  assert (job / 'a/ü c').read_bytes() == b''
  assert [path.name for path in job.iterdir()] == ['a']
  assert job.file_sizes() == {'a/b': len(data), 'a/ü c': 0}
  storage.move_tree(job / 'a', job / 'd')
  assert job.files() == ['d/b', 'd/ü c'] and not (job / 'a').exists()
  assert kvstore.list().result() == [b'd/b', 'd/ü c'.encode()]
  with pytest.raises(FileNotFoundError, match='no such object'):
    (job / 'a/b').read_bytes()


def test_an_exclusive_write_does_not_replace(job):
  (job / '.lock').write_bytes(b'1', is_exclusive=True)
  with pytest.raises(FileExistsError, match='the object exists'):
    (job / '.lock').write_bytes(b'2', is_exclusive=True)
  assert (job / '.lock').read_bytes() == b'1'


def test_tensorstore_replaces_only_what_it_has_read(job, kvstore):
  """As it does with the index of a database."""
  before = kvstore.write('index', b'1').result().generation
  (job / 'index').write_bytes(b'2')
  kvstore.write('index', b'3', if_equal=before).result()
  assert (job / 'index').read_bytes() == b'2'
  now = kvstore.read('index').result().stamp.generation
  kvstore.write('index', b'3', if_equal=now).result()
  assert (job / 'index').read_bytes() == b'3'


def test_lists_have_several_pages(job, kvstore):
  names = [f'{number:04}' for number in range(1001)]
  for write in [kvstore.write(f'a/{name}', b'') for name in names]:
    write.result()
  kvstore['b'] = b''
  assert (job / 'a').files() == names
  assert len(kvstore.list().result()) == len(names) + 1
  kvstore.delete_range(tensorstore.KvStore.KeyRange('a/', 'a0')).result()
  assert job.files() == ['b']


# Of aiohttp, to gcsfs.
@pytest.mark.filterwarnings('ignore:Sending a large body:ResourceWarning')
def test_large_files_are_uploaded_and_downloaded_in_parts(job, proxy, tmp_path):
  source, copy = tmp_path / 'source', tmp_path / 'copy'
  source.write_bytes(os.urandom(51 << 20))
  (job / 'large').upload(source)
  # An upload begins with a request without data.
  assert [method for method, _, _ in proxy.requests] == 3 * ['PUT']
  (job / 'large').download(copy)
  assert copy.read_bytes() == source.read_bytes()


def test_a_request_without_an_answer_is_repeated(job, proxy, monkeypatch):
  (job / 'a').write_bytes(b'a')
  monkeypatch.setitem(fsspec.config.conf, 'gs', {'requests_timeout': 0.5})
  storage._filesystem.cache_clear()
  actions = [bucket_server.HANG]
  proxy.policy = lambda method, path: (
    actions.pop() if actions else bucket_server.FORWARD
  )
  assert (job / 'a').read_bytes() == b'a'
  assert not actions
