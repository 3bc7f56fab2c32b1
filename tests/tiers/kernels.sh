# shellcheck shell=bash
# Other kernels, in the virtual machine: the self-test under each of them, for CI, and the plugins' tests, for the table
# of docs/install.md.
# Sourced by tests/run, which sets `logs`, `target` and `vm`.

# ---- for CI ----

# Debian's suites with the oldest and the newest kernels; the tier vm has this machine's own suite's.
other_suites() { printf '%s\n' bullseye trixie sid; }

# The self-test on each: every plugin attaches, passes packets and leaves nothing.
kernels() {
  local suite
  if [ -z "$vm" ] || ! is_root; then
    echo "SKIP other kernels: needs root and the virtual machine"
    close kernels 0 0 1
    return
  fi
  for suite in $(other_suites); do
    VM_CACHE=$target/vm one "kernel-$suite" 400 tests/vm/run -k "$suite" -t 380 -- "$CNI_MULTI" doctor --selftest
  done
}

# ---- for the table ----

# A column is a suite of this processor, or the other processor.
columns() { printf '%s\n' bullseye bookworm trixie sid arm64; }

# A run that was stopped goes on where it was. A column is kept until its directory is removed.
every_column() {
  local column
  for column in $(columns); do
    mkdir -p "$(results_of "$column")"
    [ -e "$(results_of "$column")/complete" ] || run_column "$column"
  done
  write_table
}

results_of() { echo "$logs/kernels/$1"; } # results_of COLUMN

# The machine may end before the tests: under 6.12 the kernel oopsed twice (int3 in netif_rx_internal, which it patches
# as it runs), and the machine hung once. So it gets 200 tests at a time, and a test without a result runs again.
# The tests that fail run once more, one at a time: the emulated machine is slow, and they may have run out of time.
run_column() { # run_column COLUMN
  local dir
  dir=$(results_of "$1")
  [ -e "$dir/tests" ] || tests_of_plugins >"$dir/tests"
  take_over "$dir"
  for _ in $(seq 8); do run_those "$1" 8 unreported; done
  run_those "$1" 1 failed
  touch "$dir/complete"
  close "kernel-$1" "$(passed "$dir" | wc -l)" "$(failed "$dir" | wc -l)" "$(skipped "$dir" | wc -l)"
}

# The tests of one plugin each, without those that depend on no kernel: of the reference's plugins, of upgrades, of etcd,
# and of the DHCP daemon's own matters.
tests_of_plugins() {
  local all plugin
  all=$("$(integration_binary)" --list | sed -n 's/: test$//p')
  for plugin in $("$CNI_MULTI" list); do
    grep -E "$(names_of "$plugin")" <<<"$all"
  done | grep -vE '::reference$|::(upgrade|original|import|old_and_new)::|::cluster_local::[^:]+::|::dhcp::(daemon|commands|many|wire)::'
}

# The beginning of its tests' names; two plugins have modules with longer names.
names_of() { echo "^plugins::(main|meta|ipam)::${1//-/_}(_|_store)?::"; } # names_of PLUGIN

run_those() { # run_those COLUMN THREADS STATE
  local dir tests
  dir=$(results_of "$1")
  mapfile -t -n 200 tests < <("$3" "$dir")
  [ ${#tests[@]} != 0 ] || return 0
  case $1 in
    arm64) under_arm64 "$dir" "$2" "${tests[@]}" ;;
    *) under_kernel "$1" "$dir" "$2" "${tests[@]}" ;;
  esac
  take_over "$dir"
}

under_kernel() { # under_kernel SUITE DIR THREADS TEST...
  local suite=$1 dir=$2 threads=$3
  shift 3
  boot_with "$dir" "$threads" -k "$suite" -- "CNI_MULTI=$CNI_MULTI" "$(integration_binary)" "$@"
}

# The source lies there where it was when the tests were built: they read files of it.
under_arm64() { # under_arm64 DIR THREADS TEST...
  local dir=$1 threads=$2 source
  shift 2
  source=$(packaging/cross aarch64 --tests 2>>"$logs/cross.log") || { show_log cross; return 1; }
  tests/vm/root arm64 "$target/vm/arm64/root" || return 1
  rm -rf "$dir/vm/src"
  mkdir -p "$dir/vm"
  cp -a "$source" "$dir/vm/src"
  ! grep -q '^test result' "$dir/unit" 2>/dev/null || rm "$dir/vm/src/unit"
  boot_with "$dir" "$threads" -p arm64 -r "$target/vm/arm64/root" -- CNI_MULTI=/src/cni-multi /src/integration "$@"
}

