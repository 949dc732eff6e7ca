# SPDX-License-Identifier: Apache-2.0
"""A script for Cloud TPUs by queued resources: create, copy, run, delete.

References: https://cloud.google.com/tpu/docs/queued-resources
"""

from __future__ import annotations

import shlex
import string

from pax.tools.launching.job import Job

_PAR = 'pax.par'

_SCRIPT = string.Template("""\
#!/bin/bash
# $name on $slices x $tpu: STEP is create, wait, copy, run or delete.
#   bash THIS_FILE STEP
set -euo pipefail

where=(--project=$project --zone=$zone)
slices=($slices_named)

# Runs a function on all slices in parallel; fails if one fails.
on_all() {
  local pids=() slice pid code=0
  for slice in "$${slices[@]}"; do
    "$$@" "$$slice" &
    pids+=($$!)
  done
  for pid in "$${pids[@]}"; do
    wait "$$pid" || code=$$?
  done
  return $$code
}

create() {
  gcloud compute tpus queued-resources create $name "$${where[@]}" \\
    --accelerator-type=$tpu \\
    --runtime-version=$runtime_version \\
    $nodes
}

# Waits for capacity, which may take days.
wait_for_it() {
  local state
  while true; do
    state=$$(gcloud compute tpus queued-resources describe $name \\
      "$${where[@]}" --format='value(state.state)')
    echo "$name: $$state"
    case $$state in
      ACTIVE) return ;;
      FAILED | SUSPEND*) return 1 ;;
    esac
    sleep 30
  done
}

copy() {
  gcloud compute tpus tpu-vm scp $par "$$1:$program_file" \\
    "$${where[@]}" --worker=all
}

# Runs on every machine of a slice; the processes detect each other.
run() {
  gcloud compute tpus tpu-vm ssh "$$1" "$${where[@]}" --worker=all \\
    --command=$command
}

delete() {
  gcloud compute tpus queued-resources delete $name "$${where[@]}" \\
    --force --quiet
}

case $${1:-} in
  create | delete) "$$1" ;;
  wait) wait_for_it ;;
  copy | run) on_all "$$1" ;;
  *)
    echo 'which step? create, wait, copy, run or delete' >&2
    exit 2
    ;;
esac
""")


def text(job: Job) -> str:
  """Returns the script; it copies the program, one file, to all machines.

  Raises:
    UsageError: --tpu or --program is not set.
  """
  tpu = job.required('tpu', 'v4-128')
  par = job.required('program', 'bazel-bin/pax/tasks/lm/params/TinyLm.par')
  slices = [f'{job.name}-{index}' for index in range(job.slices)]
  # One node has an id, several have a prefix.
  nodes = f'--node-count={job.slices} --node-prefix={job.name}'
  if job.slices == 1:
    nodes = f'--node-id={slices[0]}'
  line = f'{job.assignments()}./{_PAR} {shlex.join(job.run_words)}'
  return _SCRIPT.substitute(
    name=job.name,
    tpu=shlex.quote(tpu),
    slices=job.slices,
    slices_named=' '.join(slices),
    nodes=nodes,
    par=shlex.quote(_local_path(par)),
    program_file=_PAR,
    command=shlex.quote(f'chmod +x {_PAR} && {line}'),
    # Without a flag, the variables of the shell that runs the script.
    project=shlex.quote(job.project) if job.project else '"$PROJECT"',
    zone=shlex.quote(job.zone) if job.zone else '"$ZONE"',
    runtime_version=shlex.quote(job.runtime_version),
  )


def _local_path(path: str) -> str:
  """Returns a path that scp reads neither as an option nor as HOST:PATH."""
  return f'./{path}' if path.startswith('-') or ':' in path else path
