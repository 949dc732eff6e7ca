# SPDX-License-Identifier: Apache-2.0
"""Commits and tags a release; the commands that publish it."""

from __future__ import annotations

import pathlib
import shutil

from tools.release import documents, readiness
from tools.release.changelog import Section
from tools.release.programs import run

_FOLDER = pathlib.PurePath('third_party/releases')


def tag(root: pathlib.Path, out: pathlib.Path, section: Section) -> None:
  """Commits the requirements of a release, and tags the commit.

  A repetition changes nothing.

  Args:
    root: the root of the repository.
    out: the folder of the release.
    section: the version, in the changelog.
  """
  git: list[str | pathlib.Path] = ['git', '-C', root]
  folder = root / _FOLDER / section.version
  folder.mkdir(parents=True, exist_ok=True)
  for path in out.glob(documents.REQUIREMENTS):
    shutil.copy(path, folder)
  run([*git, 'add', folder])
  if run([*git, 'status', '--porcelain', folder]):
    run([*git, 'commit', '--quiet', f'--message=Release {section.version}'])
  name = readiness.tag(section.version)
  if not run([*git, 'tag', '--list', name]):
    message = f'Pax {section.version}\n\n{section.notes}\n'
    run([*git, 'tag', '--annotate', '--cleanup=verbatim', name, '-m', message])


def commands(out: pathlib.Path, version: str) -> str:
  """Returns the commands that publish the files of a release.

  Args:
    out: the folder of the release.
    version: of the release.
  """
  name = readiness.tag(version)
  # Not those of CUDA: public indices refuse local versions.
  public = [*sorted(out.glob('*.whl')), *out.glob('*.tar.gz')]
  files = (
    str(path)
    for path in sorted(out.rglob('*'))
    if path.is_file() and path.suffix != '.html'
  )
  return (
    f'git push origin HEAD {name}\n'
    f'twine upload {" ".join(map(str, public))}\n'
    f'gh release create {name} --notes-from-tag {" ".join(files)}\n'
  )
