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

srun --kill-on-bad-exit=1 --label \
  pax --exp=nvidia.NVIDIA5B --job_log_dir=/nfs/job
code=$?
# The requeued job continues from the checkpoint.
if ((code == 75)); then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
