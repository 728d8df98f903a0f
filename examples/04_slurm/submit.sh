#!/bin/bash
# A diff as jobs of Slurm: every run is a job, and waits for those whose traces it needs.
#
#     ./submit.sh OUT        a folder that all nodes share, empty or not there yet
#
# Put your partition, time limit and GPUs into ONE and TWO, and your own commands into REFERENCE and
# CANDIDATE. sbatch starts them on the first node of their job; srun starts torchrun on every node.
set -euo pipefail
OUT=$(realpath -m "$1")
SCRIPT=${SCRIPT:-train.py}
ONE="--nodes=1 --ntasks-per-node=1"
TWO="--nodes=2 --ntasks-per-node=1"
REFERENCE="python $SCRIPT"
CANDIDATE="srun torchrun --nnodes=\$SLURM_NNODES --nproc-per-node=1 --rdzv-id=\$SLURM_JOB_ID \
--rdzv-backend=c10d --rdzv-endpoint=\$(hostname):29500 $SCRIPT"
mkdir -p "$OUT"

submit() { # name, jobs to wait for, resources, command
  sbatch --parsable --job-name="ttrace-$1" --output="$OUT/$1.log" ${2:+--dependency="$2"} \
    --kill-on-invalid-dep=yes $3 --wrap "$4"
}

# Compare.
reference=$(submit reference "" "$ONE" "ttrace run --out $OUT/reference -- $REFERENCE")
perturbed=$(submit perturbed "" "$ONE" \
  "ttrace run --noise-seed 1 --out $OUT/perturbed -- $REFERENCE")
candidate=$(submit candidate "" "$TWO" "ttrace run --out $OUT/candidate -- $CANDIDATE")
check=$(submit check "afterok:$reference:$perturbed:$candidate" "$ONE" \
  "ttrace check $OUT/reference $OUT/candidate --perturbed $OUT/perturbed \
   --json $OUT/check.json --html $OUT/check.html")

# Only if that fails: isolate every module, to name the root cause.
tapped=$(submit tapped "afternotok:$check" "$ONE" "ttrace run --tap --out $OUT/tapped -- $REFERENCE")
plans=$(submit plans "afterok:$tapped" "$ONE" \
  "ttrace plan $OUT/tapped $OUT/tapped --out $OUT/plans/reference && \
   ttrace plan $OUT/tapped $OUT/candidate --out $OUT/plans/candidate")
noise=$(submit isolated-perturbed "afterok:$plans" "$ONE" \
  "ttrace run --noise-seed 1 --plan $OUT/plans/reference --out $OUT/isolated-perturbed -- $REFERENCE")
isolated=$(submit isolated "afterok:$plans" "$TWO" \
  "ttrace run --plan $OUT/plans/candidate --out $OUT/isolated -- $CANDIDATE")
submit root-cause "afterok:$noise:$isolated" "$ONE" \
  "ttrace check $OUT/tapped $OUT/isolated --perturbed $OUT/isolated-perturbed \
   --isolated $OUT/plans/candidate --json $OUT/root-cause.json --html $OUT/root-cause.html"
