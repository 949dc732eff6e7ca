# SPDX-License-Identifier: Apache-2.0
"""The commands of a job's processes: on this machine, or over ssh."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Mapping

from pax.runner import parent_death
from pax.tools.launching.job import Job, distributed_flags
from pax.tools.launching.process_group import Command

PORT = 8476
# Number of restarts by a scheduler after the loss of a process.
MAX_RESTARTS = 100
# No prompts, and a lost connection ends within a minute.
SSH = (
  'ssh',
  '-o',
  'BatchMode=yes',
  '-o',
  'ServerAliveInterval=15',
  '-o',
  'ServerAliveCountMax=4',
)


def local_commands(job: Job) -> list[Command]:
  """Returns the commands of all processes, on this machine."""
  address = f'localhost:{job.port or _free_port()}'
  program = job.program_words or _this_program()
  path = {'PYTHONPATH': os.pathsep.join(sys.path)}
  count = job.num_hosts
  return [
    Command(
      name=str(index),
      words=[
        *program,
        *job.run_words,
        *distributed_flags(address, count, index),
      ],
      environment={
        **path,
        **_environment(job, index),
        **_visible_gpus(job, index),
      },
    )
    for index in range(count)
  ]


def ssh_commands(job: Job) -> list[Command]:
  """Returns one ssh command per machine; the first has the coordinator."""
  address = f'{job.machines[0].rpartition("@")[2]}:{job.port or PORT}'
  return [
    Command(
      name=machine,
      words=[*SSH, machine, remote_command(job, address, index)],
      is_remote=True,
    )
    for index, machine in enumerate(job.machines)
  ]


def remote_command(job: Job, address: str, index: int) -> str:
  """Returns the command of one process, for the shell of its machine."""
  variables = {**_environment(job, index), **parent_death.ON_INPUT}
  assignments = [f'{name}={shlex.quote(v)}' for name, v in variables.items()]
  flags = distributed_flags(address, job.num_hosts, index)
  return f'exec env {" ".join(assignments)} {job.command()} {shlex.join(flags)}'


def _environment(job: Job, index: int) -> Mapping[str, str]:
  """The environment variables of one process, with its slice."""
  environment = {'PYTHONUNBUFFERED': '1', **job.environment}
  if job.slices > 1:
    environment['JAX_PARTITION_INDEX'] = str(index // job.hosts_per_slice)
  return environment


def _visible_gpus(job: Job, index: int) -> Mapping[str, str]:
  """The variable that limits one process to its GPUs of this machine."""
  if job.gpus_per_host is None:
    return {}
  first = index * job.gpus_per_host
  gpus = range(first, first + job.gpus_per_host)
  return {'CUDA_VISIBLE_DEVICES': ','.join(map(str, gpus))}


def _this_program() -> list[str]:
  return [sys.executable, '-m', 'pax.main']


def _free_port() -> int:
  with socket.socket() as free:
    free.bind(('localhost', 0))
    return free.getsockname()[1]
