# shellcheck shell=bash
# The virtual machine: integration tests that this machine's kernel cannot run, under Debian's (tests/vm/run).
# Sourced by tests/run, which sets `logs`, `target` and `vm`.

# run_in_vm SECONDS TEST...: in the binary that is built already. libtest's own output goes to a file: what programs
# write to the console would break its lines.
run_in_vm() {
  local seconds=$1
  shift
  # shellcheck disable=SC2016 # for the inner shell
  VM_CACHE=$target/vm VM_OUT=$logs/vm limited $((seconds + 60)) vm tests/vm/run -t "$seconds" -i 300 -- \
    env CNI_VM=1 RUSTC_BOOTSTRAP=1 RUST_TEST_THREADS=6 CNI_SKIP_LOG=/vm-out/skips CNI_SKIPPED="$logs/skips" \
    ${CNI_MULTI:+CNI_MULTI="$CNI_MULTI"} ${CNI_REFERENCE:+CNI_REFERENCE="$CNI_REFERENCE"} ${CNI_TURN:+CNI_TURN="$CNI_TURN"} \
    sh -c 'exec "$@" >>/vm-out/output 2>&1' sh "$(binary_of integration)" -Zunstable-options --report-time --exact "$@"
}

# run_rest_in_vm SECONDS TEST...: a kernel that stops takes with it tests that have not ended, and the reasons of those that
# have failed. They get another machine, once; what the first kernel said is printed.
run_rest_in_vm() {
  local seconds=$1 rest
  shift
  mapfile -t rest < <(printf '%s\n' "$@" | grep -vxFf <(sed -nE 's/^test (.*) \.\.\. ok( <.*>)?$/\1/p' "$logs/vm/output" 2>/dev/null))
  [ ${#rest[@]} != 0 ] || return 0
  echo "  the virtual machine stopped with ${#rest[@]} of $# tests to run, which another runs; it had not ended:"
  unfinished vm | head -n 8 | sed 's/^/    /'
  mv "$logs/vm.log" "$logs/vm-stopped.log"
  show_log vm-stopped
  run_in_vm "$seconds" "${rest[@]}"
}

# judge_vm STATUS TEST...: a test counts when libtest reports a pass there and it did not skip again.
judge_vm() {
  local status=$1 passed=0 failed=0 test
  shift
  cat "$logs/vm/output" >>"$logs/vm.log" 2>/dev/null
  for test in "$@"; do
    if grep -qxE "test $test \.\.\. ok( <.*>)?" "$logs/vm/output" 2>/dev/null &&
      ! grep -qxE "test $test \.\.\. FAILED( <.*>)?" "$logs/vm/output" && ! skipped_tests "$logs/vm/skips" | grep -qx "$test"; then
      passed=$((passed + 1))
    else
      failed=$((failed + 1))
      echo "  failed, not ended, or skipped there as well: $test"
    fi
  done
  if [ "$failed" != 0 ]; then
    list_skips "$logs/vm/skips"
    echo "  status of the virtual machine: $status"
    show_log vm
  fi
  close vm "$passed" "$failed" 0
}

# What was skipped for lack of a kernel feature; a program that is missing here is missing there.
kernel_skips() { skipped_tests <(grep -v ': needs program ' "$logs/skips"); }

# vm_tests SECONDS: what the integration tier skipped. It counts here instead, where this tier can run.
vm_tests() {
  local tests status began=$SECONDS
  mapfile -t tests < <(kernel_skips)
  if [ ${#tests[@]} = 0 ]; then
    close vm 0 0 0
    return
  fi
  if [ -z "$vm" ] || { ! is_root && ! tests/vm/run --prepare >"$logs/vm.log" 2>&1; }; then
    list_skips "$logs/skips"
    echo "  the virtual machine was not started"
    close vm 0 0 0
    return
  fi
  rm -rf "$logs/vm"
  mkdir -p "$logs/vm"
  run_in_vm "$1" "${tests[@]}"
  status=$?
  if [ "$status" = 125 ] && [ $((SECONDS - began)) -lt $(($1 / 2)) ]; then
    run_rest_in_vm $(($1 - SECONDS + began)) "${tests[@]}"
    status=$?
  fi
  judge_vm "$status" "${tests[@]}"
  all_skipped=$((all_skipped - ${#tests[@]})) # of the integration tier
}
