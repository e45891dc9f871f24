#!/bin/sh
# The digits study with workers that Ray places. Start a cluster first, with `ray start --head`, or name one in RAY_ADDRESS.
# Options of phyla run may follow. Where nodes share no disk: --server URL --checkpoints s3://BUCKET/PREFIX
set -eu
cd "$(dirname "$0")/../.."
phyla run examples/digits/digits.py --study digits --launcher ray --workers 2 "$@"
