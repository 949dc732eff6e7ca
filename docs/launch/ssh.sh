#!/bin/bash
# Starts pax: one process per machine, by ssh without passwords. Ctrl-C and
# SIGTERM stop all of them; they save and exit with 75.
set -uo pipefail

# Each process ends when its input, this pipe, is closed: at the latest at the
# end of this script.
folder=$(mktemp -d)
mkfifo "$folder/pipe"
exec 3<> "$folder/pipe" 4< "$folder/pipe"
trap 'exec 3>&-' INT TERM

count=0
start() {
  {
    exec 3>&-
    ssh -o BatchMode=yes -o ServerAliveInterval=15 -o ServerAliveCountMax=4 "$1" "$2" <&4 4<&-
    code=$?
    echo $code >> "$folder/codes"
    # The others cannot continue without it. After code 76 they find that out
    # themselves: it lost another process, whose own code follows.
    if ((code && code != 76)); then kill -TERM $$; fi
  } &
  ((++count))
}

start alpha 'exec env PYTHONUNBUFFERED=1 PAX_LIFELINE=0 pax --exp=nvidia.NVIDIA1_3B --job_log_dir=/nfs/job --multiprocess_gpu --server_addr=alpha:8476 --num_hosts=2 --host_idx=0'
start beta 'exec env PYTHONUNBUFFERED=1 PAX_LIFELINE=0 pax --exp=nvidia.NVIDIA1_3B --job_log_dir=/nfs/job --multiprocess_gpu --server_addr=alpha:8476 --num_hosts=2 --host_idx=1'

while [[ -n $(jobs -rp) ]]; do wait; done
failed=$(grep -m1 -vx -e 0 -e 76 "$folder/codes" ||
  grep -m1 -x 76 "$folder/codes")
ended=$(wc -l < "$folder/codes")
rm -r "$folder"
exit "${failed:-$((ended == count ? 0 : 143))}"
