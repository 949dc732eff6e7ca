# SPDX-License-Identifier: Apache-2.0
"""Runs the programs that a release needs."""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Mapping, Sequence


class ReleaseError(Exception):
  """A release cannot be made; the message has the reason and the next step."""


def run(
  words: Sequence[str | pathlib.Path],
  *,
  folder: pathlib.Path | None = None,
  variables: Mapping[str, str] | None = None,
) -> str:
  """Runs a program and returns its output.

  Args:
    words: the program and its arguments.
    folder: where it runs.
    variables: environment variables in addition to those of this process. The
      module path of this process, which Bazel sets, is not among them.

  Raises:
    ReleaseError: the program is missing or fails.
  """
  environment = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
  try:
    done = subprocess.run(
      list(map(str, words)),
      cwd=folder,
      env=environment | dict(variables or {}),
      capture_output=True,
      text=True,
      check=False,
    )
  except FileNotFoundError as e:
    raise ReleaseError(f'{e.filename} is missing; install it') from e
  if done.returncode:
    command = ' '.join(map(str, words))
    raise ReleaseError(f'{command}\n{done.stdout}{done.stderr}'.strip())
  return done.stdout
