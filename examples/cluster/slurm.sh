#!/bin/sh
# The digits study with workers that Slurm places; run it where Slurm's commands are, in a directory that all nodes see.
# PHYLA_STORAGE is the URL of a PostgreSQL database that all nodes reach, without a password: that is in ~/.pgpass.
# Options of phyla run may follow, such as --launcher-option partition=gpu, or --server FILE instead of a database.
set -eu
cd "$(dirname "$0")/../.."
phyla run examples/digits/digits.py --study digits --launcher slurm --workers 2 --time-limit 1h --save-every 10m "$@"
