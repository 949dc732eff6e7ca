# SPDX-License-Identifier: Apache-2.0
"""Jobs that faults interrupt, their losses, and the files they leave.

A job is the real program, `python -m pax.main`, with a tiny experiment; a start
takes one to two seconds. Its calls that change files below its directory can be
counted, logged and made to fail, or to kill it (`file_faults.c`).
"""

# bazel: data=//tests/faults:file_faults.c
# bazel: deps=//pax:main_lib,//pax/tasks:experiments,@pypi//s3fs
# bazel: deps=//tests/integration:experiments
from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pax.checkpoints import paths
from pax.files import storage
from tests.integration import binary
from tests.testing import programs

DONE, ERROR, PREEMPTED = 0, 1, 75  # Exit codes, as documented.
KILLED = -signal.SIGKILL
TIMEOUT_SECS = 600
# A life that uses less CPU time in so many seconds hangs. Threads that poll use
# less.
_HANG_SECS = 240
_MIN_CPU_SECS = 10.0
_POLL_SECS = 0.005
_BATCH_SIZE = 8
# `ctypes` makes it another server than that of other tests: it has the library.
# The clients of buckets and checkpoints are what most jobs import.
_PRELOADED = (
  *binary.PRELOADED,
  'aiobotocore.session',
  'ctypes',
  'orbax.checkpoint',
)
_SOURCE = pathlib.Path(__file__).with_name('file_faults.c')
# Names that no complete job leaves behind.
_LEFTOVER = re.compile(r'(^|/)tmp_|\.part$|\.__lock$')

Completed = subprocess.CompletedProcess[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
  """The calls at which `file_faults.c` interferes; see there."""

  at: int = 0
  count: int = 1
  action: str = 'kill'
  log: pathlib.Path | None = None

  def environment(self, directory: storage.Path) -> dict[str, str]:
    """Returns the variables for a job in `directory`."""
    variables = {
      'FAULT_BELOW': str(directory),
      'FAULT_AT': str(self.at),
      'FAULT_COUNT': str(self.count),
      'FAULT_ACTION': self.action,
    }
    return variables | ({'FAULT_LOG': str(self.log)} if self.log else {})


@dataclasses.dataclass
class Life:
  """A start of a job: its processes until they end."""

  processes: list[programs.Program]

  def signal(self, number: int, index: int | None = None) -> None:
    """Sends a signal to a process, or to all that have not ended."""
    for process in self.processes if index is None else [self.processes[index]]:
      with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)

  def cpu_secs(self) -> float:
    """Returns the CPU time of the processes."""
    return sum(programs.cpu_secs(process.pid) for process in self.processes)

  def abort(self) -> list[Completed]:
    """Ends all processes, which print their stacks; returns their outputs."""
    self.signal(signal.SIGABRT)
    return [process.wait(TIMEOUT_SECS) for process in self.processes]

  def wait(self) -> list[Completed]:
    """Returns exit codes and outputs, in the order of the processes."""
    return [self._wait_for(process) for process in self.processes]

  def wait_for_one(self, index: int = 0) -> list[Completed]:
    """Waits for one process, then kills the others, as a cluster does."""
    completed = {index: self._wait_for(self.processes[index])}
    for other, process in enumerate(self.processes):
      if other != index:
        if completed[index].returncode:
          self.signal(signal.SIGKILL, other)
        completed[other] = self._wait_for(process)
    return [completed[i] for i in sorted(completed)]

  def _wait_for(self, process: programs.Program) -> Completed:
    _poll(lambda: not programs.is_running(process.pid), self)
    return process.wait()


@dataclasses.dataclass
class Job:
  """A job in one directory, which is started again and again."""

  directory: storage.Path
  # Name in tests.integration.experiments, or with its module.
  exp: str = 'TinySpmd'
  # Flags of every start.
  flags: Sequence[str] = ()
  num_processes: int = 1
  # Constants of the rows of a process, and of the mesh.
  rows_constant: str = 'BATCH_SIZE'
  mesh_constant: str = 'ICI_MESH_SHAPE'
  # Starts so far.
  num_lives: int = 0

  def start(
    self,
    *flags: str,
    fault: Fault | None = None,
    faulty_process: int = 0,
    env: Mapping[str, str] | None = None,
  ) -> Life:
    """Starts the processes.

    Args:
      *flags: Further flags of this start.
      fault: Fault of the calls of a process.
      faulty_process: Index of that process.
      env: Further variables of all processes.
    """
    self.num_lives += 1
    address = f'--server_addr=localhost:{binary.free_port()}'
    processes = []
    for index in range(self.num_processes):
      variables = dict(env or {})
      if fault and index == faulty_process:
        variables |= fault.environment(self.directory)
      words = [*self.words(), *self.flags, *flags]
      if self.num_processes > 1:
        words += ['--multiprocess_gpu', address, f'--host_idx={index}']
        words.append(f'--num_hosts={self.num_processes}')
      processes.append(_start(words, variables))
    return Life(processes)

  def run(self, *flags: str, fault: Fault | None = None) -> Completed:
    """Runs the job to its end; returns process 0."""
    return self.start(*flags, fault=fault).wait_for_one()[0]

  def finish(self, *flags: str) -> None:
    """Runs the job to its end, which must be a success."""
    completed = self.start(*flags).wait()
    assert [c.returncode for c in completed] == [DONE] * len(completed), [
      c.stderr for c in completed
    ]

  def checkpoints(self) -> dict[int, storage.Path]:
    """Returns the complete checkpoints by step, oldest first."""
    return paths.steps(self.directory / paths.CHECKPOINTS)

  def newest_step(self) -> int:
    """Returns the step of the newest checkpoint, 0 without one."""
    return max(self.checkpoints(), default=0)

  def words(self) -> list[str]:
    """Returns the flags that each start of each process has."""
    rows = _BATCH_SIZE // self.num_processes
    exp = self.exp if '.' in self.exp else f'{binary.EXPERIMENTS}.{self.exp}'
    words = [
      f'--exp={exp}',
      f'--job_log_dir={self.directory}',
      '--host_device_count=1',
      binary.compilation_cache(),
      f'--set={self.rows_constant}={rows}',
    ]
    if not exp.endswith('Pmap'):
      words.append(f'--set={self.mesh_constant}=[1,{self.num_processes},1]')
    return words


