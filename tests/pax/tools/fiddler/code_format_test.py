# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Long lines become short ones that mean the same."""

from __future__ import annotations

import ast

from pax.tools.fiddler import code_format

LONG = (
  "a.Long, first=c.Config(a.Other, values=[10000, 20000, 30000], name='one'),"
  " second={'key': (c.first, c.second), 'other': 'text'}"
)
SOURCE = """
import a
from b import c

def f():
    x = [1, 2]
    y = c.Config(LONG)
    return c.Config(x, y, **{'z': 1})

def g(n=3):
    for i in range(n):
        print(i)
    return None
""".replace('LONG', LONG)


def test_lines_are_short_and_mean_the_same():
  text = code_format.format_code(SOURCE)
  assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(SOURCE))
  assert max(map(len, text.splitlines())) <= 80
  head = 'import a\nfrom b import c\n\n\ndef f():\n  x = [1, 2]\n'
  assert text.startswith(head)
  assert '    first=c.Config(\n      a.Other, ' not in text
  assert "    second={'key': (c.first, c.second), 'other': 'text'},\n" in text
  assert '\n\n\ndef g(n=3):\n  for i in range(n):\n      print(i)\n' in text


def test_again_changes_nothing():
  text = code_format.format_code(SOURCE)
  assert code_format.format_code(text) == text


def test_single_elements_of_tuples_stay_tuples():
  source = f'x = ({"a" * 50!r}, {"b" * 50!r})\ny = ({"c" * 90!r},)\n'
  text = code_format.format_code(source)
  assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(source))
