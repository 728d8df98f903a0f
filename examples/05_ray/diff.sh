#!/bin/bash
# A diff whose runs are Ray jobs, one after the other.
#
#     RAY_API_SERVER_ADDRESS=http://head:8265 ./diff.sh OUT      a folder that all nodes share
#
# Put your own commands behind the two --. A job inherits nothing from here: the settings of its run
# reach its tasks and actors by the runtime environment. They hold no character that a shell or
# JSON could change.
set -euo pipefail
SCRIPT=${SCRIPT:-train.py}
SUBMIT="ray job submit --no-wait --runtime-env-json"
SETTINGS='{"env_vars": {"TTRACE_SETTINGS": "'\''$TTRACE_SETTINGS'\''"}}'

ttrace diff --out "$1" \
  --reference "$SUBMIT '$SETTINGS' -- python $SCRIPT" \
  --candidate "$SUBMIT '$SETTINGS' -- torchrun --standalone --nproc-per-node 2 $SCRIPT" \
  --stop "grep -o 'raysubmit_[A-Za-z0-9]*' | head -n 1 | xargs ray job stop"
