#!/usr/bin/env bash
# The whole guide on this machine, with three sites: try_on_one_machine.sh [ROUNDS [SITES]]
# Everything goes into a new folder below, and ends with this script.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
rounds=${1:-5} sites=${2:-3}
work=$(mktemp -d "${TMPDIR:-/tmp}/flower-ldp-deployment.XXXXXX")
. "$here/processes.sh"
free_port() { python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
export FLWR_HOME="$work/user" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
echo "folder $work"

echo "== the SuperLink's machine: certificates, SuperLink"
port=$(free_port)
python "$here/prepare.py" certificates "$work/certificates" localhost 127.0.0.1
start superlink "$here/superlink.sh" "$work/certificates" 127.0.0.1 "$port"
wait_for "Uvicorn running" "$work/superlink.log"
mkdir -p "$FLWR_HOME"
cat >"$FLWR_HOME/config.toml" <<TOML
[superlink]
default = "federation"
[superlink.federation]
address = "127.0.0.1:$port"
root-certificates = "$work/certificates/ca.crt"
TOML

# As the guide says, where that can be; a trial has no data to protect.
apps=()
for flags in "--sandbox" "--sandbox --sandbox-no-memory-limit"; do
  read -ra try <<<"$flags"
  if python -m flower_ldp.node --insecure "${try[@]}" --check >"$work/check.log" 2>&1; then
    apps=("${try[@]}")
    break
  fi
  tail -n 1 "$work/check.log"
done
if [ ${#apps[@]} = 0 ]; then
  apps=(--ldp-unsafe-app-user)
  echo "NO SANDBOX on this machine: apps run under the node's own user"
fi
echo "== apps run with ${apps[*]}"

for ((number = 0; number < sites; number++)); do
  echo "== site $number: folder, registration, node with its apps"
  site="$work/ward-$number"
  python "$here/prepare.py" site "$site" --data-id "ward-$number-images"
  flwr supernode register "$site/node-key.pub" federation --name "ward-$number"
  runtime=$(free_port)
  start "node-$number" "$here/node.sh" "$site" "$work/certificates/ca.crt" "127.0.0.1:$port" \
    "$runtime" "${apps[@]}" --node-config "partition-id=$number num-partitions=$sites"
done
for ((number = 0; number < sites; number++)); do
  wait_for "SuperNode ID" "$work/node-$number.log"
done

echo "== a user: the app is submitted; its own gate steps aside"
cp -r "$here/../signds" "$work/signds"
start run flwr run "$work/signds" federation --stream \
  --run-config "num-server-rounds=$rounds" --run-config "output-dir=\"$work/outputs\""
wait_for "^wrote " "$work/run.log" $((120 + 120 * rounds))
grep "^round " "$work/run.log"

echo "== the sites: what was spent"
for ((number = 0; number < sites; number++)); do
  python - "$work/ward-$number/ledger.sqlite" <<'PYTHON'
import sys

from flower_ldp.accounting.ledger import Ledger

with Ledger.open(sys.argv[1]) as ledger:
    found = ledger.verify()
    for name in ledger.data_ids():
        for unit, total in ledger.totals(name).items():
            print(f"{name}: {found.sealed} reports, epsilon {total.epsilon / 1e12:g} per {unit.value}")
PYTHON
done
