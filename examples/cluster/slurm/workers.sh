#!/bin/sh
# Workers for the digits study that reach its store through the service; they read its address again when it moves.
#
#   PHYLA_HOME=/shared/me/study examples/cluster/slurm/workers.sh
#
set -eu
cd "$(dirname "$0")/../../.."
phyla up examples/digits/digits.py --server "$PHYLA_HOME/service.json" --launcher slurm --workers 2 --time-limit 4h "$@"
