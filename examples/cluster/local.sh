#!/bin/sh
# The digits study on this machine, with workers that outlive the shell that started them.
set -eu
cd "$(dirname "$0")/../.."
phyla run examples/digits/digits.py --study digits --launcher local --workers 2 "$@"
