#!/bin/bash
# pax on 2 x v4-128: STEP is create, wait, copy, run or delete.
#   bash THIS_FILE STEP
set -euo pipefail

where=(--project="$PROJECT" --zone="$ZONE")
slices=(pax-0 pax-1)

# Runs a function on all slices in parallel; fails if one fails.
on_all() {
  local pids=() slice pid code=0
  for slice in "${slices[@]}"; do
    "$@" "$slice" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do
    wait "$pid" || code=$?
  done
  return $code
}

create() {
  gcloud compute tpus queued-resources create pax "${where[@]}" \
    --accelerator-type=v4-128 \
    --runtime-version=tpu-ubuntu2204-base \
    --node-count=2 --node-prefix=pax
}

# Waits for capacity, which may take days.
wait_for_it() {
  local state
  while true; do
    state=$(gcloud compute tpus queued-resources describe pax \
      "${where[@]}" --format='value(state.state)')
    echo "pax: $state"
    case $state in
      ACTIVE) return ;;
      FAILED | SUSPEND*) return 1 ;;
    esac
    sleep 30
  done
}

copy() {
  gcloud compute tpus tpu-vm scp C4Spmd22BAdam2xv4_128.par "$1:pax.par" \
    "${where[@]}" --worker=all
}

# Runs on every machine of a slice; the processes detect each other.
run() {
  gcloud compute tpus tpu-vm ssh "$1" "${where[@]}" --worker=all \
    --command='chmod +x pax.par && ./pax.par --exp=c4_multislice.C4Spmd22BAdam2xv4_128 --job_log_dir=/nfs/job --on_corrupt_checkpoint=fallback'
}

delete() {
  gcloud compute tpus queued-resources delete pax "${where[@]}" \
    --force --quiet
}

case ${1:-} in
  create | delete) "$1" ;;
  wait) wait_for_it ;;
  copy | run) on_all "$1" ;;
  *)
    echo 'which step? create, wait, copy, run or delete' >&2
    exit 2
    ;;
esac