# boot_with DIR THREADS OPTION... -- VARIABLE BINARY TEST...: runs the tests of the binary in the machine that the
# options of tests/vm/run choose, for at most 40 minutes; and after them the unit tests, where they are beside them.
boot_with() {
  local dir=$1 threads=$2 options=()
  shift 2
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  # shellcheck disable=SC2016 # for the inner shell
  VM_CACHE=$target/vm VM_OUT=$dir/vm limited 2500 kernels tests/vm/run -t 2400 "${options[@]}" -- \
    env CNI_VM=1 CNI_SHORT=1 RUST_TEST_THREADS="$threads" CNI_SKIP_LOG=/vm-out/skips "$1" sh -c '
      [ ! -d /vm-out/src ] || cp -a /vm-out/src /src
      uname -rm >/vm-out/uname
      "$@" >/vm-out/output 2>/vm-out/notes
      [ ! -e /src/unit ] || /src/unit >/vm-out/unit 2>&1' sh "$2" --exact "${@:3}"
}

# What the machine has written, added to what there is.
take_over() { # take_over DIR
  local part
  for part in output skips; do
    [ ! -e "$1/vm/$part" ] || { cat "$1/vm/$part" >>"$1/$part" && rm "$1/vm/$part"; }
  done
  for part in uname unit; do
    [ ! -e "$1/vm/$part" ] || cp "$1/vm/$part" "$1/$part"
  done
}

with_result() { sed -nE "s/^test ([^ ]+) \.\.\. $2\$/\1/p" "$1/output" 2>/dev/null | grep -xFf "$1/tests"; } # with_result DIR RESULT
skipped() { skipped_tests "$1/skips"; }
reported() { with_result "$1" '(ok|FAILED)'; }
unreported() { grep -vxFf <(reported "$1") "$1/tests"; }
passed() { with_result "$1" ok | grep -vxFf <(skipped "$1") | sort -u; }
# The others: they failed, or did not end.
failed() { grep -vxFf <(with_result "$1" ok) "$1/tests"; }

# ---- the table ----

write_table() {
  {
    head_of_table
    for plugin in $("$CNI_MULTI" list); do row_of "$plugin"; done
    echo
    for column in $(columns); do exceptions_of "$column"; done
  } | tee "$logs/kernels/table.md"
}

head_of_table() {
  local column heading='| plugin |' line='|---|'
  for column in $(columns); do
    heading+=" $(kernel_of "$column") |" line+='---|'
  done
  printf '%s\n%s\n' "$heading" "$line"
}

# Major and minor version, and the processor.
kernel_of() { # kernel_of COLUMN
  sed -nE 's/^([0-9]+\.[0-9]+)\S* (.*)/\1 \2/p' "$(results_of "$1")/uname" 2>/dev/null | grep . || echo "$1"
}

row_of() { # row_of PLUGIN
  local column row
  row="| $1 |"
  for column in $(columns); do row+=" $(cell_of "$1" "$(results_of "$column")") |"; done
  echo "$row"
}

# Numbers of tests.
cell_of() { # cell_of PLUGIN DIR
  local cell state number
  [ -e "$2/complete" ] || { echo "not run"; return; }
  cell=$(passed "$2" | grep -cE "$(names_of "$1")")
  for state in skipped failed; do
    number=$($state "$2" | grep -cE "$(names_of "$1")")
    [ "$number" = 0 ] || cell+=", $number $state"
  done
  echo "$cell"
}

exceptions_of() { # exceptions_of COLUMN
  local dir
  dir=$(results_of "$1")
  [ -e "$dir/complete" ] || return 0
  sed -nE "s/^SKIP (plugins::[^ ]+): (needs .*)/* $(kernel_of "$1"): \1 \2/p" "$dir/skips" 2>/dev/null | sort -u
  failed "$dir" | sed "s/.*/* $(kernel_of "$1"): & failed/"
  sed -nE "s/^test result: (.*); .* measured.*/* $(kernel_of "$1"): the unit tests: \1/p" "$dir/unit" 2>/dev/null
}
