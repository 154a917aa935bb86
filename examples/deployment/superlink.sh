#!/usr/bin/env bash
# Start the SuperLink: superlink.sh CERTIFICATES HOST PORT [options of flower-superlink]
# It takes registered SuperNodes only, and keeps its state in superlink.sqlite here.
set -euo pipefail
certificates=$1 host=$2 port=$3
shift 3
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
exec flower-superlink --host "$host" --port "$port" --database superlink.sqlite \
  --ssl-ca-certfile "$certificates/ca.crt" --ssl-certfile "$certificates/server.pem" \
  --ssl-keyfile "$certificates/server.key" --enable-supernode-auth \
  --disable-runtime-dependency-installation "$@"
