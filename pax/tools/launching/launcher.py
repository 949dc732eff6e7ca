# SPDX-License-Identifier: Apache-2.0
"""The commands of a job's processes: on this machine, or over ssh."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Mapping

from pax.runner import parent_death
from pax.tools.launching.job import Job, joining
from pax.tools.launching.process_group import Command

PORT = 8476
# No question can be answered, and a machine that is gone is noticed.
SSH = (
  'ssh',
  '-o',
  'BatchMode=yes',
  '-o',
  'ServerAliveInterval=15',
  '-o',
  'ServerAliveCountMax=4',
)


def here(job: Job) -> list[Command]:
  """All processes on this machine."""
  address = f'localhost:{job.port or _free_port()}'
  program = shlex.split(job.program) if job.program else _this_program()
  path = {'PYTHONPATH': os.pathsep.join(sys.path)}
  count = job.num_hosts
  return [
    Command(
      name=str(index),
      words=[*program, *job.run_words, *joining(address, count, index)],
      environment={
        **path,
        **_environment(job, index),
        **_visible(job, index),
      },
    )
    for index in range(count)
  ]


def over_ssh(job: Job) -> list[Command]:
  """One process on each machine; the first is where the others meet."""
  address = f'{job.machines[0].rpartition("@")[2]}:{job.port or PORT}'
  return [
    Command(
      name=machine,
      words=[*SSH, machine, remote_line(job, address, index)],
      is_remote=True,
    )
    for index, machine in enumerate(job.machines)
  ]


def remote_line(job: Job, address: str, index: int) -> str:
  """What the shell of another machine is given."""
  variables = _environment(job, index) | parent_death.ON_INPUT
  assigned = [f'{name}={shlex.quote(v)}' for name, v in variables.items()]
  joins = joining(address, job.num_hosts, index)
  return f'exec env {" ".join(assigned)} {job.command()} {shlex.join(joins)}'


def _environment(job: Job, index: int) -> Mapping[str, str]:
  """What one process finds set; a slice is told where there are several."""
  found = {'PYTHONUNBUFFERED': '1', **job.environment}
  if job.slices > 1:
    found['JAX_PARTITION_INDEX'] = str(index // job.hosts_per_slice)
  return found


def _visible(job: Job, index: int) -> Mapping[str, str]:
  """The GPUs of this machine that are one process's."""
  if job.gpus_per_host is None:
    return {}
  first = index * job.gpus_per_host
  mine = range(first, first + job.gpus_per_host)
  return {'CUDA_VISIBLE_DEVICES': ','.join(map(str, mine))}


def _this_program() -> list[str]:
  return [sys.executable, '-m', 'pax.main']


def _free_port() -> int:
  with socket.socket() as free:
    free.bind(('localhost', 0))
    return free.getsockname()[1]
