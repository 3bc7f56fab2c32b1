# shellcheck shell=bash
# Tiers that cargo runs: clippy, the release binary, unit and integration tests, fuzzing for a moment.
# Sourced by tests/run, which sets `logs` and `target`.

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
is_small() { [ "$(stat -c %s "$1")" -le 7150000 ]; }

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

# cargo_tests TIER SECONDS TARGET LIBTEST-ARGUMENT...: TARGET is `lib`, or the name of an integration binary.
cargo_tests() {
  local tier=$1 seconds=$2 passed failed ignored skips lacking status
  shift 2
  : >"$logs/skips"
  limited "$seconds" "$tier" call_tests "$@"
  status=$?
  passed=$(passed_tests "$tier") failed=$(sum_of failed "$tier") ignored=$(sum_of ignored "$tier")
  skips=$(skipped_tests "$logs/skips" | wc -l) lacking=$(tests_that_lack_a_program "$tier" | wc -l)
  failed=$((failed - lacking))
  if [ $status != 0 ] && [ $failed = 0 ] && [ "$lacking" = 0 ]; then failed=1; fi # there is no binary, or it was killed
  [ $failed = 0 ] || show_log "$tier"
  close "$tier" $((passed - skips + lacking)) $failed $((skips + ignored))
}

# Tests that ended because a program is missing, as they would deep in a case. Where --all has installed every package, that
# is a failure.
tests_that_lack_a_program() { # tests_that_lack_a_program TIER
  [ -n "$not_installed" ] || [ "$extent" = ordinary ] || return 0
  comm -12 <(sed -nE 's/^test ([^ ]+) \.\.\. FAILED.*/\1/p' "$logs/$1.log" | sort -u) \
    <(skipped_tests <(grep ': needs program ' "$logs/skips"))
}

# Unit tests and the library for the integration tests are compiled beside each other.
compile_tests() { one compile 1200 cargo test --locked --no-run --lib --test integration; }

# libtest reports the time of each test only with RUSTC_BOOTSTRAP, which no build may see: build scripts would look for
# features of nightly. So the binary is called without cargo.
call_tests() { # call_tests TARGET LIBTEST-ARGUMENT...
  local target=$1
  shift
  RUSTC_BOOTSTRAP=1 as_root_somewhere "$(binary_of "$target")" -Zunstable-options --report-time "$@"
}

option_of() { if [ "$1" = lib ]; then echo --lib; else echo "--test=$1"; fi; }

# What cargo has built of a target.
binary_of() { # binary_of TARGET
  cargo test --locked --no-run "$(option_of "$1")" --message-format=json 2>/dev/null |
    sed -nE 's/.*"test":true.*"executable":"([^"]+)".*/\1/p' | tail -n 1
}

# The slowest tests of the tiers that ran, with their seconds.
slowest_tests() { # slowest_tests NUMBER
  sed -nE 's/^test ([^ ]+) \.\.\. [^<]*<([0-9.]+)s>$/\2 \1/p' "$logs"/{unit,integration,vm}.log 2>/dev/null |
    sort -rn | sed -nE "1,$1s/^([^ ]+) (.*)/  \1 s  \2/p"
}

# Four times as many threads as processors, since many tests wait. In the order of their names, those that wait would
# run beside each other, and those that do not.
integration_tests() { # integration_tests SECONDS LIBTEST-ARGUMENT...
  local seconds=$1
  shift
  export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) * 4))}
  cargo_tests integration "$seconds" integration --shuffle-seed 1 "$@"
}

skipped_tests() { sed -nE 's/^SKIP ([^ ]+): needs .*/\1/p' "$1" 2>/dev/null | sort -u; }

list_skips() { sed -nE 's/, case [0-9]+$//; s/^SKIP /  skipped /p' "$1" | sort -u; }

integration_binary() { binary_of integration; }

# ---- which tests run where ----

# libtest's arguments for what tests/run has of the integration tests; --all has every one.
ordinary_tests() { sed -nE '/^[a-z]/p; s/^-/--skip\n/p' tests/tiers/ordinary; }

# ---- fuzzing ----

fuzzing() {
  one fuzz 900 fuzz/run --short
  tail -n 1 "$logs/fuzz.log" | sed 's/^/  /'
}