def reference_losses(
  num_steps: int, exp: str = 'TinySpmd', num_processes: int = 1
) -> dict[int, bytes]:
  """Returns the loss bits of each step of a job that nothing interrupts."""
  directory = _reference(num_steps, exp, num_processes)
  return {step: bits for step, bits in loss_bits(directory)}


def check_losses(job: Job, num_steps: int, max_missing: int = 0) -> int:
  """Checks every loss that any life of the job wrote, bit by bit.

  Args:
    job: The job.
    num_steps: Number of steps, each of which must have a loss.
    max_missing: Number of steps without one, if `metrics.jsonl` could not be
      written for a while.

  Returns:
    The number of losses compared.
  """
  expected = reference_losses(num_steps, job.exp, job.num_processes)
  written = loss_bits(job.directory)
  different = [step for step, bits in written if bits != expected.get(step)]
  assert not different, f'losses differ from an uninterrupted run: {different}'
  missing = sorted(expected.keys() - dict(written).keys())
  assert len(missing) <= max_missing, f'steps without a loss: {missing}'
  return len(written)


def leftovers(directory: storage.Path) -> list[str]:
  """Returns files and folders of unfinished writes, below `directory`."""
  if isinstance(directory, storage.BucketPath):
    folder = directory / paths.CHECKPOINTS
    complete = {path.name for path in paths.steps(folder).values()}
    parts = {name.partition('/')[0] for name in folder.files()} - complete
    leftovers = filter(_LEFTOVER.search, directory.files())
    return sorted([*leftovers, *(n for n in parts if n.startswith('check'))])
  names = (str(p.relative_to(directory)) for p in directory.rglob('*'))
  return sorted(name for name in names if _LEFTOVER.search(name))


def is_running(life: Life) -> bool:
  """Returns whether no process of a life has ended."""
  return all(programs.is_running(process.pid) for process in life.processes)


def wait_until(condition: Callable[[], bool], life: Life) -> None:
  """Polls until a condition holds, as long as the processes of a life work.

  Args:
    condition: What to wait for.
    life: The processes; they are killed if they hang, or if one has ended.

  Raises:
    AssertionError: A process has ended, or they hang; with their outputs.
  """
  _poll(lambda: condition() or not is_running(life), life)
  if not is_running(life):
    # Perhaps as soon as the condition held.
    assert condition(), f'a process has ended: {life.abort()}'


def _poll(condition: Callable[[], bool], life: Life) -> None:
  """Polls until a condition holds.

  On a loaded machine that only takes longer: the limit is for processes that
  compute next to nothing.

  Args:
    condition: What to wait for.
    life: The processes; they are killed if they hang.

  Raises:
    AssertionError: They hang; with their outputs.
  """
  while True:
    deadline, before = time.monotonic() + _HANG_SECS, life.cpu_secs()
    while time.monotonic() < deadline:
      if condition():
        return
      time.sleep(_POLL_SECS)
    is_working = life.cpu_secs() - before > _MIN_CPU_SECS
    assert is_working, f'no progress for {_HANG_SECS} s: {life.abort()}'


@functools.cache
def library() -> pathlib.Path:
  """Compiles `file_faults.c`; returns the shared library, for LD_PRELOAD."""
  path = pathlib.Path(_scratch().name, 'file_faults.so')
  command = ['cc', '-O1', '-shared', '-fPIC', '-o', str(path), str(_SOURCE)]
  subprocess.run([*command, '-ldl'], check=True)
  return path


def _start(words: Sequence[str], env: Mapping[str, str]) -> programs.Program:
  """Starts the program with the library of faults, below a server with it."""
  preload = os.environ.get('LD_PRELOAD')
  os.environ['LD_PRELOAD'] = str(library())
  try:
    return programs.Program(
      ['pax.main', *words], programs.environment() | dict(env), _PRELOADED
    )
  finally:
    del os.environ['LD_PRELOAD']
    if preload is not None:
      os.environ['LD_PRELOAD'] = preload


@functools.cache
def _reference(num_steps: int, exp: str, num_processes: int) -> pathlib.Path:
  name = f'reference_{exp}_{num_processes}_{num_steps}'
  directory = pathlib.Path(_scratch().name, name)
  job = Job(directory, exp=exp, num_processes=num_processes)
  job.finish(f'--set=NUM_STEPS={num_steps}', '--set=SAVE_EVERY=1000000')
  return directory


def records(directory: storage.Path) -> list[dict[str, Any]]:
  """Returns the lines of metrics.jsonl that are whole, of all lives."""
  complete = []
  for line in (directory / 'metrics.jsonl').read_bytes().split(b'\n'):
    with contextlib.suppress(ValueError):
      complete.append(json.loads(line))
  return complete


def loss_bits(directory: storage.Path) -> list[tuple[int, bytes]]:
  """Returns (step, bits of its loss) of every life, in order."""
  return [
    (record['step'], np.float32(record['loss']).tobytes())
    for record in records(directory)
    if record['split'] == 'train'
  ]


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
  """A folder that the tests of a process share, deleted at its end."""
  return tempfile.TemporaryDirectory(prefix='pax_faults_')
