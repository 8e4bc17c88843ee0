#!/bin/sh
# Five hospitals train one model; on the way the process is killed as hard as can be, and another one goes on.
#   examples/demo.sh [the command dpfed]
set -eu
dpfed=${1:-dpfed}
here=$(dirname "$0")
number=1
while [ -e "runs/demo-$number" ]; do number=$((number + 1)); done
run=runs/demo-$number
mkdir -p runs
# One charge more than rounds, for the round that the crash makes do again.
sed 's/^#spare_rounds: 0/spare_rounds: 1/' "$here/hospitals.yaml" > "$run.yaml"

"$dpfed" run "$run.yaml" --directory "$run" &
process=$!
trap 'kill "$process" 2>/dev/null || true' EXIT
# After the fifth round, which is then done and in its file; a run that ends before is not waited for.
until [ "$(cat "$run/rounds.jsonl" 2>/dev/null | wc -l)" -ge 5 ] || ! kill -0 "$process" 2>/dev/null; do sleep 0.02; done
kill -KILL "$process" 2>/dev/null || true
wait "$process" 2>/dev/null || true
trap - EXIT

printf '\nkill -9. Going on: what was released is used again and costs nothing, anything else is charged anew.\n\n'
"$dpfed" resume "$run"
