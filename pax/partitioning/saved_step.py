# SPDX-License-Identifier: Apache-2.0
"""A compiled step as a file: a job that has one starts without compiling.

The file begins with a line that says what it was compiled of and for; a job for
which any of that is different refuses it.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import pickle
import re
from typing import Any

import jax
from jax.experimental import serialize_executable

from pax import atomic_file
from pax.partitioning.partitioned_step import PartitionedStep

_FORMAT = 1
# Addresses of functions of this process, which stand in lowered programs.
_ADDRESS = re.compile(r'0x[0-9a-f]{6,}|\d{10,}')
# What a difference means to the one who starts the job.
_WORDS = {
  'format': 'version of the file',
  'jax': 'JAX version',
  'jaxlib': 'jaxlib version',
  'device_kind': 'kind of device',
  'mesh': 'mesh',
  'program': 'configuration (or the code)',
}


def save(step: PartitionedStep, path: str | os.PathLike[str]) -> None:
  """Writes the step, compiling it first unless that was done.

  Raises:
    ValueError: it cannot be written, here or at all.
  """
  path = pathlib.Path(path)
  try:
    payload, _, _ = serialize_executable.serialize(step.compiled)
    identity = _identity(step, step.lower())
    with atomic_file.open_atomic(path) as file:
      file.write(json.dumps(identity).encode() + b'\n')
      file.write(payload)
  except (OSError, NotImplementedError) as e:
    raise ValueError(f'cannot save the compiled step to {path}: {e}') from e


def load(step: PartitionedStep, path: str | os.PathLike[str]) -> None:
  """Lets the step be what `save` wrote, so that it need not be compiled.

  The step is traced all the same: that tells its outputs, and whether the file
  is of this step. Whoever can write the file can run code here.

  Raises:
    ValueError: the file cannot be read, or is of another step or machine.
  """
  try:
    head, _, payload = pathlib.Path(path).read_bytes().partition(b'\n')
    saved = json.loads(head)
  except (OSError, ValueError) as e:
    raise ValueError(
      f'no compiled step can be read from {path}: {e}; --mode=aot'
      ' --aot_save=FILE writes one'
    ) from e
  lowered = step.lower()
  here = _identity(step, lowered)
  wrong = [name for name in _WORDS if saved.get(name) != here[name]]
  if wrong:
    name = wrong[0]
    was, now = (
      ('', '')
      if name == 'program'
      else (f' {saved.get(name)}', f' {here[name]}')
    )
    raise ValueError(
      f'the compiled step in {path} is of another {_WORDS[name]}{was}, and this'
      f' job has{now or " its own"}; compile again with --mode=aot --aot_save'
    )
  try:
    step.adopt(
      serialize_executable.deserialize_and_load(
        payload,
        jax.tree.structure(lowered.args_info),
        jax.tree.structure(lowered.out_info),
        step.devices[0].client,
        step.devices,
      )
    )
  except (jax.errors.JaxRuntimeError, pickle.UnpicklingError, EOFError) as e:
    raise ValueError(
      f'the compiled step in {path} is damaged or not for this machine: {e};'
      ' compile again with --mode=aot --aot_save'
    ) from e


def _identity(
  step: PartitionedStep, lowered: jax.stages.Lowered
) -> dict[str, Any]:
  """What must be the same where the step is compiled and where it runs."""
  text = _ADDRESS.sub('', lowered.as_text())
  return {
    'format': _FORMAT,
    'jax': jax.__version__,
    'jaxlib': jax.lib.__version__,
    'device_kind': step.devices[0].device_kind,
    'mesh': str(dict(step.mesh_shape)),
    'program': hashlib.sha256(text.encode()).hexdigest(),
  }
