#!/usr/bin/env bash
# Start a site's guarded node: node.sh SITE CA SUPERLINK PORT [options of flower-supernode]
# SITE is a folder made by "prepare.py site". The app is started by app.sh, at 127.0.0.1:PORT.
set -euo pipefail
site=$1 ca=$2 superlink=$3 port=$4
shift 4
if [ ! -e "$site/superexec-secret" ]; then
  (umask 077 && head -c 32 /dev/urandom >"$site/superexec-secret")
fi
export FLWR_HOME="$site/flower" FLWR_DISABLE_UPDATE_CHECK=1
exec python -m flower_ldp.node --ldp-policy "$site/policy.yaml" \
  --superlink "$superlink" --root-certificates "$ca" \
  --auth-supernode-private-key "$site/node-key" \
  --isolation process --superexec-auth-secret-file "$site/superexec-secret" \
  --host 127.0.0.1 --port "$port" "$@"
