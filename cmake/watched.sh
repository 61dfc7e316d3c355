# Sourced by tests/run.sh and examples/demo.sh.

# watched WHAT LOG COMMAND...: runs the command, with what it prints in LOG, and says each 20 s how far it is. Shows the log and
# exits where the command fails.
watched() {
  local what=$1 log=$2 began=$SECONDS status=0 pid last
  shift 2
  "$@" >"$log" 2>&1 &
  pid=$!
  trap 'kill "$pid"; exit 130' INT TERM
  while kill -0 $pid 2>/dev/null; do
    for _ in {1..100}; do
      sleep .2
      kill -0 $pid 2>/dev/null || break 2
    done
    last=$(tail -n 1 "$log" | cut -c1-120)
    echo "$what, $((SECONDS - began)) s: $last"
  done
  wait $pid || status=$?
  trap - INT TERM
  [ $status -eq 0 ] || { cat "$log"; exit $status; }
}
