# SPDX-License-Identifier: Apache-2.0
"""Starts all processes of a job, or prints a script that starts them.

pax launch --hosts=2 -- --exp=EXPERIMENT --job_log_dir=DIR
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pax.tools import tool
from pax.tools.launching import job as job_lib
from pax.tools.launching import launcher, process_group
from pax.tools.launching.recipes import gcloud, jobset, slurm, ssh

RECIPES = {
  'gcloud': gcloud.text,
  'jobset': jobset.text,
  'slurm': slurm.text,
  'ssh': ssh.text,
}


def main(argv: Sequence[str] = sys.argv) -> int:
  """Runs or prints a job; returns the exit code."""
  job = job_lib.parse(argv)
  if job.print is None:
    commands = (
      launcher.ssh_commands if job.machines else launcher.local_commands
    )
    return process_group.run(commands(job))
  print(RECIPES[job.print](job), end='')
  return 0


if __name__ == '__main__':
  tool.run_console(main)
