#!/bin/bash
# A job of several nodes, with a launcher on each: sbatch --nodes=2 job.sh train.py
#
# `--export=ALL` is what srun does by itself, unless sbatch was told to hand on less. A job that
# starts again would find its trace taken.
#SBATCH --ntasks-per-node=1 --no-requeue
srun --export=ALL torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=1 --rdzv-id="$SLURM_JOB_ID" \
  --rdzv-backend=c10d --rdzv-endpoint="$(hostname):29500" "$@"
