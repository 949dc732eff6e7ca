# SPDX-License-Identifier: Apache-2.0
"""The launcher of .par files: one process unpacks, old folders are deleted."""

# bazel: data=//tools/par:launcher
from __future__ import annotations

import pathlib
import signal
import subprocess
import time

import pytest

pytest.importorskip('tools.par.unpack', exc_type=ImportError)

from tools.par import archive  # noqa: E402

_LAUNCHER = pathlib.Path('tools/par/launcher')
_KEPT = 3
# In place of an interpreter: logs what the launcher asks of it.
_PYTHON = """#!/bin/sh
case "$2" in
*/unpack.py) echo unpack >> "$LOG"; sleep "${UNPACK_SECONDS:-0}" ;;
*)
  echo "${LD_LIBRARY_PATH-unset} $3" >> "$LOG.runs"
  exec sleep "${RUN_SECONDS:-0}"
  ;;
esac
"""

pytestmark = pytest.mark.skipif(
  not _LAUNCHER.exists(), reason='Bazel builds what this runs'
)


def _make(folder: pathlib.Path, name: str) -> pathlib.Path:
  """Writes a .par file that differs from others by its name."""
  python = folder / f'{name}.sh'
  python.write_text(f'{_PYTHON}# {name}\n')
  python.chmod(0o755)
  par = folder / f'{name}.par'
  archive.write_par(str(par), _LAUNCHER, {'bin/python3': python}, {})
  return par


def _start(par: pathlib.Path, **env: str) -> subprocess.Popen[bytes]:
  folder = par.parent
  paths = {'PAX_PAR_DIR': str(folder / 'store'), 'LOG': str(folder / 'log')}
  return subprocess.Popen(
    [par, 'argument'], env={'PATH': '/usr/bin:/bin'} | paths | env
  )


def _run(par: pathlib.Path, **env: str) -> None:
  assert _start(par, **env).wait(timeout=60) == 0


def _unpacked(folder: pathlib.Path) -> set[str]:
  return {p.name for p in (folder / 'store').iterdir() if p.is_dir()}


def _wait(path: pathlib.Path) -> None:
  deadline = time.monotonic() + 60
  while not path.exists():
    assert time.monotonic() < deadline
    time.sleep(0.01)


def test_the_program_gets_arguments_and_the_environment(tmp_path):
  par = _make(tmp_path, 'a')
  _run(par)
  _run(par, LD_LIBRARY_PATH='/mine')
  text = (tmp_path / 'log.runs').read_text()
  assert text == 'unset argument\n/mine argument\n'


def test_starts_at_once_unpack_once(tmp_path):
  par = _make(tmp_path, 'a')
  started = [_start(par, UNPACK_SECONDS='1') for _ in range(4)]
  assert [p.wait(timeout=60) for p in started] == [0] * 4
  assert (tmp_path / 'log').read_text() == 'unpack\n'
  assert len(_unpacked(tmp_path)) == 1


def test_the_last_started_remain(tmp_path):
  pars = [_make(tmp_path, name) for name in 'abcd']
  for par in pars[:_KEPT]:
    _run(par)
  assert len(_unpacked(tmp_path)) == _KEPT
  _run(pars[0])
  _run(pars[3])
  log = (tmp_path / 'log').read_text()
  assert len(_unpacked(tmp_path)) == _KEPT
  # b was started before all others.
  _run(pars[0])
  _run(pars[2])
  assert (tmp_path / 'log').read_text() == log
  _run(pars[1])
  assert (tmp_path / 'log').read_text() == log + 'unpack\n'


def test_what_runs_remains(tmp_path):
  running = _start(_make(tmp_path, 'a'), RUN_SECONDS='60')
  try:
    _wait(tmp_path / 'log.runs')
    (folder,) = _unpacked(tmp_path)
    for name in 'bcdef':
      _run(_make(tmp_path, name))
    assert folder in _unpacked(tmp_path)
    assert len(_unpacked(tmp_path)) == _KEPT + 1
  finally:
    running.kill()
    running.wait()
  _run(_make(tmp_path, 'g'))
  assert folder not in _unpacked(tmp_path)
  assert len(list((tmp_path / 'store').iterdir())) == 2 * _KEPT


@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGTERM])
def test_an_unpacking_that_ends_early(tmp_path, number):
  par = _make(tmp_path, 'a')
  process = _start(par, UNPACK_SECONDS='2')
  _wait(tmp_path / 'log')
  process.send_signal(number)
  process.wait(timeout=60)
  _run(par)
  assert (tmp_path / 'log').read_text() == 'unpack\n' * 2
  assert len(_unpacked(tmp_path)) == 1
