#!/usr/bin/env bash
# The whole guide on this machine: try_on_one_machine.sh [dpsgd|codeword [ROUNDS [SITES]]]
# dpsgd: few sites, DP-SGD per row, the app listed in each site's policy. codeword: an app that
# nobody has read, in a sandbox. Everything goes into a new folder below, and ends with this script.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
route=${1:-dpsgd} sites=${3:-3}
work=$(mktemp -d "${TMPDIR:-/tmp}/flower-ldp-deployment.XXXXXX")
. "$here/processes.sh"
free_port() { python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
submit() { # NAME TEXT OPTIONS...: run the app until its log has the text
  local name=$1 text=$2
  shift 2
  start "$name" flwr run "$work/app" federation --stream "$@"
  wait_for "$text" "$work/$name.log" $((120 + 120 * rounds))
  grep -m 1 "$text" "$work/$name.log"
  wait "${groups[-1]}" || true # a run may end; the other processes may not
  unset 'names[-1]' 'groups[-1]'
}
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

case $route in
  dpsgd)
    rounds=${2:-8}
    cp -r "$here/../few_sites/private" "$work/app"
    sed -i "s/^num-server-rounds.*/num-server-rounds = $rounds/" "$work/app/pyproject.toml"
    policy=(--epsilon 5 --rounds "$rounds" --steps 5 --rate 0.25 --app "$work/app")
    apps=(--ldp-gate reports --ldp-unsafe-app-user)
    ;;
  codeword)
    rounds=${2:-1}
    cp -r "$here/../asked-once" "$work/app"
    policy=(--for codeword --epsilon 8)
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
    ;;
  *)
    echo "the route must be dpsgd or codeword, got $route" >&2
    exit 2
    ;;
esac
echo "== apps run with ${apps[*]}"

for ((number = 0; number < sites; number++)); do
  echo "== site $number: folder, registration, node with its apps"
  site="$work/ward-$number"
  rows=$(((455 - number + sites - 1) / sites)) # of few_sites' training rows
  python "$here/prepare.py" site "$site" --data-id "ward-$number" --examples "$rows" "${policy[@]}"
  flwr supernode register "$site/node-key.pub" federation --name "ward-$number"
  runtime=$(free_port)
  start "node-$number" "$here/node.sh" "$site" "$work/certificates/ca.crt" "127.0.0.1:$port" \
    "$runtime" "${apps[@]}" --node-config "partition-id=$number num-partitions=$sites"
done
for ((number = 0; number < sites; number++)); do
  wait_for "SuperNode ID" "$work/node-$number.log"
done

if [ "$route" = codeword ]; then
  echo "== a user: the app is submitted; its own gate steps aside"
  submit run "^wrote " --run-config "num-server-rounds=$rounds output-dir=\"$work/outputs\""
  grep "^round " "$work/run.log"
else
  echo "== a user: the app is submitted"
  submit run "^final accuracy"
  echo "== one more round than the sites have listed is refused"
  submit longer "ldp:refused:[a-z]*" --run-config "num-server-rounds=$((rounds + 1))"
  echo "== another run is refused: the rows have spent their budget"
  submit again "ldp:refused:[a-z]*"
fi

echo "== the sites: what was spent"
for ((number = 0; number < sites; number++)); do
  flower-ldp ledger show "$work/ward-$number/ledger.sqlite"
done
