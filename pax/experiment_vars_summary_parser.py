# SPDX-License-Identifier: Apache-2.0
"""Reads `experiment_cls_vars.txt` again.

A module of its own that imports nothing of Pax, for those who only read.
"""

from __future__ import annotations

import ast
from typing import Any

from absl import logging


def parse(cls_vars_summary: str) -> dict[str, Any]:
  """Returns the constants by name that a summary of an experiment tells.

  What is no Python literal, such as a class, stays the text it is.
  """
  found = {}
  for line in cls_vars_summary.splitlines():
    text = line.strip()
    if not text or text.endswith(':'):
      continue  # Between classes, or the name of one.
    name, colon, value = text.partition(':')
    if not colon:
      logging.warning('No name and value in this line: %s', line)
      continue
    found[name.strip()] = _value(value.strip())
  return found


def _value(text: str) -> Any:
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text
