# SPDX-License-Identifier: Apache-2.0
"""A script that does what `pax launch --ssh` does, where there is only bash."""

from __future__ import annotations

import shlex
import string

from pax.tools.launching import starting
from pax.tools.launching.job import Job

_SCRIPT = string.Template("""\
#!/bin/bash
# Starts $name: one process on each machine, by ssh without passwords. Ctrl-C
# and SIGTERM stop all of them; they save and end with 75.
set -uo pipefail

# Each process ends when this pipe, its input, does: with this script at latest.
pipe=$$(mktemp -u)
mkfifo "$$pipe"
exec 3<> "$$pipe" 4< "$$pipe"
rm "$$pipe"
trap 'exec 3>&-' INT TERM

pids=()
start() {
  {
    exec 3>&-
    $ssh "$$1" "$$2" <&4 4<&-
    code=$$?
    # The others cannot go on without it.
    if ((code)); then kill -TERM $$$$; fi
    exit $$code
  } &
  pids+=($$!)
}

$starts

while [[ -n $$(jobs -rp) ]]; do wait; done
code=0
for pid in "$${pids[@]}"; do
  wait "$$pid"
  ended=$$?
  if ((code == 0)); then code=$$ended; fi
done
exit $$code
""")


def text(job: Job) -> str:
  """The script.

  Raises:
    UsageError: no machines are named.
  """
  job.needs('ssh', 'alpha,beta')
  starts = []
  for command in starting.over_ssh(job):
    *_, machine, line = command.words
    starts.append(f'start {shlex.quote(machine)} {shlex.quote(line)}')
  return _SCRIPT.substitute(
    name=job.name, ssh=' '.join(starting.SSH), starts='\n'.join(starts)
  )
