#!/bin/sh
# The digits study through a service: workers know its address, and not the database. Name a database with PHYLA_STORAGE, such
# as postgresql://me@db/studies. Options of phyla run may follow.
set -eu
cd "$(dirname "$0")/../.."
home=${PHYLA_HOME:-.phyla}
phyla serve --home "$home" ${PHYLA_STORAGE:+--storage "$PHYLA_STORAGE"} --publish --port 0 &
trap 'kill $!' EXIT
until [ -s "$home/service.json" ]; do sleep 0.1; done
unset PHYLA_STORAGE
phyla run examples/digits/digits.py --study digits --server "$home/service.json" --workers 2 "$@"
