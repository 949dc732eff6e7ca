# SPDX-License-Identifier: Apache-2.0
"""Checkpoints saved while calls fail, and checks of the files after each save.

    LD_PRELOAD=file_faults.so python -m tests.faults.faulty_saves DIR FILE

The file has the requests as JSON; the program prints a line of JSON for each
save. One process makes all faults: to import JAX takes longer than 50 saves.
"""

# bazel: deps=//pax/checkpoints
from __future__ import annotations

import ctypes
import dataclasses
import itertools
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Sequence

from pax import checkpoints
from pax.checkpoints import paths
from tests.faults import harness
from tests.testing import programs, saved_states, trees

_TIMEOUT_SECS = 900
_DEVICES = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """Saves with a fault at one call of each."""

  # Key of `saved_states.LAYOUTS`.
  layout: str
  # As in `harness.Fault`.
  action: str
  count: int = 1
  # Indices of calls, from 1; empty is every call of a save.
  calls: Sequence[int] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """A save with a fault after which all checks passed."""

  request: Request
  # Index of the call with the fault.
  call: int
  # Message of the error; None if the save succeeded.
  error: str | None


def run(
  directory: pathlib.Path,
  requests: Sequence[Request],
  log: pathlib.Path | None = None,
) -> list[Outcome]:
  """Runs the requests in a process of their own.

  Args:
    directory: An empty directory, for one job per request.
    requests: The faults.
    log: File of the calls of all saves with a fault.
  """
  directory.mkdir(exist_ok=True)
  file = directory / 'requests'
  file.write_text(json.dumps([dataclasses.asdict(r) for r in requests]))
  devices = f'--xla_force_host_platform_device_count={_DEVICES}'
  completed = subprocess.run(
    [sys.executable, '-m', __name__, str(directory), str(file)],
    env=programs.environment()
    | {'LD_PRELOAD': str(harness.library()), 'XLA_FLAGS': devices}
    | ({'FAULT_LOG': str(log)} if log else {}),
    capture_output=True,
    text=True,
    timeout=_TIMEOUT_SECS,
    check=False,
  )
  assert completed.returncode == 0, completed.stdout[-500:] + completed.stderr
  outcomes = []
  for line in completed.stdout.splitlines():
    fields = json.loads(line)
    request = Request(**fields.pop('request'))
    outcomes.append(Outcome(request=request, **fields))
  return outcomes


def main(directory: str, file: str) -> None:
  """Runs the requests of a file, and prints the outcomes."""
  requests = json.loads(pathlib.Path(file).read_text())
  for index, fields in enumerate(requests):
    job = pathlib.Path(directory, f'job_{index}')
    for outcome in _outcomes(job, Request(**fields)):
      print(json.dumps(dataclasses.asdict(outcome)), flush=True)


def _outcomes(job: pathlib.Path, request: Request) -> Iterator[Outcome]:
  saves = _Saves(job, request)
  for call in request.calls or itertools.count(1):
    num_calls, error = saves.save_with_fault(call)
    if num_calls < call:
      return
    saves.check(error)
    yield Outcome(request=request, call=call, error=error)


class _Saves:
  """Saves of one job: before a fault, with it, and after it."""

  def __init__(self, job: pathlib.Path, request: Request):
    self._job, self._request = job, request
    self._layout = saved_states.LAYOUTS[request.layout]
    self._abstract = trees.abstract(self._state(0))
    self._step = 0
    self._checkpointer = self._open()

  def save_with_fault(self, call: int) -> tuple[int, str | None]:
    """Saves two checkpoints, the second with a fault.

    Returns:
      The number of its calls, and its error.
    """
    self._checkpointer = self._open()
    self._save(self._step + 1)
    self._step += 2
    request, error = self._request, None
    os.environ |= harness.Fault(
      at=call, count=request.count, action=request.action
    ).environment(self._job)
    _restart_counting()
    try:
      self._save(self._step)
    except checkpoints.CheckpointError as e:
      error = str(e)
    num_calls = _restart_counting()
    os.environ['FAULT_AT'] = '0'
    return num_calls, error

  def check(self, error: str | None) -> None:
    """Checks the files, and that the next save succeeds."""
    saved = paths.steps(self._job / paths.CHECKPOINTS)
    newest = max(saved)
    assert newest == self._step or error and newest == self._step - 1, saved
    for step in {newest, self._step - 1}:
      self._check_restored(step)
    # Either this step again, by the same checkpointer, or the next.
    self._step = newest + 1
    self._save(self._step)
    self._check_restored(self._step)
    self._checkpointer.close()

  def _open(self) -> checkpoints.Checkpointer:
    return saved_states.checkpointer(
      self._job,
      self._layout.kind,
      save_interval_steps=1,
      max_to_keep=2,
      use_ocdbt=self._layout.use_ocdbt,
    )

  def _save(self, step: int) -> None:
    assert self._checkpointer.save(step, self._state(step), {'batches': step})
    self._checkpointer.wait()

  def _check_restored(self, step: int) -> None:
    restored = self._open().restore(self._abstract, step)
    assert restored.input_state == {'batches': step}
    saved_states.check_equal(restored.state, self._state(step))

  def _state(self, step: int):
    return saved_states.state(
      _DEVICES, 1 + step, is_sharded=self._layout.is_sharded
    )


def _restart_counting() -> int:
  return ctypes.CDLL(None).file_faults_restart()


if __name__ == '__main__':
  main(*sys.argv[1:])
