#!/bin/bash
#SBATCH --job-name=pax
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --partition=gpu
#SBATCH --time=24:00:00
# Five minutes before the time limit, and on preemption, Slurm sends SIGTERM to
# the processes; they save and exit with 75.
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -uo pipefail

srun --wait=600 --label \
  pax --exp=nvidia.NVIDIA5B --job_log_dir=/nfs/job --on_corrupt_checkpoint=fallback
code=$?
# The requeued job continues from the checkpoint. Errors of the job itself would
# only repeat.
case $code in
  0 | 1 | 2 | 3) ;;
  *)
    if ((${SLURM_RESTART_COUNT:-0} < 100)); then
      scontrol requeue "$SLURM_JOB_ID"
    fi
    ;;
esac
exit $code
