# SPDX-License-Identifier: Apache-2.0
"""A package index of static files: the simple repository API of PEP 503.

python -m http.server --directory dist/X.Y.Z
pip install --extra-index-url http://localhost:8000/simple/ pax-jax
"""

from __future__ import annotations

import hashlib
import html
import pathlib
import urllib.parse

FOLDER = 'simple'
_DISTRIBUTIONS = ('.tar.gz', '.whl')
_PAGE = """\
<!DOCTYPE html>
<html>
<head>
<meta name="pypi:repository-version" content="1.0">
<title>{title}</title>
</head>
<body>
{links}</body>
</html>
"""


def sha256(path: pathlib.Path) -> str:
  """Returns the SHA-256 of a file, hexadecimal."""
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def write(
  folder: pathlib.Path, distribution: str, requires_python: str
) -> None:
  """Writes the index `folder/simple` of the distributions in a folder.

  Args:
    folder: with source distributions and wheels; a server has to serve it.
    distribution: their canonical name.
    requires_python: as in their metadata.
  """
  page = folder / FOLDER / distribution
  page.mkdir(parents=True)
  versions = html.escape(requires_python)
  links = ''.join(
    f'<a href="../../{urllib.parse.quote(path.name)}#sha256={sha256(path)}"'
    f' data-requires-python="{versions}">{html.escape(path.name)}</a><br>\n'
    for path in sorted(folder.iterdir())
    if path.name.endswith(_DISTRIBUTIONS)
  )
  _write_page(page, f'Links for {distribution}', links)
  link = f'<a href="{distribution}/">{distribution}</a>\n'
  _write_page(page.parent, 'Simple index', link)


def _write_page(folder: pathlib.Path, title: str, links: str) -> None:
  text = _PAGE.format(title=title, links=links)
  (folder / 'index.html').write_text(text, encoding='utf-8')
