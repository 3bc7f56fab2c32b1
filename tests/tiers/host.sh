# shellcheck shell=bash
# Tiers with a host of their own: real runtimes, the demonstration, packages on roots of distributions.
# Sourced by tests/run, which sets `logs` and `target`; CNI_MULTI names the release binary.

# ---- real runtimes ----

runtimes() {
  local status passed failed
  if ! is_root; then
    echo "SKIP runtimes: needs root"
    close runtimes 0 0 1
    return
  fi
  limited 1500 runtimes tests/runtimes/run
  status=$?
  if [ $status = 2 ] && [ -z "$install" ]; then
    echo "SKIP runtimes: $(tail -n 1 "$logs/runtimes.log")"
    close runtimes 0 0 1
    return
  fi
  read -r passed failed < <(sed -nE 's/^runtimes: ([0-9]+) passed, ([0-9]+) failed$/\1 \2/p' "$logs/runtimes.log")
  [ -n "${failed:-}" ] || passed=0 failed=1 # it did not come to its end
  [ $status = 0 ] || show_log runtimes
  close runtimes "$passed" "$failed" 0
}

# ---- the demonstration ----

# A clone may lie where only its owner can read: what an ordinary user needs is copied.
demo_as_nobody() {
  local copy
  copy=$(mktemp -d)
  install -D -t "$copy" install.sh "$CNI_MULTI"
  install -D -t "$copy/packaging" packaging/options.sh packaging/preflight.sh
  chmod -R a+rX "$copy"
  (cd "$copy" && HOME=/nonexistent as_nobody ./install.sh --demo --binary "$copy/cni-multi")
  local status=$?
  rm -rf "$copy"
  return $status
}

as_nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs "$@"; }

demos() {
  if ! is_root; then
    one demo 120 ./install.sh --demo --binary "$CNI_MULTI"
    return
  fi
  one demo-root 120 ./install.sh --demo --binary "$CNI_MULTI"
  if as_nobody unshare -Urnm true 2>/dev/null; then
    one demo-user 120 demo_as_nobody
  else
    echo "SKIP demo as an ordinary user: needs unprivileged user namespaces"
    close demo-user 0 0 1
  fi
}

# ---- packages ----

# Each package on a root of its own, which only root can have; then the second build. Both keep one processor busy,
# so they run beside the integration tests, and take only time that those leave idle (sched(7), SCHED_IDLE).
begin_packages() {
  packages_job=
  is_root && [ -z "$not_installed" ] || return 0
  (
    in_idle_time timeout --kill-after=20 1500 tests/packages "$target/packages" >"$logs/packages.log" 2>&1 </dev/null
    echo $? >"$logs/packages.status"
    in_idle_time timeout --kill-after=20 3600 tests/reproducible "$target/packages" >"$logs/reproducible.log" 2>&1 </dev/null
    echo $? >"$logs/reproducible.status"
  ) &
  packages_job=$!
}

in_idle_time() { chrt --idle 0 "$@"; }

end_packages() {
  local status failed
  if [ -z "$packages_job" ]; then
    echo "SKIP packages: needs ${not_installed:-root}"
    close packages 0 0 1
    return
  fi
  with_progress reproducible tail --pid="$packages_job" -f /dev/null
  status=$(cat "$logs/packages.status")
  failed=$(sum_of failed packages)
  if [ "$status" != 0 ] && [ "$failed" = 0 ]; then failed=1; fi # it was killed
  [ "$status" = 0 ] || show_log packages
  close packages "$(sum_of passed packages)" "$failed" 0
  if [ "$(cat "$logs/reproducible.status")" = 0 ]; then
    close reproducible 1 0 0
  else
    show_log reproducible
    close reproducible 0 1 0
  fi
}
