# SPDX-License-Identifier: Apache-2.0
"""A bash script that does the same as `pax launch --ssh`."""

from __future__ import annotations

import shlex
import string

from pax import exit_codes
from pax.tools.launching import launcher
from pax.tools.launching.job import Job

_SCRIPT = string.Template("""\
#!/bin/bash
# Starts $name: one process per machine, by ssh without passwords. Ctrl-C and
# SIGTERM stop all of them; they save and exit with 75.
set -uo pipefail

# Each process ends when its input, this pipe, is closed: at the latest at the
# end of this script.
folder=$$(mktemp -d)
mkfifo "$$folder/pipe"
exec 3<> "$$folder/pipe" 4< "$$folder/pipe"
trap 'exec 3>&-' INT TERM

count=0
start() {
  {
    exec 3>&-
    $ssh "$$1" "$$2" <&4 4<&-
    code=$$?
    echo $$code >> "$$folder/codes"
    # The others cannot continue without it. After code 76 they find that out
    # themselves: it lost another process, whose own code follows.
    if ((code && code != $peer_lost)); then kill -TERM $$$$; fi
  } &
  ((++count))
}

$starts

while [[ -n $$(jobs -rp) ]]; do wait; done
failed=$$(grep -m1 -vx -e 0 -e $peer_lost "$$folder/codes" ||
  grep -m1 -x $peer_lost "$$folder/codes")
ended=$$(wc -l < "$$folder/codes")
rm -r "$$folder"
exit "$${failed:-$$((ended == count ? 0 : 143))}"
""")


def text(job: Job) -> str:
  """Returns the script.

  Raises:
    UsageError: --ssh is not set.
  """
  job.required('ssh', 'alpha,beta')
  starts = []
  for command in launcher.ssh_commands(job):
    *_, machine, line = command.words
    starts.append(f'start {shlex.quote(machine)} {shlex.quote(line)}')
  return _SCRIPT.substitute(
    name=job.name,
    peer_lost=exit_codes.PEER_LOST,
    ssh=' '.join(launcher.SSH),
    starts='\n'.join(starts),
  )
