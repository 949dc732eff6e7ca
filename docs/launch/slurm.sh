#!/bin/bash
#SBATCH --job-name=pax
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --partition=gpu
#SBATCH --time=24:00:00
# Five minutes before its time is over, or when somebody else needs the nodes,
# the processes are told; they save and end with 75.
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -uo pipefail

srun --kill-on-bad-exit=1 --label \
  pax --exp=nvidia.NVIDIA5B --job_log_dir=/nfs/job
code=$?
# What was saved goes on in a job of the same number.
if ((code == 75)); then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
