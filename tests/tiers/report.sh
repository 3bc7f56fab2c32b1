# shellcheck shell=bash
# What the tiers of tests/run print and keep: a line while one runs, with its progress on a terminal, and a closing line
# when it ends.
# Sourced by tests/run, which sets `logs`, the directory of whole outputs, and `extent`.

all_passed=0 all_failed=0 all_skipped=0
tier_began=$SECONDS

# close TIER PASSED FAILED SKIPPED: the closing line, with the minutes since the tier began, and its budget.
close() {
  erase_progress
  printf '%s: %d passed, %d failed, %d skipped (%s)\n' "$1" "$2" "$3" "$4" "$(beside_budget $((SECONDS - tier_began)) "$1")"
  all_passed=$((all_passed + $2)) all_failed=$((all_failed + $3)) all_skipped=$((all_skipped + $4))
  tier_began=$SECONDS
}

close_all() {
  printf 'total: %d passed, %d failed, %d skipped (%s)\n' \
    "$all_passed" "$all_failed" "$all_skipped" "$(beside_budget $SECONDS total)"
  [ "$all_failed" = 0 ]
}

minutes() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); } # minutes SECONDS

# beside_budget SECONDS TIER: `4:10 of 13:00`, where tests/tiers/budgets has the tier for this extent.
beside_budget() {
  local budget
  budget=$(awk -v extent="$extent" -v tier="$2" '$1 == extent && $2 == tier {print $3}' tests/tiers/budgets)
  printf '%s%s' "$(minutes "$1")" "${budget:+ of $budget}"
}

# The last lines of a failed tier's output.
show_log() { # show_log TIER
  erase_progress
  tail -n 80 "$logs/$1.log" | sed 's/^/  | /'
  echo "  | (all of it: $logs/$1.log)"
}

# ---- progress, on a terminal ----

is_terminal() { [ -t 1 ] && [ "${TERM:-dumb}" != dumb ]; }

erase_progress() { ! is_terminal || printf '\r\e[K'; }

# One line, rewritten each second until the process is killed.
show_progress() { # show_progress TIER
  local began=$SECONDS
  while sleep 1; do
    printf '\r\e[K%s: %s %s' "$1" "$(minutes $((SECONDS - began)))" "$(state_of "$1")"
  done
}

# with_progress TIER COMMAND...: a trap of ours runs at once only while the shell waits, so the command is a job. With job
# control it is in a process group of its own and does not ignore SIGINT, which tests that interrupt a program would inherit.
with_progress() {
  local tier=$1 ticker='' job status
  shift
  if is_terminal; then
    show_progress "$tier" &
    ticker=$!
  else
    echo "$tier: begins"
  fi
  set -m
  "$@" &
  job=$!
  set +m
  wait "$job"
  status=$?
  if [ -n "$ticker" ]; then
    { kill "$ticker" && wait "$ticker"; } 2>/dev/null
    erase_progress
  fi
  return $status
}

# What was started ends with this shell, in whichever process group it is: timeout(1) makes one for each command.
end_all() { # end_all STATUS
  local pids
  trap '' HUP INT TERM
  mapfile -t pids < <(descendants)
  kill -TERM "${pids[@]}" 2>/dev/null
  for _ in $(seq 30); do
    kill -0 "${pids[@]}" 2>/dev/null || break
    sleep 0.1
  done
  kill -KILL "${pids[@]}" 2>/dev/null
  exit "$1"
}

# All processes below this shell.
descendants() {
  cat /proc/[0-9]*/status 2>/dev/null | awk -v top=$$ '
    /^Pid:/ { pid = $2 }
    /^PPid:/ { parent[pid] = $2 }
    END {
      for (pid in parent) {
        for (at = pid; at > 1 && at != top; at = parent[at]);
        if (at == top && pid != top) print pid
      }
    }'
}

# How far a tier's output has come: tests that ended, else the last line.
state_of() { # state_of TIER
  local ended all log
  log=$(log_of "$1")
  ended=$(grep -c '^test .* \.\.\. ' "$log" 2>/dev/null)
  all=$(sed -nE 's/^running ([0-9]+) tests?$/\1/p' "$log" 2>/dev/null | awk '{n += $1} END {print n + 0}')
  if [ "${all:-0}" != 0 ]; then
    echo "$ended of $all tests"
  else
    tail -n 1 "$log" 2>/dev/null | tr -d '\r' | cut -c 1-60
  fi
}

# Where libtest reports: in the virtual machine to a file of its own.
log_of() { # log_of TIER
  if [ -s "$logs/$1/output" ]; then echo "$logs/$1/output"; else echo "$logs/$1.log"; fi
}

# ---- running a tier ----

# limited SECONDS TIER COMMAND...: runs it, a function or a program, with its output in the tier's log. A tier that
# takes longer is killed with all that it started, and the closing output names the tests that had not ended. Status
# 124 says so.
limited() {
  local seconds=$1 tier=$2 status
  shift 2
  [ "$(type -t "$1")" != function ] || set -- bash -c "$(declare -f); \"\$@\"" bash "$@" # timeout(1) runs programs
  with_progress "$tier" logged "$tier" timeout --kill-after=20 "$seconds" "$@"
  status=$?
  case $status in
    124 | 137) tell_hung "$tier" "$seconds" ;;
  esac
  return $status
}

logged() { # logged TIER COMMAND...
  local log=$logs/$1.log
  shift
  "$@" >"$log" 2>&1 </dev/null
}

tell_hung() { # tell_hung TIER SECONDS
  erase_progress
  echo "  $1 was killed after $2 s, its limit; it had not ended:"
  unfinished "$1" | head -n 8 | sed 's/^/    /'
}

# Tests that libtest warned about and never reported; else the last line of the output.
unfinished() { # unfinished TIER
  local slow log
  log=$(log_of "$1")
  slow=$(sed -nE 's/^test ([^ ]+) has been running for over .*/\1/p' "$log" | sort -u |
    grep -vxFf <(sed -nE 's/^test ([^ ]+) \.\.\. .*/\1/p' "$log"))
  echo "${slow:-after: $(tail -n 1 "$log")}"
}

# one TIER SECONDS COMMAND...: a tier that passes or fails as a whole.
one() {
  local tier=$1 seconds=$2
  shift 2
  if limited "$seconds" "$tier" "$@"; then
    close "$tier" 1 0 0
  else
    show_log "$tier"
    close "$tier" 0 1 0
  fi
}

# A tier that was killed has no closing line.
passed_tests() { # passed_tests TIER
  local all
  all=$(sum_of passed "$1")
  if [ "$all" = 0 ]; then grep -acE '^test .* \.\.\. ok( <.*>)?$' "$logs/$1.log"; else echo "$all"; fi
}

sum_of() { # sum_of FIELD TIER: of libtest's closing lines
  sed -nE "s/^test result:.* ([0-9]+) $1[;.].*/\1/p" "$logs/$2.log" | awk '{n += $1} END {print n + 0}'
}
