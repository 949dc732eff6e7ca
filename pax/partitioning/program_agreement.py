# SPDX-License-Identifier: Apache-2.0
"""Checks that all processes of a mesh compile the same program.

Processes that run different programs wait for each other in collectives
without an end, or compute wrong sums.
"""

from __future__ import annotations

import hashlib
import re
import tempfile

import jax
from jax.sharding import Mesh

from pax import coordination_service

# A process may compile later than the others, whose inputs start faster.
_TIMEOUT_SECS = 3600
# What custom calls contain besides their options: the address of a partitioner
# in Python, a serialized kernel with the paths of its source.
_PAYLOAD = re.compile(r'backend_config = "[^"]*"')


class ProgramsDifferError(ValueError):
  """The program of a process is not that of process 0."""


def check(
  name: str,
  lowered: jax.stages.Lowered,
  mesh: Mesh,
  barriers: coordination_service.Barriers | None = None,
) -> None:
  """Compares a program with that of process 0; all processes of a mesh call it.

  Args:
    name: of the program, the same in all processes.
    lowered: the program of this process.
    mesh: the devices that run it. Nothing is compared unless they are those of
      several processes, and of all.
    barriers: barriers of the processes; None makes those of the job.

  Raises:
    ProgramsDifferError: the programs of two processes differ. Each writes its
      own to a file that the message names.
    MissingProcessesError: a process does not compile this program.
  """
  processes = {device.process_index for device in mesh.devices.flat}
  if len(processes) < max(2, jax.process_count()):
    return
  barriers = barriers or coordination_service.Barriers(
    'programs', _TIMEOUT_SECS
  )
  text = _PAYLOAD.sub('', lowered.as_text())
  digest = hashlib.sha256(text.encode()).hexdigest()
  digests = barriers.wait(f'{name} is lowered', digest)
  first = digests[min(digests)]
  different = [str(i) for i, other in digests.items() if other != first]
  if different:
    with tempfile.NamedTemporaryFile(
      'w', prefix=f'{name}_', suffix='.mlir', delete=False
    ) as file:
      file.write(text)
    raise ProgramsDifferError(
      f'all processes must compile the same {name}, but that of process'
      f' {", ".join(different)} is not that of process {min(digests)}. Start'
      ' all with the same flags, files, packages and environment, and with the'
      ' same PYTHONHASHSEED if code iterates over sets. The program of this'
      f' process is in {file.name}; compare it with those of the others'
    )
