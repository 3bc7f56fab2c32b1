# shellcheck shell=bash
# Tiers that cargo runs: clippy, the release binary, unit and integration tests, fuzzing for a moment.
# Sourced by tests/run, which sets `logs`, `target` and `extent`.

# ---- without a kernel ----

check_licences() {
  one licences 120 tests/licences
  if cargo deny --version >/dev/null 2>&1; then
    one cargo-deny 120 cargo deny --offline check licenses bans sources
  fi
}

# Some sources of tests contain a script; only the first line says what a file is. The parts of
# tests/run are checked with it.
check_scripts() {
  local scripts
  command -v shellcheck >/dev/null || { echo "SKIP scripts: needs shellcheck"; close scripts 0 0 1; return; }
  mapfile -t scripts < <(
    grep -E -m 1 -n -r '^#!/bin/(ba)?sh' install.sh .ci tests packaging fuzz/run 2>/dev/null | sed -n 's/:1:.*//p'
  )
  one scripts 120 shellcheck --external-sources "${scripts[@]}"
}

# ---- the release binary ----

# Its last part, the linker's, keeps one processor busy: the other one checks and compiles the tests meanwhile.
begin_release() { ./install.sh --build >"$logs/begin.log" 2>&1 </dev/null & }

build_release() {
  one build 1200 ./install.sh --build
  CNI_MULTI=$(tail -n 1 "$logs/build.log")
  [ -x "$CNI_MULTI" ] || return 1
  export CNI_MULTI
  one static 10 is_static "$CNI_MULTI"
  one small 10 is_small "$CNI_MULTI"
}

# A program that names no dynamic linker. ldd's words differ between libcs, its silence does not.
is_static() { ! ldd "$1" 2>&1 | grep '=>'; }

# The budget of docs/performance.md.
is_small() { [ "$(stat -c %s "$1")" -le 7100000 ]; }

# ---- tests ----

# Root makes namespaces as it is; an ordinary user is root in a user namespace, with a /run of its own.
as_root_somewhere() {
  # shellcheck disable=SC2016 # for the inner shell
  if is_root; then
    "$@"
  elif unshare -Urnm true 2>/dev/null; then
    unshare -Urnm sh -c 'mount -t tmpfs tmpfs /run && mkdir /run/netns && ip link set lo up; exec "$@"' sh "$@"
  else
    "$@"
  fi
}

# cargo_tests TIER SECONDS CARGO-ARGUMENTS...
cargo_tests() {
  local tier=$1 seconds=$2 passed failed ignored skips status
  shift 2
  : >"$logs/skips"
  limited "$seconds" "$tier" as_root_somewhere cargo test --locked --no-fail-fast "$@"
  status=$?
  passed=$(passed_tests "$tier") failed=$(sum_of failed "$tier") ignored=$(sum_of ignored "$tier")
  skips=$(skipped_tests "$logs/skips" | wc -l)
  if [ $status != 0 ] && [ "$failed" = 0 ]; then failed=1; fi # it did not build, or it was killed
  [ $status = 0 ] || show_log "$tier"
  close "$tier" $((passed - skips)) "$failed" $((skips + ignored))
}

# Twice as many threads as processors, and two: tests wait for the kernel and for each other.
integration_tests() { # integration_tests SECONDS LIBTEST-ARGUMENT...
  local seconds=$1
  shift
  export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) * 2 + 2))}
  cargo_tests integration "$seconds" --test integration -- "$@"
}

skipped_tests() { sed -nE 's/^SKIP ([^ ]+): needs .*/\1/p' "$1" 2>/dev/null | sort -u; }

list_skips() { sed -nE 's/^SKIP /  skipped /p' "$1" | sort -u; }

integration_binary() {
  cargo test --locked --no-run --test integration --message-format=json 2>/dev/null |
    sed -nE 's/.*"name":"integration".*"executable":"([^"]+)".*/\1/p' | tail -n 1
}

# ---- which tests run where ----

# Beginnings of names that --quick runs.
quick_tests() { grep '^[a-z]' tests/tiers/quick; }


# Names of tests, or beginnings of names, that only --all runs: the first column of the table in CONTRIBUTING.md.
long_tests() {
  sed -nE '/^\| test, or the beginning of its name /,/^$/ s/^\|( `[^|]*`) \|.*/\1/p' CONTRIBUTING.md | grep -o '[a-z][a-z0-9_:]*'
}

# The same as arguments of libtest. `--skip` matches anywhere in a name, so these are whole paths.
without_long_tests() { long_tests | sed 's/^/--skip\n/'; }

# ---- fuzzing ----

fuzzing() {
  one fuzz 900 fuzz/run --short
  tail -n 1 "$logs/fuzz.log" | sed 's/^/  /'
}
