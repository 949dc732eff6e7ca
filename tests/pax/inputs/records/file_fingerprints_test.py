# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Fingerprints of files: what changes them, and what does not."""

from __future__ import annotations

import os
import pathlib

import pytest

from pax.inputs.records import file_fingerprints


def write(folder: pathlib.Path, **contents: bytes) -> list[str]:
  folder.mkdir(exist_ok=True)
  for name, content in contents.items():
    (folder / name).write_bytes(content)
  return [str(folder / name) for name in contents]


def test_a_text_with_names_sizes_and_digests(tmp_path):
  (path,) = write(tmp_path, a=b'x' * 2000)
  assert file_fingerprints.describe([path]).startswith('a of 2,000 bytes, ')
  paths = write(tmp_path, a=b'x' * 2000, b=b'', c=b'y')
  text = file_fingerprints.describe(paths)
  assert text.startswith('3 files of 2,001 bytes from a to c, names ')
  assert file_fingerprints.describe([]).startswith('0 files of 0 bytes, ')


def test_files_may_move_and_times_may_change(tmp_path):
  paths = write(tmp_path / '1', a=b'xyz', b=b'123')
  moved = write(tmp_path / '2', a=b'xyz', b=b'123')
  os.utime(moved[0], (0, 0))
  assert file_fingerprints.describe(paths) == file_fingerprints.describe(moved)


@pytest.mark.parametrize(
  'contents',
  [
    {'b': b'xyz', 'a': b'123'},
    {'a': b'123', 'b': b'xyz'},
    {'a': b'xy', 'b': b'z123'},
    {'a': b'xyz', 'b': b'124'},
    {'a': b'xyz', 'c': b'123'},
    {'a': b'xyz'},
  ],
)
def test_order_sizes_names_and_contents_count(tmp_path, contents):
  paths = write(tmp_path / '1', a=b'xyz', b=b'123')
  others = write(tmp_path / '2', **contents)
  assert file_fingerprints.describe(paths) != file_fingerprints.describe(others)


def test_large_files_are_sampled_everywhere(tmp_path, monkeypatch):
  reads = []
  pread = os.pread
  monkeypatch.setattr(
    os, 'pread', lambda *args: reads.append(args[1:]) or pread(*args)
  )
  content = bytearray(1 << 23)
  texts = set()
  for changed in (None, 0, 1 << 22, (1 << 23) - (1 << 16)):
    if changed is not None:
      content[changed : changed + (1 << 16)] = b'1' * (1 << 16)
    texts.add(
      file_fingerprints.describe(write(tmp_path, a=bytes(content), b=b'1'))
    )
  assert len(texts) == 4
  assert len(reads) == 4 * 256 and {size for size, _ in reads} == {1 << 12}
