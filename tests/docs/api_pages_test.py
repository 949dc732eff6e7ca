# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Pages of the API reference are made from the source, without imports."""

from __future__ import annotations

import pytest

from tools.docs import api_pages

MODULE = '''
"""Gates of [B, D] arrays."""
import not_installed

class Gate(Base):
  """Scales `x` by a gate.

      gate = Gate()

  It is learned.
  """

  # Size of the last
  # dimension.
  dims: int = 0
  _hidden: int = 1

  @property
  def size(self) -> int:
    """The size."""

  @size.setter
  def size(self, value):
    """Not described again."""

  def __call__(self, x, *, scale: float = 1.0) -> Array:
    """Is private."""

  @overload
  def apply(self, x: Array, *, scale: float = 1.0) -> Array: ...

  def apply(self, x, *, scale: float = 1.0) -> Array:
    """Applies it.

    Args:
      x: of shape [B, D],
        any dtype.
      scale: a factor.

    Raises:
      ValueError: `x` is empty.

    Returns:
      The gated <x>.
    """

def _private():
  """Is private."""
'''
CLASS = """\
## lib.gates

:::{py:module} lib.gates
:::

Gates of \\[B, D\\] arrays.

::::{py:class} Gate

Bases: `Base`

Scales `x` by a gate.

```text
gate = Gate()
```

It is learned.

- `dims: int = 0`: Size of the last dimension.

:::{py:property} size
:type: int

The size.

:::

:::{py:method} apply(x, *, scale: float=1.0) -> Array

Applies it.

:param x: of shape \\[B, D\\], any dtype.
:param scale: a factor.

:raises ValueError: `x` is empty.

:returns: The gated \\<x\\>.

:::

::::
"""


@pytest.fixture
def pages(tmp_path):
  package = tmp_path / 'lib'
  (package / 'tasks').mkdir(parents=True)
  files = {
    '__init__.py': '"""A library."""\nfrom lib.gates import Gate\n',
    'gates.py': MODULE,
    'tasks/__init__.py': '',
    'tasks/one.py': 'def run(): pass\n',
  }
  for name, text in files.items():
    (package / name).write_text(text)
  return api_pages.pages(tmp_path, ['lib'], ['lib.tasks'])


def test_a_class_has_its_fields_and_methods(pages):
  assert CLASS in pages['api/lib']


def test_a_package_has_the_names_it_exports(pages):
  assert '# lib\n\nA library.' in pages['api/lib']
  assert 'Names of the package: `Gate`.' in pages['api/lib']


def test_the_index_lists_the_pages(pages):
  assert set(pages) == {'api/lib', 'api/index'}
  assert '\nlib\n' in pages['api/index']


@pytest.mark.parametrize(
  'text, markdown',
  [
    ('a_b *c* `d_e`', 'a\\_b \\*c\\* `d_e`'),
    ('<td> [x](y)', '\\<td\\> \\[x\\](y)'),
  ],
)
def test_text_of_docstrings_is_no_markup(text, markdown):
  assert api_pages.escape(text) == markdown
