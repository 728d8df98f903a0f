#!/bin/bash
# A diff whose runs are jobs of Slurm, one after the other; it runs where sbatch does.
#
#     ./diff.sh OUT        a folder that all nodes share, empty or not there yet
#
# Put your partition, time limit and GPUs behind sbatch, and your own command into job.sh.
# `--wait` tells of a job that failed as soon as it did, and `--parsable` says which it is:
# when all steps are recorded, or the time is over, --stop ends it.
set -euo pipefail
HERE=$(dirname "$(realpath "$0")")
SCRIPT=${SCRIPT:-train.py}

ttrace diff --out "$1" --queue-timeout 86400 --timeout 1800 \
  --reference "sbatch --parsable --wait --nodes=1 --wrap 'python $SCRIPT'" \
  --candidate "sbatch --parsable --wait --nodes=2 '$HERE/job.sh' $SCRIPT" \
  --stop "head -n 1 | xargs scancel"
