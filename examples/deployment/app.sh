#!/usr/bin/env bash
# Run a site's app processes: app.sh HOME SECRET PORT
# Start it as another user than the node, without a network beyond 127.0.0.1 and without access
# to the site's folder: systemd/flower-app.service and compose.yaml do so. SECRET is a copy of
# the site's superexec-secret that this user can read.
set -euo pipefail
export FLWR_HOME=$1 FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
exec flower-superexec --insecure --runtime-api-address "127.0.0.1:$3" \
  --superexec-auth-secret-file "$2"
