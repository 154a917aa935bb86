# Processes of a script, for try_on_one_machine.sh to source; $work is the folder of their logs.
# Each is in a group of its own, but for its first moment; they end with the script, whatever happens.
names=()
groups=()
trap 'for one in "${groups[@]}"; do kill -TERM -- "-$one" 2>/dev/null || kill -TERM "$one" 2>/dev/null || true; done; wait' EXIT
start() { # NAME COMMAND...
  local name=$1
  shift
  (cd "$work" && exec setsid "$@") >"$work/$name.log" 2>&1 &
  names+=("$name")
  groups+=($!)
}
ended() { # prints the name of a process that is no more
  local i
  for i in "${!groups[@]}"; do
    if ! kill -0 "${groups[$i]}" 2>/dev/null; then
      echo "${names[$i]}"
      return
    fi
  done
}
wait_for() { # TEXT FILE [SECONDS]: all processes must live until then
  local gone
  for _ in $(seq $((5 * ${3:-120}))); do
    gone=$(ended) # before the file is read: its last words may be the text
    if grep -q "$1" "$2" 2>/dev/null; then return; fi
    if [ -n "$gone" ]; then
      echo "$gone has ended:" >&2
      tail -n 30 "$work/$gone.log" >&2
      exit 1
    fi
    sleep 0.2
  done
  echo "no '$1' in $2:" >&2
  tail -n 30 "$2" >&2
  exit 1
}
