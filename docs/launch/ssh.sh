#!/bin/bash
# Starts pax: one process on each machine, by ssh without passwords. Ctrl-C
# and SIGTERM stop all of them; they save and end with 75.
set -uo pipefail

# Each process ends when this pipe, its input, does: with this script at latest.
pipe=$(mktemp -u)
mkfifo "$pipe"
exec 3<> "$pipe" 4< "$pipe"
rm "$pipe"
trap 'exec 3>&-' INT TERM

pids=()
start() {
  {
    exec 3>&-
    ssh -o BatchMode=yes -o ServerAliveInterval=15 -o ServerAliveCountMax=4 "$1" "$2" <&4 4<&-
    code=$?
    # The others cannot go on without it.
    if ((code)); then kill -TERM $$; fi
    exit $code
  } &
  pids+=($!)
}

start alpha 'exec env PYTHONUNBUFFERED=1 PAX_LIFELINE=0 pax --exp=nvidia.NVIDIA1_3B --job_log_dir=/nfs/job --multiprocess_gpu --server_addr=alpha:8476 --num_hosts=2 --host_idx=0'
start beta 'exec env PYTHONUNBUFFERED=1 PAX_LIFELINE=0 pax --exp=nvidia.NVIDIA1_3B --job_log_dir=/nfs/job --multiprocess_gpu --server_addr=alpha:8476 --num_hosts=2 --host_idx=1'

while [[ -n $(jobs -rp) ]]; do wait; done
code=0
for pid in "${pids[@]}"; do
  wait "$pid"
  ended=$?
  if ((code == 0)); then code=$ended; fi
done
exit $code
