#!/bin/bash
# A diff whose runs are jobs of Kubernetes, one after the other; it needs kubectl and envsubst.
#
#     ./diff.sh OUT        a folder on the volume of job.yaml, at the same path as in its pods
#
# A pod inherits nothing from here: the settings of its run are put into job.yaml. They hold no
# character that a shell or YAML could change.
set -euo pipefail
HERE=$(dirname "$(realpath "$0")")
SCRIPT=${SCRIPT:-train.py}
CREATE="envsubst '\$COMMAND \$TTRACE_SETTINGS' < '$HERE/job.yaml' | kubectl create -o name -f -"

ttrace diff --out "$1" \
  --reference "COMMAND='python $SCRIPT' $CREATE" \
  --candidate "COMMAND='torchrun --standalone --nproc-per-node 2 $SCRIPT' $CREATE" \
  --stop "xargs kubectl delete --wait=false"
