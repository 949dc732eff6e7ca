# SPDX-License-Identifier: Apache-2.0
"""The flags of `pax launch`: a job of several processes."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Sequence

from pax.runner import command_line

flag = command_line.flag
UsageError = command_line.UsageError

USAGE = """\
Starts all processes of a job, and ends them together.

  pax launch --hosts=2 -- --exp=EXPERIMENT --job_log_dir=DIR
  pax launch --ssh=alpha,beta -- --exp=EXPERIMENT --job_log_dir=DIR
  pax launch --print=slurm --hosts=4 -- --exp=EXPERIMENT --job_log_dir=DIR

What follows -- goes to `pax` in every process. Lines of output begin with the
process that wrote them. When one fails, the others are ended. Ctrl-C and
SIGTERM go to all; they save and stop, and so does this.

Exit codes: that of the first process that failed, 128 more than the signal
that ended it; 75 when they were stopped and saved."""

_MACHINE = re.compile(r'[\w.@:-]+')
_NAME = re.compile(r'[a-z]([-a-z0-9]{0,38}[a-z0-9])?')
_ASSIGNMENT = re.compile(r'[A-Za-z_]\w*=')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """What to start, and where."""

  # The command line of each process, but for what tells it its place.
  words: tuple[str, ...] = command_line.words('-- FLAGS OF PAX')

  hosts: int | None = flag(
    None, 'Processes', 'How many processes, one for each machine.'
  )
  slices: int = flag(
    1,
    'Processes',
    'How many groups of equally many processes have a network of their own:'
    " DCN_MESH_SHAPE in experiments. TPU pods and GPUs are told; a CPU's"
    ' processes are divided in their order.',
  )
  devices_per_host: int | None = flag(
    None, 'Processes', 'Run on so many simulated CPU devices in each process.'
  )
  gpus_per_host: int | None = flag(
    None,
    'Processes',
    'GPUs of each machine. For processes on this one: how many each of them'
    ' has, the first ones for the first. Unset: all.',
  )
  env: tuple[str, ...] = flag(
    (), 'Processes', 'Sets an environment variable. Repeatable.'
  )
  program: str | None = flag(
    None,
    'Processes',
    'What is started; may have arguments. Default: this Pax for processes here,'
    ' `pax` elsewhere. gcloud: the .par file that is copied to all machines.',
  )
  port: int | None = flag(
    None,
    'Processes',
    'Where process 0 listens. Default: 8476, and any free one here.',
  )
  ssh: str | None = flag(
    None,
    'Machines',
    'Starts one process on each of these machines: host1,host2 or user@host.',
  )
  print: str | None = flag(
    None,
    'Schedulers',
    'Starts nothing and prints a file: slurm, jobset, gcloud or ssh.',
  )
  name: str = flag('pax', 'Schedulers', 'What the job is called.')
  image: str | None = flag(
    None, 'Schedulers', 'jobset: the container image that has Pax.'
  )
  tpu: str | None = flag(
    None,
    'Schedulers',
    'gcloud: type of each slice, as v4-128. jobset: type of the nodes, as'
    ' tpu-v4-podslice.',
  )
  topology: str | None = flag(
    None, 'Schedulers', 'jobset: chips of each slice, as 4x4x4.'
  )
  chips_per_host: int = flag(4, 'Schedulers', 'jobset: TPU chips of a node.')
  project: str = flag('$PROJECT', 'Schedulers', 'gcloud: the project.')
  zone: str = flag('$ZONE', 'Schedulers', 'gcloud: where the TPUs are.')
  runtime_version: str = flag(
    'tpu-ubuntu2204-base', 'Schedulers', 'gcloud: system of the TPU VMs.'
  )
  sbatch: tuple[str, ...] = flag(
    (),
    'Schedulers',
    'slurm: another line #SBATCH, as --sbatch=--partition=gpu. Repeatable.',
    example='OPTION',
  )

  @property
  def machines(self) -> list[str]:
    """The machines of --ssh."""
    return self.ssh.split(',') if self.ssh else []

  @property
  def num_hosts(self) -> int:
    """Processes of all slices."""
    if self.hosts is not None:
      return self.hosts
    return len(self.machines) or self.slices

  @property
  def hosts_per_slice(self) -> int:
    """Processes of each slice."""
    return self.num_hosts // self.slices

  @property
  def environment(self) -> dict[str, str]:
    """What --env sets."""
    return dict(text.split('=', 1) for text in self.env)

  @property
  def run_words(self) -> list[str]:
    """What every process is told alike."""
    if self.devices_per_host is None:
      return list(self.words)
    return [*self.words, f'--host_device_count={self.devices_per_host}']

  def assignments(self) -> str:
    """`NAME=value ` of every --env, for a shell."""
    return ''.join(
      f'{name}={shlex.quote(value)} '
      for name, value in self.environment.items()
    )

  def command(self) -> str:
    """The program and what every process is told alike, for a shell."""
    return f'{self.program or "pax"} {shlex.join(self.run_words)}'

  def needs(self, name: str, example: str) -> str:
    """The value of a field that may be unset.

    Raises:
      UsageError: it is.
    """
    value = getattr(self, name)
    if not value:
      raise UsageError(
        f'--print={self.print} needs --{name} too, as in --{name}={example}'
      )
    return value


def joining(address: str, count: int, index: int | str) -> list[str]:
  """The flags that tell a process its place."""
  return [
    '--multiprocess_gpu',
    f'--server_addr={address}',
    f'--num_hosts={count}',
    f'--host_idx={index}',
  ]


def parse(argv: Sequence[str]) -> Job:
  """The job of a command line, whose first word is the program.

  Raises:
    UsageError: it cannot be meant.
    HelpRequested: --help is among the words before --.
  """
  words = list(argv)
  end = words.index('--') if '--' in words else len(words)
  job = command_line.parse(Job, words[:end], USAGE)
  if job.words:
    raise UsageError(
      f'{job.words[0]!r} belongs to no flag; the command line of the run stands'
      ' after --'
    )
  job = dataclasses.replace(job, words=tuple(words[end + 1 :]))
  _check(job)
  return job


def _check(job: Job) -> None:
  """Refuses what cannot be meant."""
  count = job.num_hosts
  bad_machines = [
    name
    for name in job.machines
    if name.startswith('-') or not _MACHINE.fullmatch(name)
  ]
  bad_env = [text for text in job.env if not _ASSIGNMENT.match(text)]
  wrong = (
    (
      not job.words,
      'nothing to launch; the command line of the run stands after --, as in'
      ' pax launch --hosts=2 -- --exp=EXPERIMENT --job_log_dir=DIR',
    ),
    (count < 1, f'--hosts must be at least 1, got {count}'),
    (
      job.slices < 1 or count % max(job.slices, 1),
      f'--slices={job.slices} does not divide --hosts={count}: each slice has'
      ' equally many processes',
    ),
    (
      bad_machines,
      f'--ssh has a machine {bad_machines}; names stand between commas, as in'
      ' --ssh=alpha,user@beta',
    ),
    (
      job.machines and job.hosts not in (None, len(job.machines)),
      f'--hosts={job.hosts} and the {len(job.machines)} machines of --ssh'
      ' contradict each other; leave out --hosts',
    ),
    (bad_env, f'--env={"".join(bad_env[:1])} is not of the form NAME=VALUE'),
    (
      not _NAME.fullmatch(job.name),
      f'--name={job.name} must be of small letters, digits and -, as pax-1',
    ),
  )
  for is_wrong, message in wrong:
    if is_wrong:
      raise UsageError(message)
