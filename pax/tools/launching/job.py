# SPDX-License-Identifier: Apache-2.0
"""The flags of `pax launch`, and the job of several processes they describe."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Sequence

from pax.runner import command_line, options
from pax.tools import catalog
from praxis import value_domains

flag = command_line.flag
UsageError = command_line.UsageError

USAGE = """\
Starts all processes of a job, and ends them together.

  pax launch --hosts=2 -- --exp=EXPERIMENT --job_log_dir=DIR
  pax launch --ssh=alpha,beta -- --exp=EXPERIMENT --job_log_dir=DIR
  pax launch --print=slurm --hosts=4 -- --exp=EXPERIMENT --job_log_dir=DIR

The words after -- are the flags of `pax` in every process. Lines of output
begin with the process that wrote them. If one process fails, the others are
ended. Ctrl-C, SIGTERM and SIGHUP are forwarded to all; they save and stop.

Exit code: that of the first process that failed, or 128 plus the signal that
ended it; 75 after a stop with the state saved."""

_MACHINE = re.compile(r'[\w.@:-]+', re.ASCII)
_COUNT = value_domains.interval(ge=1)
# Words of a --program that takes the flags of `pax`.
_PAX = re.compile(r'(.*/)?(pax|paxrun)|pax\.main|.*\.par')
# Values that scripts hold in comments or directives.
_LINE = value_domains.Matching(
  r'[^\x00-\x1f\x7f\x85\u2028\u2029]+', 'a text on one line', 'TEXT'
)


# Schedulers whose files restart a job without a user who could decide.
_RESTARTING = ('gcloud', 'jobset', 'slurm')
_CORRUPT_CHECKPOINT = '--on_corrupt_checkpoint'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job(command_line.CheckedOptions):
  """The processes to start, and their machines."""

  # The command line of each process, without `distributed_flags`.
  words: tuple[str, ...] = command_line.words('-- FLAGS OF PAX')

  hosts: int | None = flag(
    None, 'Processes', 'Number of processes, one per machine.', domain=_COUNT
  )
  slices: int = flag(
    1,
    'Processes',
    'Number of groups of equally many processes that share a fast network:'
    ' DCN_MESH_SHAPE in experiments. TPUs and GPUs detect it; CPU processes are'
    ' grouped in order.',
    domain=_COUNT,
  )
  devices_per_host: int | None = flag(
    None,
    'Processes',
    'Number of simulated CPU devices of each process.',
    domain=value_domains.interval(ge=1, le=2**16),
  )
  gpus_per_host: int | None = flag(
    None,
    'Processes',
    'GPUs per machine. For processes on this machine: GPUs per process, in'
    ' order. Default: all GPUs.',
    domain=_COUNT,
  )
  env: tuple[str, ...] = flag(
    (),
    'Processes',
    'Set an environment variable. Repeatable.',
    domain=value_domains.Matching(
      r'(?a)(?s)[A-Za-z_]\w*=.*', 'NAME=VALUE', 'NAME=VALUE'
    ),
  )
  program: str | None = flag(
    None,
    'Processes',
    'Program to start, may have arguments. Default: this Pax for processes on'
    ' this machine, else `pax`. gcloud: the .par file to copy to all machines.',
  )
  port: int | None = flag(
    None,
    'Processes',
    'Port of process 0. Default: 8476; on this machine, any free port.',
    domain=value_domains.interval(ge=1, le=65535),
  )
  ssh: str | None = flag(
    None,
    'Machines',
    'Start one process on each of these machines: host1,host2 or user@host.',
  )
  print: str | None = flag(
    None,
    'Schedulers',
    'Print a file in place of starting: slurm, jobset, gcloud or ssh.',
    domain=value_domains.OneOf(('gcloud', 'jobset', 'slurm', 'ssh')),
  )
  name: str = flag(
    'pax',
    'Schedulers',
    'Name of the job.',
    domain=value_domains.Matching(
      '[a-z]([-a-z0-9]{0,38}[a-z0-9])?',
      'at most 40 lower-case letters, digits and -, such as pax-1',
      'pax',
    ),
  )
  image: str | None = flag(
    None, 'Schedulers', 'jobset: container image with Pax.', domain=_LINE
  )
  tpu: str | None = flag(
    None,
    'Schedulers',
    'gcloud: type of each slice, such as v4-128. jobset: type of the nodes,'
    ' such as tpu-v4-podslice.',
    domain=_LINE,
  )
  topology: str | None = flag(
    None,
    'Schedulers',
    'jobset: topology of each slice, such as 4x4x4.',
    domain=_LINE,
  )
  chips_per_host: int = flag(
    4, 'Schedulers', 'jobset: TPU chips per node.', domain=_COUNT
  )
  project: str | None = flag(
    None,
    'Schedulers',
    'gcloud: project. Default: the variable PROJECT of the shell that runs the'
    ' script.',
    domain=_LINE,
  )
  zone: str | None = flag(
    None,
    'Schedulers',
    'gcloud: zone of the TPUs. Default: the variable ZONE of that shell.',
    domain=_LINE,
  )
  runtime_version: str = flag(
    'tpu-ubuntu2204-base',
    'Schedulers',
    'gcloud: runtime version of the TPU VMs.',
    domain=_LINE,
  )
  sbatch: tuple[str, ...] = flag(
    (),
    'Schedulers',
    'slurm: one more #SBATCH line, as --sbatch=--partition=gpu. Repeatable.',
    example='OPTION',
    domain=_LINE,
  )

  @property
  def machines(self) -> list[str]:
    """The machines of --ssh, in order."""
    return self.ssh.split(',') if self.ssh else []

  @property
  def num_hosts(self) -> int:
    """Number of processes of all slices."""
    if self.hosts is not None:
      return self.hosts
    return len(self.machines) or self.slices

  @property
  def hosts_per_slice(self) -> int:
    """Number of processes of each slice."""
    return self.num_hosts // self.slices

  @property
  def environment(self) -> dict[str, str]:
    """The variables of --env."""
    return dict(text.split('=', 1) for text in self.env)

  @property
  def run_words(self) -> list[str]:
    """The flags that all processes have in common."""
    words = list(self.words)
    if self.devices_per_host is not None:
      words.append(f'--host_device_count={self.devices_per_host}')
    sets_policy = any(w.startswith(_CORRUPT_CHECKPOINT) for w in words)
    if self.print in _RESTARTING and not sets_policy:
      words.append(f'{_CORRUPT_CHECKPOINT}=fallback')
    return words

  @property
  def program_words(self) -> list[str]:
    """The words of --program; none without it."""
    return shlex.split(self.program or '')

  def assignments(self) -> str:
    """Returns `NAME=value ` of every --env, for a shell."""
    return ''.join(
      f'{name}={shlex.quote(value)} '
      for name, value in self.environment.items()
    )

  def command(self) -> str:
    """Returns the program with the common flags, for a shell."""
    program = [_quote_path(word) for word in self.program_words]
    return ' '.join([*(program or ['pax']), shlex.join(self.run_words)])

  def required(self, name: str, example: str) -> str:
    """Returns the value of a flag that --print needs.

    Raises:
      UsageError: it is not set.
    """
    value = getattr(self, name)
    if not value:
      raise UsageError(
        f'--print={self.print} needs --{name} too, as in --{name}={example}'
      )
    return value


def distributed_flags(address: str, count: int, index: int | str) -> list[str]:
  """Returns the flags by which a process joins the others."""
  return [
    '--multiprocess_gpu',
    f'--server_addr={address}',
    f'--num_hosts={count}',
    f'--host_idx={index}',
  ]


def parse(argv: Sequence[str]) -> Job:
  """Parses a command line, whose first word is the program.

  Raises:
    UsageError: a flag is not valid.
    HelpRequested: --help is among the words before --.
  """
  words = list(argv)
  end = words.index('--') if '--' in words else len(words)
  job = command_line.parse(Job, words[:end], USAGE)
  if job.words:
    raise UsageError(
      f'{job.words[0]!r} belongs to no flag; flags of the run follow --'
    )
  job = dataclasses.replace(job, words=tuple(words[end + 1 :]))
  _check(job)
  if job.print or job.machines:
    _check_run_words(job)
  return job


def _check_run_words(job: Job) -> None:
  """Raises UsageError for flags that every process of the job rejects."""
  words = ['pax', *job.run_words]
  is_pax = any(map(_PAX.fullmatch, job.program_words or ['pax']))
  if not is_pax or catalog.tool_name(words):
    return
  try:
    options.check(words)
  except command_line.HelpRequested:
    pass
  except UsageError as e:
    raise UsageError(f'{e}; it is among the flags of the run, after --') from e


def _quote_path(word: str) -> str:
  """Quotes a word for a shell that replaces a `~/` at its start."""
  if word.startswith('~/'):
    return f'~/{shlex.quote(word[2:])}'
  return shlex.quote(word)


def _check(job: Job) -> None:
  """Raises UsageError for values that are not valid, or not together."""
  try:
    ''.join([*job.words, *job.env, job.program or '']).encode()
    shlex.split(job.program or '')
  except UnicodeEncodeError as e:
    raise UsageError(
      f'the words must be valid in UTF-8, got {command_line.shown(e.object)}'
    ) from e
  except ValueError as e:
    raise UsageError(
      f'--program={command_line.shown(job.program)}: {e}; quote it as for a'
      ' shell'
    ) from e
  count = job.num_hosts
  bad_machines = [
    name
    for name in job.machines
    if name.startswith('-') or not _MACHINE.fullmatch(name)
  ]
  checks = (
    (
      not job.words,
      'nothing to launch; flags of the run follow --, as in'
      ' pax launch --hosts=2 -- --exp=EXPERIMENT --job_log_dir=DIR',
    ),
    (
      count % job.slices,
      f'--slices={job.slices} does not divide --hosts={count}: each slice has'
      ' equally many processes',
    ),
    (
      bad_machines,
      f'--ssh has a machine {bad_machines}; separate names by commas, as in'
      ' --ssh=alpha,user@beta',
    ),
    (
      job.machines and job.hosts not in (None, len(job.machines)),
      f'--hosts={job.hosts} and the {len(job.machines)} machines of --ssh'
      ' contradict each other; leave out --hosts',
    ),
  )
  for is_wrong, message in checks:
    if is_wrong:
      raise UsageError(message)
