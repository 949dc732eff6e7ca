# SPDX-License-Identifier: Apache-2.0
"""Writes a reproducible wheel with the metadata that setuptools would write."""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import io
import pathlib
import shutil
import tempfile
import zipfile
from collections.abc import Mapping

from setuptools import build_meta

_EPOCH = (1980, 1, 1, 0, 0, 0)


def parse_file_name(path: str) -> tuple[str, str, str]:
  """Returns the distribution, the version and the tag of a wheel's name."""
  distribution, version, tag = pathlib.Path(path).stem.split('-', 2)
  return distribution, version, tag


def metadata(
  project: list[str], packages: Mapping[str, str]
) -> dict[str, bytes]:
  """Returns the files of the dist-info folder: {path: content}.

  Args:
    project: pyproject.toml and the files that it names.
    packages: {path in the wheel: path} of the modules; only the files of the
      top-level packages, which have the version, are read.
  """
  sources = dict(zip(project, project, strict=True)) | {
    name: path
    for name, path in packages.items()
    if name.count('/') == 1 and name.endswith('/__init__.py')
  }
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    for name, path in sources.items():
      (root / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy(path, root / name)
    with contextlib.chdir(root), contextlib.redirect_stdout(io.StringIO()):
      info = build_meta.prepare_metadata_for_build_wheel('.')
    return {
      str(path.relative_to(root / info)): path.read_bytes()
      for path in (root / info).rglob('*')
      if path.is_file()
    }


def with_version(text: bytes, version: str) -> bytes:
  """Returns METADATA with a local version: 0.1.0+cuda13 of 0.1.0.

  Raises:
    SystemExit: the version is another one.
  """
  public = version.partition('+')[0]
  old = f'\nVersion: {public}\n'.encode()
  if old not in text:
    raise SystemExit(
      f'make_wheel: tools/wheel/wheel.bzl has version {public}, pax/__init__.py'
      ' another one; make them equal'
    )
  return text.replace(old, f'\nVersion: {version}\n'.encode(), 1)


def wheel_info(tag: str) -> str:
  return (
    'Wheel-Version: 1.0\nGenerator: //tools/wheel\n'
    f'Root-Is-Purelib: false\nTag: {tag}\n'
  )


def write(out: str, info: str, entries: dict[str, bytes]) -> None:
  """Writes the entries and their RECORD."""
  record = ''
  with zipfile.ZipFile(out, 'w') as z:

    def put(name: str, data: bytes) -> None:
      entry = zipfile.ZipInfo(name, _EPOCH)
      mode = 0o755 if name.endswith('.so') else 0o644
      entry.external_attr = (0o100000 | mode) << 16
      entry.compress_type = zipfile.ZIP_DEFLATED
      z.writestr(entry, data)

    for name, data in sorted(entries.items()):
      digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
      record += f'{name},sha256={digest.rstrip(b"=").decode()},{len(data)}\n'
      put(name, data)
    put(f'{info}/RECORD', f'{record}{info}/RECORD,,\n'.encode())


def main() -> None:
  parser = argparse.ArgumentParser(fromfile_prefix_chars='@')
  parser.add_argument('--out', required=True)
  parser.add_argument('--project', action='append', default=[])
  parser.add_argument('files', nargs='*', help='PATH=PATH_IN_WHEEL')
  args = parser.parse_args()
  distribution, version, tag = parse_file_name(args.out)
  info = f'{distribution}-{version}.dist-info'
  pairs = [pair.rpartition('=') for pair in args.files]
  paths = {name: path for path, _, name in pairs}
  files = metadata(args.project, paths)
  files['METADATA'] = with_version(files['METADATA'], version)
  files['WHEEL'] = wheel_info(tag).encode()
  entries = {f'{info}/{name}': data for name, data in files.items()}
  entries |= {n: pathlib.Path(path).read_bytes() for n, path in paths.items()}
  write(args.out, info, entries)


if __name__ == '__main__':
  main()
