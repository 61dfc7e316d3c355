#!/usr/bin/env bash
# Plants known faults, one at a time, and says for each whether the tests of a usual run find it. tests/run.sh has to pass before.
#
#   tests/planted/run.sh [NAME...]   all patches of this folder, or those
#
# A patch says in its head which area has to find it, and which target and tests of the area are enough to see that. It is applied to this
# tree, which must have no changes that are not committed, and taken back. Exits with 1 where a fault was not found.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

[ -z "$(git status --porcelain)" ] || { echo "run.sh: the tree has changes that are not committed; commit them first" >&2; exit 2; }
patches=(tests/planted/*.patch)
[ $# -eq 0 ] || patches=("${@/#/tests/planted/}") patches=("${patches[@]/%/.patch}")
of() { sed -n "s/^$2: *//p" "$1"; }
planted=
take_back() {
  [ -z "$planted" ] || git apply --reverse "$planted"
  planted=
}
trap take_back EXIT
export OMP_WAIT_POLICY=passive

missed=0
mkdir -p build/planted
for patch in "${patches[@]}"; do
  name=$(basename "$patch" .patch)
  log=build/planted/$name.log
  git apply "$patch"
  planted=$patch
  found="no"
  cmake --preset quick >"$log" 2>&1
  if [ -n "$(of "$patch" builds)" ] && ! cmake --build --preset quick --target $(of "$patch" builds) >>"$log" 2>&1; then
    found="no: it does not build, see $log"
  elif ! ctest --preset quick --parallel "$(nproc)" --label-regex "^$(of "$patch" area)(-|\$)" --label-exclude 'full$' \
      --tests-regex "^$(of "$patch" tests)" --stop-on-failure >>"$log" 2>&1; then
    found="yes: $(sed -n 's/^[[:space:]]*[0-9]* - \(.*\) (.*)$/\1/p' "$log" | head -n 1)"
  fi
  [ "${found%%:*}" = yes ] || missed=1
  take_back
  echo "$(of "$patch" area), $name: found: $found"
done
exit $missed
