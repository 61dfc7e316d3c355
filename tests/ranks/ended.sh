#!/usr/bin/env bash
# Runs a command under mpirun; each rank named must say what it waited for, and the choice that stood must stand.
#
#   ended.sh "0 1 3" STATUS COMMAND...      STATUS: failed where mpirun itself must say so, or any
set -uo pipefail
ranks=$1 status=$2
shift 2
said=$("$@" 2>&1)
got=$?
echo "$said"
[ "$status" = any ] || [ "$got" -ne 0 ] || { echo "ended.sh: exit status 0 of a group that lost a rank"; exit 1; }
for rank in $ranks; do
  grep -q "^rank $rank of 4 waited [0-9]* ms for the scores of the other ranks" <<<"$said" || { echo "ended.sh: rank $rank said nothing"; exit 1; }
done
! grep -q "did not stand\|choices" <<<"$said"
