# shellcheck shell=bash
# Other kernels, in the virtual machine: the self-test under each of them, for CI, and the plugins' tests, for the figures
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

# A machine may end before the tests, so it gets 200 of them at a time, and a test without a result runs again.
# The tests that fail run once more, one at a time: the emulated machine is slow, and they may have run out of time.
run_column() { # run_column COLUMN
  local dir
  dir=$(results_of "$1")
  [ -e "$dir/tests" ] || tests_of_plugins >"$dir/tests"
  take_over "$dir"
  echo "kernel-$1: begins"
  for _ in $(seq 8); do run_those "$1" 4 unreported; done
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

# A machine has one processor: with two, kernels of 6.12 oops where they patch their own code as it runs (int3 in
# netif_rx_internal), since one emulated processor may go on with what the other one has replaced. So there are as many
# machines as this one has processors.
run_those() { # run_those COLUMN THREADS STATE
  local dir tests machine machines
  dir=$(results_of "$1") machines=$(nproc)
  mapfile -t -n $((200 * machines)) tests < <("$3" "$dir")
  [ ${#tests[@]} != 0 ] || return 0
  prepare "$1" || return 1
  for ((machine = 0; machine < machines && machine < ${#tests[@]}; machine++)); do
    run_share "$1" "$2" "$machine" "$machines" "${tests[@]}" &
  done
  wait
  take_over "$dir"
}

# Machine 0 of 2 takes the tests 0, 2, 4 and so on.
run_share() { # run_share COLUMN THREADS MACHINE MACHINES TEST...
  local dir threads=$2 machine=$3 machines=$4 share=() at
  dir=$(results_of "$1")
  for ((at = 5 + machine; at <= $#; at += machines)); do share+=("${!at}"); done
  case $1 in
    arm64)
      give_source "$dir/vm/$machine"
      boot_with "$dir/vm/$machine" "$threads" -p arm64 -r "$target/vm/arm64/root" -- \
        CNI_MULTI=/src/cni-multi /src/integration "${share[@]}"
      ;;
    *) boot_with "$dir/vm/$machine" "$threads" -k "$1" -- "CNI_MULTI=$CNI_MULTI" "$(integration_binary)" "${share[@]}" ;;
  esac
}

# What the machines share: the kernel, and for arm64 the source with the tests ($arm64_source) and a root.
prepare() { # prepare COLUMN
  if [ "$1" != arm64 ]; then
    VM_CACHE=$target/vm tests/vm/run -k "$1" --prepare
    return
  fi
  arm64_source=$(packaging/cross aarch64 --tests 2>>"$logs/cross.log") || { show_log cross; return 1; }
  tests/vm/root arm64 "$target/vm/arm64/root" || return 1
  VM_CACHE=$target/vm tests/vm/run -p arm64 -r "$target/vm/arm64/root" --prepare
}

# The source lies there where it was when the tests were built: they read files of it. The unit tests run once.
give_source() { # give_source DIR
  rm -rf "$1/src"
  mkdir -p "$1"
  cp -a "$arm64_source" "$1/src"
  if [ "${1##*/}" != 0 ] || grep -q '^test result' "${1%/vm/*}/unit" 2>/dev/null; then rm "$1/src/unit"; fi
}

# boot_with OUT THREADS OPTION... -- VARIABLE BINARY TEST...: runs the tests of the binary in the machine that the
# options of tests/vm/run choose, for at most 40 minutes; and after them the unit tests, where they are beside them.
boot_with() {
  local out=$1 threads=$2 options=()
  shift 2
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  mkdir -p "$out"
  # shellcheck disable=SC2016 # for the inner shell
  VM_CACHE=$target/vm VM_OUT=$out timeout --kill-after=20 2500 tests/vm/run -c 1 -t 2400 "${options[@]}" -- \
    env CNI_VM=1 CNI_SHORT=1 RUST_TEST_THREADS="$threads" CNI_SKIP_LOG=/vm-out/skips "$1" sh -c '
      [ ! -d /vm-out/src ] || cp -a /vm-out/src /src
      uname -rm >/vm-out/uname
      "$@" >/vm-out/output 2>/vm-out/notes
      [ ! -e /src/unit ] || { cd /src && ./unit >/vm-out/unit 2>&1; }' sh "$2" --exact "${@:3}" >"$out/log" 2>&1 </dev/null
}

# What the machines have written, added to what there is.
take_over() { # take_over DIR
  local part machine
  for machine in "$1"/vm/[0-9]*; do
    for part in output skips; do
      [ ! -e "$machine/$part" ] || { cat "$machine/$part" >>"$1/$part" && rm "$machine/$part"; }
    done
    for part in uname unit; do
      [ ! -e "$machine/$part" ] || cp "$machine/$part" "$1/$part"
    done
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
  sed -nE "s/, case [0-9]+$//; s/^SKIP (plugins::[^ ]+): (needs .*)/* $(kernel_of "$1"): \1 \2/p" "$dir/skips" 2>/dev/null | sort -u
  failed "$dir" | sed "s/.*/* $(kernel_of "$1"): & failed/"
  sed -nE "s/^test result: (.*); .* measured.*/* $(kernel_of "$1"): the unit tests: \1/p" "$dir/unit" 2>/dev/null
}
