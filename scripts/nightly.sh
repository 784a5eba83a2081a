#!/usr/bin/env bash
# A night of perfbisect from cron: one at a time, with its environment, a log of each night, the night's exit code.
#
#   nightly.sh NIGHTLY_YAML [ARGUMENTS OF perfbisect nightly...]
#
#   17 1 * * *  /srv/perfbisect/nightly.sh /srv/perfbisect/nightly.yaml
#
# NIGHTLY_REPO  repository that is fetched before                    [that of NIGHTLY_YAML's folder; empty: none]
# NIGHTLY_ENV   file of NAME=VALUE lines, for addresses and tokens   [NIGHTLY_YAML with .env; may be missing]
# NIGHTLY_LOGS  folder of the logs                                   [logs beside NIGHTLY_YAML]
# NIGHTLY_KEEP  so many logs are kept                                [30]
# PERFBISECT    the program                                          [perfbisect]
#
# Nothing is printed of a night that ends with 0, so that cron's mail means something; else the end of its log.
set -uo pipefail
umask 077

fail() {
  printf 'nightly.sh: %s\n' "$1" >&2
  exit "${2:-2}"
}

[ $# -ge 1 ] || fail 'name the nightly.yaml'
config=$1
shift
[ -f "$config" ] || fail "there is no $config; perfbisect nightly --init $config writes one"

environment=${NIGHTLY_ENV:-${config%.*}.env}
if [ -e "$environment" ]; then
  environment=$(realpath -- "$environment") || fail "$environment is nowhere"
  # It holds secrets, and whoever may write it may run commands as this user.
  [ -O "$environment" ] || fail "$environment is somebody else's"
  [ -z "$(find "$environment" -maxdepth 0 -perm /077)" ] || fail "others may read $environment: chmod 600 $environment"
  set -a
  # shellcheck disable=SC1090
  . "$environment" || fail "$environment cannot be read"
  set +a
fi

perfbisect=${PERFBISECT:-perfbisect}
command -v "$perfbisect" > /dev/null || fail "there is no $perfbisect on the PATH: set PERFBISECT" 5

logs=${NIGHTLY_LOGS:-$(dirname "$config")/logs}
keep=${NIGHTLY_KEEP:-30}
[[ $keep =~ ^[1-9][0-9]*$ ]] || fail "NIGHTLY_KEEP is $keep, not a number of logs"
mkdir -p "$logs" || fail "no folder $logs" 5

exec 9>> "$logs/lock" || fail "$logs/lock cannot be written" 5
flock -n 9 || fail "another night is under way: process $(cat "$logs/lock.pid" 2> /dev/null || echo unknown)" 5
echo "$$" > "$logs/lock.pid"

log=$logs/nightly-$(date -u +%Y%m%d-%H%M%S).log
fetched=0
repository=${NIGHTLY_REPO-$(git -C "$(dirname "$config")" rev-parse --show-toplevel 2> /dev/null)}
if [ -n "$repository" ] && [ -n "$(git -C "$repository" remote 2>> "$log")" ]; then
  # Without the net the night is of what was fetched before; its exit code then says that something failed.
  # What git tidies up in the background would run beside the measurements.
  git -C "$repository" -c gc.auto=0 -c maintenance.auto=false fetch --quiet >> "$log" 2>&1 9>&- || fetched=5
fi

"$perfbisect" nightly "$config" "$@" >> "$log" 2>&1 9>&- &
night=$!
# A signal ends a wait, not the night: perfbisect stops what it has started, and says so by its own code.
stopped=0
trap 'stopped=1; kill -TERM "$night" 2> /dev/null' TERM INT HUP
wait "$night"
code=$?
while [ "$stopped" -eq 1 ]; do
  stopped=0
  wait "$night"
  code=$?
done
if [ "$fetched" -ne 0 ]; then
  echo "git fetch failed in $repository" >> "$log"
  [ "$code" -ne 0 ] || code=$fetched
fi
echo "exit code $code" >> "$log"

old=("$logs"/nightly-*.log)
for ((i = 0; i < ${#old[@]} - keep; i++)); do
  rm -f -- "${old[i]}"
done

if [ "$code" -ne 0 ]; then
  echo "perfbisect nightly $config ended with $code; the end of $log:"
  tail -n 40 "$log"
fi
exit "$code"
