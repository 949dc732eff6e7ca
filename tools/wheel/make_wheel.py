# SPDX-License-Identifier: Apache-2.0
"""Writes a reproducible wheel.

Its requirements are the imports of its files, with the bounds of
pyproject.toml.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import pathlib
import re
import tomllib
import zipfile

from tools import gen_build, pyimports

_EPOCH = (1980, 1, 1, 0, 0, 0)
_ROOT = pathlib.Path()


def normalized(requirement: str) -> str:
  """Returns the name of a requirement: tensorboardx of `tensorboardX>=2.6`."""
  name = re.split(r'[^\w.-]', requirement, maxsplit=1)[0]
  return re.sub(r'[-_.]+', '_', name).lower()


def imported(paths: list[pathlib.Path]) -> set[str]:
  """Returns the top-level names that Python files import, lazily or not."""
  modules = [
    pyimports.read(_ROOT, pathlib.PurePosixPath(path))
    for path in paths
    if path.suffix == '.py'
  ]
  return {name.split('.')[0] for m in modules for name in m.imports}


def requires(
  paths: list[pathlib.Path], project: dict, own: set[str]
) -> list[str]:
  """Returns Requires-Dist of a wheel; `own` are our distributions."""
  bounds = {normalized(text): text for text in project['dependencies']}
  names = imported(paths)
  needed = {gen_build.DISTRIBUTIONS.get(n, n.lower()) for n in names}
  ours = [f'{name}=={project["version"]}' for name in sorted(own & names)]
  return ours + [bounds[name] for name in sorted(needed & set(bounds))]


def metadata(name: str, project: dict, needs: list[str]) -> str:
  rows = [
    'Metadata-Version: 2.4',
    f'Name: {name}',
    f'Version: {project["version"]}',
    f'Summary: {project["description"]}',
    f'License-Expression: {project["license"]}',
    f'Requires-Python: {project["requires-python"]}',
    *(f'Requires-Dist: {need}' for need in needs),
  ]
  return '\n'.join(rows) + '\n'


def wheel_info(tag: str) -> str:
  pure = 'true' if tag.endswith('-any') else 'false'
  return (
    'Wheel-Version: 1.0\nGenerator: //tools/wheel\n'
    f'Root-Is-Purelib: {pure}\nTag: {tag}\n'
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
  for name in ('out', 'name', 'tag', 'version', 'pyproject'):
    parser.add_argument(f'--{name}', required=True)
  parser.add_argument('--own', action='append', default=[])
  parser.add_argument('--script', action='append', default=[])
  parser.add_argument('files', nargs='*')
  args = parser.parse_args()
  text = pathlib.Path(args.pyproject).read_text(encoding='utf-8')
  project = tomllib.loads(text)['project']
  if project['version'] != args.version:
    raise SystemExit(
      f'make_wheel: wheel.bzl has version {args.version}, '
      f'pyproject.toml {project["version"]}; make them equal'
    )
  pairs = [pair.rpartition('=') for pair in args.files]
  info = f'{args.name}-{args.version}.dist-info'
  needs = requires([pathlib.Path(p[0]) for p in pairs], project, set(args.own))
  entries = {dest: pathlib.Path(src).read_bytes() for src, _, dest in pairs}
  entries[f'{info}/METADATA'] = metadata(args.name, project, needs).encode()
  entries[f'{info}/WHEEL'] = wheel_info(args.tag).encode()
  if args.script:
    rows = '\n'.join(['[console_scripts]', *args.script])
    entries[f'{info}/entry_points.txt'] = f'{rows}\n'.encode()
  write(args.out, info, entries)


if __name__ == '__main__':
  main()
