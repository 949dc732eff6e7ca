# SPDX-License-Identifier: Apache-2.0
"""A batch script for Slurm; JAX finds its processes by what Slurm sets.

References: https://slurm.schedmd.com/sbatch.html
"""

from __future__ import annotations

import string

from pax.tools.launching.job import Job

_SCRIPT = string.Template("""\
#!/bin/bash
#SBATCH --job-name=$name
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=$tasks
$directives
# Five minutes before its time is over, or when somebody else needs the nodes,
# the processes are told; they save and end with 75.
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -uo pipefail

${exports}srun --kill-on-bad-exit=1 --label \\
  $command
code=$$?
# What was saved goes on in a job of the same number.
if ((code == 75)); then
  scontrol requeue "$$SLURM_JOB_ID"
fi
exit $$code
""")


def text(job: Job) -> str:
  """The script: one process for each GPU, or one for each machine."""
  tasks = job.gpus_per_host or 1
  directives = ['--exclusive', *job.sbatch]
  if job.gpus_per_host:
    directives.insert(0, f'--gpus-per-node={job.gpus_per_host}')
  command = job.command()
  if job.slices > 1:
    # Which process is of which slice is known where it starts.
    count = tasks * job.hosts_per_slice
    place = f'JAX_PARTITION_INDEX=$((SLURM_PROCID / {count})) exec "$@"'
    command = f"bash -c '{place}' bash \\\n  {command}"
  return _SCRIPT.substitute(
    name=job.name,
    nodes=job.num_hosts,
    tasks=tasks,
    directives='\n'.join(f'#SBATCH {option}' for option in directives),
    exports=f'export {job.assignments().rstrip()}\n' * bool(job.env),
    command=command,
  )
