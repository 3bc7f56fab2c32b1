# shellcheck shell=bash
# The benchmark's guard: what the release binary costs, beside the reference plugins and C programs in the same run.
# Sourced by tests/run, which sets `logs`; CNI_MULTI names the release binary, CNI_REFERENCE the reference plugins.

guard() {
  local status passed failed skipped lack
  lack=$(lack_of_guard)
  if [ -n "$lack" ]; then
    echo "SKIP guard: needs $lack"
    close guard 0 0 1
    return
  fi
  limited 600 guard cargo test --locked --bench compare -- --guard --ours "$CNI_MULTI" --reference "$CNI_REFERENCE"
  status=$?
  read -r passed failed skipped < <(outcome_of_guard)
  [ -n "${skipped:-}" ] || passed=0 failed=1 skipped=0 # it did not come to its end
  [ $status = 0 ] || show_log guard
  sed -n 's/^SKIP /  skipped /p' "$logs/guard.log"
  close guard "$passed" "$failed" "$skipped"
}

outcome_of_guard() {
  sed -nE 's/^guard: ([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p' "$logs/guard.log"
}

# The first thing that the guard needs and this machine lacks, if any.
lack_of_guard() {
  local program
  for program in cc ip iptables nft; do
    command -v $program >/dev/null || { echo $program; return; }
  done
  # The limits are those beside the newest reference; the package of this machine's suite is older.
  [ "${CNI_REFERENCE:-/usr/lib/cni}" != /usr/lib/cni ] ||
    { echo "the newest reference plugins, which --no-install does not fetch"; return; }
  is_root || unshare -Urnm true 2>/dev/null || echo "root or a user namespace"
}
