# SPDX-License-Identifier: Apache-2.0
"""The file input_specs.json of a job: shapes and dtypes of a batch."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import jax

from pax.files import side_files
from pax.steps import Batch

_FILE = 'input_specs.json'


def write(host_spec: Batch, job_log_dir: str | os.PathLike[str]) -> None:
  """Writes the shapes of the batch of one host; only the first process does.

  Args:
    host_spec: Shapes and dtypes.
    job_log_dir: The directory of the job.
  """
  if jax.process_index() != 0:
    return

  def describe(x: jax.ShapeDtypeStruct) -> dict[str, Any]:
    return {'_array': {'shape': list(x.shape), 'dtype': str(x.dtype)}}

  text = json.dumps(jax.tree.map(describe, host_spec), indent=2, sort_keys=True)
  side_files.write_text(pathlib.Path(job_log_dir) / _FILE, text)
