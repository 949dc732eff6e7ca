# SPDX-License-Identifier: Apache-2.0
"""Programs that stand in for what recipes call: pax, ssh, srun, gcloud.

`pax` is the real one, in a process that is forked and so starts at once. The
others start what they are told here instead of elsewhere.
"""

# bazel: deps=//pax:main_lib,//pax/tasks:experiments
# bazel: deps=//tests/integration:experiments
from __future__ import annotations

import os
import pathlib
import shutil
import socket
import sys
import tempfile
import threading
from types import TracebackType

from tests.integration import binary
from tests.testing import programs

_PAX = """\
#!{python} -IS
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as door:
  door.connect({door!r})
  request = dict(words=['pax.main', *sys.argv[1:]], env=dict(os.environ))
  socket.send_fds(door, [json.dumps(request).encode() + b'\\n'], [1, 2, 0])
  answers = door.makefile()
  pid = int(answers.readline())
  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, _: os.kill(pid, number))
  code = int(answers.readline())
if code < 0:
  signal.signal(-code, signal.SIG_DFL) if code != -9 else None
  os.kill(os.getpid(), -code)
sys.exit(code)
"""
# The shell of the other machine, which is this one.
_SSH = """\
#!/bin/bash
while [[ $1 == -o ]]; do shift 2; done
[[ -n $2 ]] || exit 255
line=${2//=alpha:/=localhost:}
exec bash -c "$line"
"""
# Tasks that find out their places by what Slurm sets.
_SRUN = """\
#!/bin/bash
while [[ $1 == --* ]]; do shift; done
export SLURM_STEP_NODELIST=localhost SLURM_STEP_NUM_NODES=1
export SLURM_NTASKS=$((SLURM_NNODES * SLURM_NTASKS_PER_NODE))
pids=()
for ((i = 0; i < SLURM_NTASKS; i++)); do
  SLURM_PROCID=$i SLURM_LOCALID=$((i % SLURM_NTASKS_PER_NODE)) "$@" &
  pids+=($!)
done
code=0
for pid in "${pids[@]}"; do
  wait "$pid"
  ended=$?
  if ((ended > code)); then code=$ended; fi
done
exit $code
"""
# Notes what it is told. Each slice is one machine, with its files in a folder.
_GCLOUD = """\
#!/bin/bash
printf '%s\\n' "$*" >> "$GCLOUD_LOG"
case "$*" in
  *' describe '*) echo ACTIVE ;;
  *' scp '*) slice=${6%%:*}; mkdir -p "$slice"; cp "$5" "$slice/${6#*:}" ;;
  *' ssh '*)
    slice=$5
    export JAX_PROCESS_ID=${slice##*-}
    command=${!#}
    cd "$slice" && exec bash -c "${command#--command=}"
    ;;
esac
"""
_SCONTROL = """\
#!/bin/bash
echo "scontrol $*"
"""
_PROGRAMS = {
  'gcloud': _GCLOUD,
  'scontrol': _SCONTROL,
  'srun': _SRUN,
  'ssh': _SSH,
}


class StandIns:
  """While entered, the programs are there; `environment` finds them."""

  def __init__(self) -> None:
    # Short, as names of sockets are.
    self._folder = pathlib.Path(tempfile.mkdtemp(prefix='pax'))
    self._door = socket.socket(socket.AF_UNIX)
    self._door.bind(str(self._folder / 'door'))
    self._door.listen()
    pax = _PAX.format(python=sys.executable, door=str(self._folder / 'door'))
    for name, text in {**_PROGRAMS, 'pax': pax}.items():
      file = self._folder / 'bin' / name
      file.parent.mkdir(exist_ok=True)
      file.write_text(text)
      file.chmod(0o755)
    self._thread = threading.Thread(target=self._serve, daemon=True)

  def __enter__(self) -> StandIns:
    self._thread.start()
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
  ) -> None:
    with socket.socket(socket.AF_UNIX) as last:
      last.connect(str(self._folder / 'door'))
    self._thread.join()
    self._door.close()
    shutil.rmtree(self._folder)

  @property
  def pax(self) -> str:
    """The path of the program."""
    return str(self._folder / 'bin' / 'pax')

  @property
  def environment(self) -> dict[str, str]:
    """One in which the programs come first."""
    found = programs.environment()
    return found | {'PATH': f'{self._folder / "bin"}:{found["PATH"]}'}

  def _serve(self) -> None:
    """Passes requests on to the process that forks."""
    while True:
      caller, _ = self._door.accept()
      with caller:
        # The first bytes carry the handles.
        request, handles, _, _ = socket.recv_fds(caller, 1 << 20, 3)
        while request and not request.endswith(b'\n'):
          request += caller.recv(1 << 20)
        if not request:
          return
        programs.hand_over(
          request, [caller.fileno(), *handles], binary.PRELOADED
        )
        for handle in handles:
          os.close(handle)
