#!/bin/bash
# A check on all nodes of a job: Ray runs on them for as long as the check does.
#
#     sbatch --nodes=4 check.sh OUT        a folder that all nodes share, with the traces in it
#
# Put your partition and time limit behind sbatch. Every node needs `ttrace[ray]`. The port is one
# of this job's own, since a node may have other jobs.
#SBATCH --ntasks-per-node=1 --no-requeue
set -euo pipefail
OUT=$(realpath "$1")
export RAY_ADDRESS="$(hostname):$((20000 + SLURM_JOB_ID % 10000))" RAY_USAGE_STATS_ENABLED=0

# The first node, where this script runs, has the head of the cluster; the others join it.
srun --overlap --kill-on-bad-exit bash -c '
  role=--address=$RAY_ADDRESS
  if [ "$SLURM_NODEID" = 0 ]; then role="--head --port=${RAY_ADDRESS#*:}"; fi
  exec ray start $role --num-cpus="$SLURM_CPUS_ON_NODE" --block' &
cluster=$!
trap 'kill $cluster || true' EXIT
until [ "$(ray status 2>/dev/null | grep -c " node_")" = "$SLURM_NNODES" ]; do
  kill -0 $cluster || exit 2 # undecided: Ray has ended, and said why
  sleep 1
done

ttrace check "$OUT/reference" "$OUT/candidate" --perturbed "$OUT/perturbed" --engine ray \
  --json "$OUT/check.json" --html "$OUT/check.html"
