# SPDX-License-Identifier: Apache-2.0
"""Serialized executables of steps, to start jobs without compiling.

The first line of a file identifies program, versions and devices, and has a
checksum of the rest; a job rejects a file that differs in any of them.
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

from pax.files import atomic_file, trusted_files
from pax.partitioning.partitioned_step import PartitionedStep

_FORMAT = 2
# Addresses of host callbacks in lowered programs, different in each process.
_ADDRESS = re.compile(r'0x[0-9a-f]{6,}|\d{10,}')
# Names of the fields in error messages.
_FIELD_NAMES = {
  'format': 'version of the file',
  'jax': 'JAX version',
  'jaxlib': 'jaxlib version',
  'device_kind': 'kind of device',
  'mesh': 'mesh',
  'program': 'configuration (or the code)',
}


def save(step: PartitionedStep, path: str | os.PathLike[str]) -> None:
  """Writes the executable of the step, compiling it if necessary.

  Raises:
    ValueError: The file cannot be written, or the platform cannot serialize
      executables.
  """
  path = pathlib.Path(path)
  try:
    payload, _, _ = serialize_executable.serialize(step.compiled)
    identity = _identity(step, step.lower())
    identity['sha256'] = hashlib.sha256(payload).hexdigest()
    atomic_file.make_folder(path.parent, parents=True)
    with atomic_file.open_atomic(path) as file:
      file.write(json.dumps(identity).encode() + b'\n')
      file.write(payload)
  except (OSError, NotImplementedError) as e:
    raise ValueError(f'cannot save the compiled step to {path}: {e}') from e


def load(
  step: PartitionedStep,
  path: str | os.PathLike[str],
  *,
  trust_foreign_files: bool = False,
) -> None:
  """Sets the executable of the step to the one that `save` wrote.

  The step is still traced, for its output structure and to compare programs.
  The file is code: its executable runs, and reading it unpickles it.

  Args:
    step: The step, not compiled.
    path: The file.
    trust_foreign_files: Whether to load a file that other users can write.

  Raises:
    UntrustedFileError: Other users can write the file.
    ValueError: The file cannot be read, or is of another step or machine.
  """
  try:
    content = trusted_files.read_bytes(
      path, trust_foreign_files=trust_foreign_files
    )
    head, _, payload = content.partition(b'\n')
    saved = dict(json.loads(head))
  except trusted_files.UntrustedFileError as e:
    raise trusted_files.UntrustedFileError(f'--aot_load: {e}') from None
  except (OSError, TypeError, ValueError) as e:
    raise ValueError(
      f'no compiled step can be read from {path}: {e}; --mode=aot'
      ' --aot_save=FILE writes one'
    ) from e
  lowered = step.lower()
  current = _identity(step, lowered)
  different = [n for n in _FIELD_NAMES if saved.get(n) != current[n]]
  if different:
    name = different[0]
    saved_value, current_value = (
      ('', '')
      if name == 'program'
      else (f' {saved.get(name)}', f' {current[name]}')
    )
    raise ValueError(
      f'the compiled step in {path} is of another'
      f' {_FIELD_NAMES[name]}{saved_value}, and this job has'
      f'{current_value or " its own"}; compile again with --mode=aot --aot_save'
    )
  if saved.get('sha256') != hashlib.sha256(payload).hexdigest():
    raise ValueError(
      f'the compiled step in {path} is damaged: its checksum differs; compile'
      ' again with --mode=aot --aot_save'
    )
  try:
    step.set_compiled(
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
      f'the compiled step in {path} is not for this machine: {e};'
      ' compile again with --mode=aot --aot_save'
    ) from e


def _identity(
  step: PartitionedStep, lowered: jax.stages.Lowered
) -> dict[str, Any]:
  """Returns the properties in which file and job must agree."""
  text = _ADDRESS.sub('', lowered.as_text())
  return {
    'format': _FORMAT,
    'jax': jax.__version__,
    'jaxlib': jax.lib.__version__,
    'device_kind': step.devices[0].device_kind,
    'mesh': str(dict(step.mesh_shape)),
    'program': hashlib.sha256(text.encode()).hexdigest(),
  }
