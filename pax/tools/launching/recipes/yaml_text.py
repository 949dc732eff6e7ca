# SPDX-License-Identifier: Apache-2.0
"""Strings as YAML that every parser reads back unchanged.

References: YAML 1.2.2, https://yaml.org/spec/1.2.2/
"""

from __future__ import annotations

import json
import re

# Words that no version of YAML reads as another type, unless reserved.
_PLAIN = re.compile(
  r'[A-Za-z_][A-Za-z0-9_]*(-[A-Za-z0-9]+)*|[1-9]\d*(x[1-9]\d*)+'
)
_RESERVED = frozenset(
  ('y', 'n', 'yes', 'no', 'true', 'false', 'on', 'off', 'null')
)


def scalar(text: str) -> str:
  """Returns a string as a plain scalar if possible, else double-quoted."""
  if _PLAIN.fullmatch(text) and text.lower() not in _RESERVED:
    return text
  return quoted(text)


def quoted(text: str) -> str:
  """Returns a string as a double-quoted scalar on one line."""
  # JSON's strings are YAML's, except for characters that must be escaped there.
  return ''.join(
    char if char.isprintable() else _escape(ord(char))
    for char in json.dumps(text, ensure_ascii=False)
  )


def block(text: str, indent: int) -> str:
  """Returns a text as a literal block, or quoted if a block cannot hold it.

  Args:
    text: one or several lines; the first does not begin with a space.
    indent: spaces before each line.
  """
  lines = text.split('\n')
  if not all(line.isprintable() and line == line.rstrip() for line in lines):
    return quoted(text)
  margin = '\n' + ' ' * indent
  return '|' + ''.join(margin + line if line else '\n' for line in lines)


def _escape(code: int) -> str:
  return f'\\u{code:04x}' if code < 0x10000 else f'\\U{code:08x}'
