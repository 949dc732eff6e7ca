# SPDX-License-Identifier: Apache-2.0
"""`run.json`: versions, devices, command line and commit of every start."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import pathlib
import platform
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, TypedDict

import jax

import pax
from pax.files import side_files

FILE = 'run.json'

_PACKAGES = ('jax', 'jaxlib', 'flax', 'fiddle')
_GIT_TIMEOUT_SECS = 10.0


class Commit(TypedDict):
  """The commit of the checkout that Pax runs from."""

  hash: str
  # Whether tracked files differ from it.
  dirty: bool


class RunRecord(TypedDict):
  """One start of a job, in one entry of the list in `run.json`."""

  experiment: str
  mode: str
  # Local time with the offset from UTC.
  start_time: str
  hostname: str
  argv: list[str]
  # The same for a shell.
  command: str
  # None for a package that runs without being installed.
  versions: dict[str, str | None]
  platform: str
  # JAX's: cpu, gpu or tpu.
  backend: str
  device_kind: str
  num_devices: int
  num_processes: int
  # None outside of a checkout.
  commit: Commit | None


def append(
  job_log_dir: str, experiment: type, mode: str, argv: Sequence[str]
) -> None:
  """Adds this start of the job to its file.

  Jobs of other modes have files of their own, such as `eval_run.json`: they may
  run at the same time in the same directory. Only the first process writes.

  Args:
    job_log_dir: directory of the job.
    experiment: its class.
    mode: the value of --mode.
    argv: the command line, the program first.
  """
  if jax.process_index() != 0:
    return
  prefix = '' if mode == 'train' else f'{mode}_'
  path = pathlib.Path(job_log_dir) / f'{prefix}{FILE}'
  records = side_files.read_json(path, _parse) or []
  records.append(_record(experiment, mode, argv))
  side_files.write_text(path, json.dumps(records, indent=1) + '\n')


def _parse(value: Any) -> list[RunRecord]:
  if not isinstance(value, list):
    raise TypeError(f'expected a list, got {type(value).__name__}')
  for record in value:
    side_files.check_fields(record, {'start_time': str})
  return value


def _record(experiment: type, mode: str, argv: Sequence[str]) -> RunRecord:
  devices = jax.devices()
  return RunRecord(
    experiment=f'{experiment.__module__}.{experiment.__qualname__}',
    mode=mode,
    start_time=datetime.datetime.now().astimezone().isoformat('T', 'seconds'),
    hostname=socket.gethostname(),
    argv=list(argv),
    command=shlex.join(argv),
    versions={
      'python': platform.python_version(),
      'pax': pax.__version__,
      **{name: _version(name) for name in _PACKAGES},
    },
    platform=platform.platform(),
    backend=devices[0].platform,
    device_kind=devices[0].device_kind,
    num_devices=len(devices),
    num_processes=jax.process_count(),
    commit=_commit(pathlib.Path(__file__).resolve()),
  )


def _version(package: str) -> str | None:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    # Bazel's packages have no metadata.
    return getattr(sys.modules.get(package), '__version__', None)


def _commit(file: pathlib.Path) -> Commit | None:
  """The commit of the checkout that tracks `file`, or None."""
  # A virtual environment inside of another checkout is not part of it.
  tracked = _git(file.parent, 'ls-files', '--error-unmatch', file.name)
  head = tracked and _git(file.parent, 'rev-parse', 'HEAD')
  if not head:
    return None
  changes = _git(file.parent, 'status', '--porcelain', '--untracked-files=no')
  return Commit(hash=head, dirty=bool(changes))


def _git(folder: pathlib.Path, *words: str) -> str | None:
  """The output of a git command, or None if it fails."""
  try:
    completed = subprocess.run(
      ['git', *words],
      cwd=folder,
      capture_output=True,
      text=True,
      check=True,
      timeout=_GIT_TIMEOUT_SECS,
    )
  except (OSError, subprocess.SubprocessError):
    return None
  return completed.stdout.strip()
