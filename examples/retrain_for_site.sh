#!/bin/sh
# Retrains the shipped model on a site's history and compares the two on the part that came later.
#   examples/retrain_for_site.sh history.csv.gz runs/mine [further options of slurm-rl train]
set -eu
trace=$1 out=$2
shift 2
slurm-rl train --trace "$trace" --out "$out" "$@"
slurm-rl evaluate --trace "$trace" --policy "rl:$out/model,rl:default" --no-opponents --no-tune --window 0.6:1
