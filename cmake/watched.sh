# Sourced by tests/run.sh and examples/demo.sh.

# watched WHAT LOG COMMAND...: runs the command, with what it prints in LOG, and says each 20 s how far it is. Shows the log and
# exits where the command fails. An interrupt ends the command and all that it started.
watched() {
  local what=$1 log=$2 began=$SECONDS status=0 pid
  shift 2
  set -m  # a process group of its own
  "$@" >"$log" 2>&1 &
  pid=$!
  set +m
  trap 'kill -- "-$pid"; exit 130' INT TERM
  while kill -0 $pid 2>/dev/null; do
    for _ in {1..100}; do
      sleep .2
      kill -0 $pid 2>/dev/null || break 2
    done
    echo "$what, $((SECONDS - began)) s: $(tail -n 1 "$log" | cut -c1-120)"
  done
  wait $pid || status=$?
  trap - INT TERM
  [ $status -eq 0 ] || { cat "$log"; exit $status; }
}

# install_steps STEP...: bootstrap's, with a list before and progress. Debian packages may need a password, which has to be asked for
# in the foreground.
install_steps() {
  local missing
  missing=$(cmake/bootstrap.sh list "$@")
  [ -n "$missing" ] || return 0
  echo "Missing, and installed now:"
  sed 's/^/  /' <<<"$missing"
  if [[ $missing == *"Debian packages"* && $(id -u) -ne 0 ]] && command -v sudo >/dev/null; then sudo -v; fi
  mkdir -p build
  watched "installing" build/install.log cmake/bootstrap.sh "$@"
}
