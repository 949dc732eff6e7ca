# SPDX-License-Identifier: Apache-2.0
"""Runs `pax convert`."""

# bazel: deps=//pax:main_lib
from __future__ import annotations

import pathlib

from pax import exit_codes, main


def run(capsys, *words: object) -> str:
  """Returns what a conversion prints."""
  assert main.main(['pax', 'convert', *map(str, words)]) == 0
  return capsys.readouterr().out


def fail(capsys, *words: object) -> str:
  """Returns the error of a conversion."""
  code = main.main(['pax', 'convert', *map(str, words)])
  assert code == exit_codes.ERROR
  return capsys.readouterr().err


def contents(folder: pathlib.Path) -> dict[str, bytes]:
  """Returns the files of a folder by name."""
  return {file.name: file.read_bytes() for file in folder.iterdir()}
