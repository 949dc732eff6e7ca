# SPDX-License-Identifier: Apache-2.0
"""Steps whose checkpoints are never deleted, in `pinned_checkpoints.json`."""

from __future__ import annotations

import json
from typing import Any

from pax.files import side_files, working_copy

FILE = 'pinned_checkpoints.json'


def read(job_log_dir: str) -> frozenset[int]:
  """Returns the pinned steps of a job directory."""
  path = working_copy.origin(job_log_dir) / FILE
  return side_files.read_json(path, _parse) or frozenset()


def add(job_log_dir: str, step: int) -> None:
  """Pins a step until the user deletes the file."""
  steps = sorted(read(job_log_dir) | {step})
  text = json.dumps({'steps': steps})
  side_files.write_text(working_copy.origin(job_log_dir) / FILE, f'{text}\n')


def _parse(value: Any) -> frozenset[int]:
  side_files.check_fields(value, {'steps': list})
  for step in value['steps']:
    if not isinstance(step, int) or isinstance(step, bool):
      raise TypeError(f'a step is of type {type(step).__name__}')
  return frozenset(value['steps'])
