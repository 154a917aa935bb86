#!/usr/bin/env bash
# Start a site's guarded node: node.sh SITE CA SUPERLINK PORT OPTIONS...
# SITE is a folder made by "prepare.py site". OPTIONS say how apps run, as --sandbox, and may be any
# of flower-ldp-supernode. Apps reach the node at 127.0.0.1:PORT.
set -euo pipefail
site=$1 ca=$2 superlink=$3 port=$4
shift 4
export FLWR_HOME="$site/flower" FLWR_DISABLE_UPDATE_CHECK=1
exec python -m flower_ldp.node --ldp-policy "$site/policy.yaml" \
  --superlink "$superlink" --root-certificates "$ca" \
  --auth-supernode-private-key "$site/node-key" \
  --host 127.0.0.1 --port "$port" "$@"
