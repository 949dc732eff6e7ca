# SPDX-License-Identifier: Apache-2.0
"""Builds the documentation as a static HTML site.

    ./bazelw build //docs:site                         # bazel-bin/docs/site
    pip install '.[docs]' && python tools/docs/build_site.py docs/_build

The pages are docs/*.md, CONTRIBUTING.md and CHANGELOG.md, the notebooks in
docs/notebooks, and the API reference. Warnings are errors: a link to a missing
page or heading, a page in no table of contents.
"""

# bazel: deps=@pypi_docs//all
# bazel: deps=//tools/docs:python_domain
from __future__ import annotations

import argparse
import json
import pathlib
import re
import shutil
import sys
import tempfile
import zipfile

_ROOT = pathlib.Path(__file__).absolute().parents[2]
if __name__ == '__main__':
  sys.path.insert(0, str(_ROOT))

from tools.docs import api_pages  # noqa: E402

PACKAGES = ('pax', 'praxis')
# Constants of experiments, and re-exports that docs/paxml_names.md describes.
EXCLUDED = ('pax.contrib', 'pax.paxml_api', 'pax.tasks')
# Pages of the site that are in the root of the repository.
ROOT_PAGES = ('CHANGELOG.md', 'CONTRIBUTING.md')
# Files for those who debug the theme, and for sites that link to this one.
_UNPACKED = ('.map', '.inv')


def notebook_page(text: str) -> str:
  """Returns the cells of a notebook as Markdown."""
  parts = []
  for cell in json.loads(text)['cells']:
    source = ''.join(cell['source'])
    is_code = cell['cell_type'] == 'code'
    parts.append(f'```python\n{source}\n```' if is_code else source)
  return '\n\n'.join(parts) + '\n'


def write_sources(root: pathlib.Path, folder: pathlib.Path) -> None:
  """Writes the sources of all pages into a folder.

  Args:
    root: the root of the repository.
    folder: where to write.
  """
  shutil.copytree(root / 'docs', folder, ignore=_ignored, dirs_exist_ok=True)
  for name in ROOT_PAGES:
    text = (root / name).read_text(encoding='utf-8').replace('](docs/', '](')
    (folder / name.lower()).write_text(text, encoding='utf-8')
  for page in folder.glob('*.md'):
    text = page.read_text(encoding='utf-8')
    text = re.sub(
      rf'\]\(\.\./({"|".join(ROOT_PAGES)})', lambda m: f']({m[1].lower()}', text
    )
    page.write_text(text.replace('.ipynb)', '.md)'), encoding='utf-8')
  for notebook in folder.glob('notebooks/*.ipynb'):
    text = notebook_page(notebook.read_text(encoding='utf-8'))
    notebook.with_suffix('.md').write_text(text, encoding='utf-8')
  texts = api_pages.pages(root, PACKAGES, EXCLUDED)
  for name, text in texts.items():
    page = folder / f'{name}.md'
    page.parent.mkdir(exist_ok=True)
    page.write_text(text, encoding='utf-8')


def _ignored(folder: str, names: list[str]) -> set[str]:
  return {name for name in names if name in ('_build', 'BUILD', '__pycache__')}


def build(root: pathlib.Path, out: pathlib.Path, jobs: int = 1) -> int:
  """Builds the site; returns the exit code of Sphinx.

  Args:
    root: the root of the repository.
    out: the folder of the site.
    jobs: number of processes.
  """
  from sphinx.cmd import build as sphinx_build

  with tempfile.TemporaryDirectory() as folder:
    sources, cache = pathlib.Path(folder, 'sources'), f'{folder}/doctrees'
    write_sources(root, sources)
    options = ['-q', '-W', '--keep-going', '-b', 'html', '-j', str(jobs)]
    code = sphinx_build.main([*options, '-d', cache, str(sources), str(out)])
  (out / '.buildinfo').unlink(missing_ok=True)
  return code


def pack(site: pathlib.Path, path: pathlib.Path) -> None:
  """Writes the files of a site into a zip file; equal sites give equal bytes.

  Args:
    site: its folder.
    path: of the zip file, which the wheel contains for `pax docs`.
  """
  with zipfile.ZipFile(path, 'w') as z:
    for file in sorted(site.rglob('*')):
      if file.is_file() and file.suffix not in _UNPACKED:
        entry = zipfile.ZipInfo(file.relative_to(site).as_posix())
        entry.compress_type = zipfile.ZIP_DEFLATED
        z.writestr(entry, file.read_bytes(), compresslevel=9)


def main(argv: list[str]) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('out', type=pathlib.Path, help='folder of the site')
  parser.add_argument('--root', type=pathlib.Path, default=_ROOT)
  parser.add_argument('--jobs', type=int, default=1)
  parser.add_argument('--zip', type=pathlib.Path, help='also write this file')
  options = parser.parse_args(argv)
  code = build(options.root.resolve(), options.out.resolve(), options.jobs)
  if options.zip and not code:
    pack(options.out, options.zip)
  return code


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
