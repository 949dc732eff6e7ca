# SPDX-License-Identifier: Apache-2.0
"""A batch script for Slurm, whose variables JAX reads to find all processes.

References: https://slurm.schedmd.com/sbatch.html
"""

from __future__ import annotations

import string

from pax import exit_codes
from pax.tools.launching.job import Job
from pax.tools.launching.launcher import MAX_RESTARTS

_SCRIPT = string.Template("""\
#!/bin/bash
#SBATCH --job-name=$name
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=$tasks
$directives
# Five minutes before the time limit, and on preemption, Slurm sends SIGTERM to
# the processes; they save and exit with 75.
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -uo pipefail

${exports}srun --wait=600 --label \\
  $command
code=$$?
# The requeued job continues from the checkpoint. Errors of the job itself would
# only repeat.
case $$code in
  0 | $permanent) ;;
  *)
    if (($${SLURM_RESTART_COUNT:-0} < $restarts)); then
      scontrol requeue "$$SLURM_JOB_ID"
    fi
    ;;
esac
exit $$code
""")


def text(job: Job) -> str:
  """Returns the script: one process per GPU, or per machine without GPUs."""
  tasks = job.gpus_per_host or 1
  directives = ['--exclusive', *job.sbatch]
  if job.gpus_per_host:
    directives.insert(0, f'--gpus-per-node={job.gpus_per_host}')
  command = job.command()
  if job.slices > 1:
    # The slice of a process follows from its rank, when it starts.
    count = tasks * job.hosts_per_slice
    start = f'JAX_PARTITION_INDEX=$((SLURM_PROCID / {count})) exec "$@"'
    command = f"bash -c '{start}' bash \\\n  {command}"
  return _SCRIPT.substitute(
    name=job.name,
    permanent=' | '.join(map(str, sorted(exit_codes.PERMANENT))),
    restarts=MAX_RESTARTS,
    nodes=job.num_hosts,
    tasks=tasks,
    directives='\n'.join(f'#SBATCH {option}' for option in directives),
    exports=f'export {job.assignments().rstrip()}\n' * bool(job.env),
    command=command,
  )
