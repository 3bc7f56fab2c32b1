#!/bin/sh
# install.sh: build cni-multi and install it where container runtimes look for CNI plugins.
#
#   ./install.sh                   build a static release binary and install it into /opt/cni/bin
#   ./install.sh --demo            show what it does, in namespaces, with a build of its own that is made in a minute or
#                                  two: it needs no root and leaves nothing
#   ./install.sh --build           only build it, and print where it is
#   ./install.sh --manual DIR      write pages of the manual, and completions of bash, zsh and fish,
#                                  below DIR, such as /usr/local/share
#   ./install.sh --rollback        one step back: to the binary before, or the plugins before
#   ./install.sh --uninstall       remove cni-multi and put back what it replaced
#
#   --only NAMES    link these plugins alone, separated by commas, now and at later installations
#   --all           link every plugin again
#   --alias NAME=PLUGIN  link a further name to a plugin, now and at later installations
#   --no-alias      remove the further names
#   --dir DIR       the plugin directory, instead of /opt/cni/bin
#   --binary FILE   this binary, instead of building one
#   --target TRIPLE build for this target of rustc; with --build alone, since the binary may not run here
#   --path DIR      link cni-multi and cnitool into this directory of PATH, instead of /usr/local/bin
#   --no-path       link them nowhere
#   --yes           as root with apt or dnf, install what building needs: Rust by rustup, a C compiler
#   --dry-run       list the paths that would change, and change nothing in the plugin directory
#                   (--list-only is the same)
#
# What the machine lacks is found first (packaging/preflight.sh). With sudo, the cargo of the calling
# user builds as that user, if root has none.
# This only builds: `cni-multi install` of the binary does the rest, and docs/install.md says what
# it installs. To roll back or uninstall, --binary FILE, else the installed binary or the one before
# it is called, and one is built only if neither of them can do it.
set -eu
umask 022

dir=/opt/cni/bin binary='' for_triple='' action=install dry_run='' yes='' path='' names='' alias='' cargo_user=''
here=$(cd "$(dirname "$0")" && pwd)

say() { printf '%s\n' "$*"; }
die() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }
misuse() { printf 'install.sh: %s\n' "$*" >&2; exit 2; }

# shellcheck source=packaging/options.sh
. "$here/packaging/options.sh"
# shellcheck source=packaging/preflight.sh
. "$here/packaging/preflight.sh"

choose() {
  case $action in
    install | "$1") action=$1 ;;
    *) misuse "--$action and --$1 exclude each other; ./install.sh --help lists what each does" ;;
  esac
}

parse_options() {
  while [ $# -gt 0 ]; do
    case $1 in
      --only)
        [ -n "${2:-}" ] || misuse "$1 wants names after it, separated by commas"
        names=--only=$2
        shift
        ;;
      --all) names=--all ;;
      --alias)
        [ -n "${2:-}" ] || misuse "$1 wants NAME=PLUGIN after it"
        alias=${alias:---alias=}${alias:+,}$2
        shift
        ;;
      --no-alias) alias=--no-alias ;;
      --target)
        [ -n "${2:-}" ] || misuse "$1 wants a target of rustc after it"
        for_triple=$2
        shift
        ;;
      --dir | --binary | --manual | --path)
        [ -n "${2:-}" ] || misuse "$1 wants a path after it"
        case $1 in
          --dir) dir=$2 ;;
          --binary) binary=$2 ;;
          --manual) choose manual; share=$2 ;;
          --path) path=--path=$2 ;;
        esac
        shift
        ;;
      --demo | --build | --rollback | --uninstall) choose "${1#--}" ;;
      --dry-run | --list-only) dry_run=--dry-run ;;
      --no-path) path=--no-path ;;
      --yes) yes=yes ;;
      -h | --help) print_help "$here/install.sh"; exit 0 ;;
      *)
        refuse_word "$here/install.sh" "$1" --dir --binary --target --manual --demo --build --rollback --uninstall \
          --only --all --alias --no-alias --path --no-path --dry-run --list-only --yes
        ;;
    esac
    shift
  done
}

# ---- building ----

# musl where rustup has it: the same program without glibc's share. Else glibc, linked statically.
target_triple() {
  host=$(rustc -vV | sed -n 's/^host: //p')
  musl=${host%%-*}-unknown-linux-musl
  if [ -d "$(rustc --print sysroot)/lib/rustlib/$musl" ]; then say "$musl"; else say "$host"; fi
}

# What makes the binary smaller besides Cargo.toml; docs/performance.md says what each is worth.
#   relocation-model=static    at a fixed address, as the reference: nothing to relocate at each start
#   force-frame-pointers=yes   such functions need shorter tables to be unwound by
#   small_binary, muldefs      src/sys/backtrace.rs leaves out backtraces: the linker takes the first of two symbols
small='-C relocation-model=static -C force-frame-pointers=yes --cfg small_binary -C link-arg=-Wl,-z,muldefs'

# What not every linker knows.
#   icf=all                    functions of the same instructions are linked once
linker_takes() {
  # shellcheck disable=SC2086 # they are words
  echo 'fn main() {}' |
    rustc --target "$1" ${RUSTFLAGS:-} -C "link-arg=$2" --crate-name probe --out-dir "$scratch" - 2>/dev/null
}

# Panics name their places in source files. The paths of the machine that builds are private, take room, and would make
# another binary of each machine.
forget_paths() {
  for crates in "${CARGO_HOME:-${HOME:-/root}/.cargo}"/registry/src/*; do
    say "--remap-path-prefix=$crates/="
  done
  say "--remap-path-prefix=$here/="
}

words() { printf '%s\n' "$@"; }

# One flag a line becomes a list of TOML: paths may have blanks.
toml_list() { sed 's/[\\"]/\\&/g; s/.*/"&"/' | paste -sd , | sed 's/.*/[&]/'; }

# crt-static goes to the target alone: with it in RUSTFLAGS for all, procedural macros do not build.
# RUSTFLAGS of the caller would hide the flags of the target, so they are handed on in them, after
# ours: a position-independent binary is asked for there.
cargo_build() {
  if linker_takes "$1" -Wl,--icf=all; then small="$small -C link-arg=-Wl,--icf=all"; fi
  # shellcheck disable=SC2086 # these are words, as they are for cargo
  flags=$({ forget_paths; words $small ${RUSTFLAGS:-} -C target-feature=+crt-static; } | toml_list)
  env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS \
    cargo build --release --locked --bin cni-multi --target "$1" --config "target.$1.rustflags=$flags" \
    --manifest-path "$here/Cargo.toml" >&2
}

cargo_of_builder() { if [ -n "$cargo_user" ]; then as_sudo_user "$user_bin/cargo" "$@"; else cargo "$@"; fi; }

rustc_of_builder() { if [ -n "$cargo_user" ]; then as_sudo_user "$user_bin/rustc" "$@"; else rustc "$@"; fi; }

target_directory() {
  cargo_of_builder metadata --no-deps --format-version 1 --manifest-path "$here/Cargo.toml" |
    sed 's/.*"target_directory":"\([^"]*\)".*/\1/'
}

# Measured: 420 MB with glibc.
needs_of_build='cargo compiler room:600'

# All needs of the action at once, before minutes of building.
check_machine() {
  case $action:$dry_run in
    demo:*) set -- namespaces ;;
    install:) set -- "dir:$dir" ;;
    *) set -- ;;
  esac
  if [ -n "$binary" ]; then
    [ "$action" != demo ] || preflight "$yes" "$@"
  else
    # shellcheck disable=SC2086 # they are words
    preflight "$yes" $needs_of_build "$@"
  fi
}

build() {
  if [ -n "$cargo_user" ]; then
    build_as_user
    return
  fi
  triple=${for_triple:-$(target_triple)}
  cargo_build "$triple" || die "cargo could not build cni-multi for $triple"
  binary=$(target_directory)/$triple/release/cni-multi
  [ -f "$binary" ] || die "cargo built no $binary"
  if is_foreign; then return; fi
  call "$binary" list >/dev/null || die "$binary was built and does not run: \`cni-multi list\` failed.$(advice)"
}

# What cargo writes stays that user's.
build_as_user() {
  say "building as user $cargo_user: root has no cargo" >&2
  binary=$(as_sudo_user "$here/install.sh" --build) ||
    die "user $cargo_user could not build, and root has no cargo"
  [ -f "$binary" ] || die "user $cargo_user built no $binary"
}

# The demonstration's own build, of the profile `demo`: not optimised, for this machine alone, and without the store of
# cluster-local, whose TLS takes a sixth of the time.
build_demo() {
  say "Building cni-multi for the demonstration: about a minute and a half on two processors." \
    "It leaves out cluster-local's etcd; sudo ./install.sh builds the whole." >&2
  report_time &
  reporter=$!
  host=$(rustc_of_builder -vV | sed -n 's/^host: //p')
  cargo_of_builder build --locked --profile demo --no-default-features --bin cni-multi --target "$host" \
    --manifest-path "$here/Cargo.toml" >&2 || binary=none
  kill $reporter
  [ -z "$binary" ] || die "cargo could not build cni-multi for $host"
  binary=$(target_directory)/$host/demo/cni-multi
}

# cargo says nothing while it compiles its last crate. The pipe that stderr may be is not kept open by sleep.
report_time() {
  waited=0
  while sleep 8 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
    waited=$((waited + 8))
    say "  $waited s: compiling" >&2
  done
}

# The caller's flags may not go with ours.
advice() {
  [ -z "${RUSTFLAGS:-}" ] ||
    say " RUSTFLAGS in the environment is '$RUSTFLAGS' and took part in the build; try without it: env -u RUSTFLAGS $0"
}

# An archive has this script without the source, and the binary beside it.
bundled_binary() { [ -f "$here/Cargo.toml" ] || [ ! -f "$here/bin/cni-multi" ] || say "$here/bin/cni-multi"; }

take_or_build_binary() {
  binary=${binary:-$(bundled_binary)}
  check_machine
  case $action:$binary in
    demo:) build_demo ;;
    *:) build ;;
    *:*/*) ;;
    *) binary=./$binary ;;
  esac
  [ -f "$binary" ] || die "$binary is not a file"
  require_running
}

# The processor in the header of an ELF file, by the name that uname has for it.
processor_of() {
  case $(od -An -tx1 -N 20 "$1" 2>/dev/null | tr -d ' \n') in
    7f454c46*3e00) say x86_64 ;;
    7f454c46*b700) say aarch64 ;;
    7f454c46*f300) say riscv64 ;;
    7f454c46*1500) say ppc64le ;;
    7f454c46*0016) say s390x ;;
  esac
}

# A binary for another processor, of --target.
is_foreign() { [ -n "$for_triple" ] && [ "$action" = build ] && [ "$(processor_of "$binary")" != "$(uname -m)" ]; }

require_running() {
  if is_foreign; then return; fi
  if call "$binary" list >/dev/null 2>"$scratch/list"; then return; fi
  processor=$(processor_of "$binary")
  case $processor in
    '' | "$(uname -m)") cat "$scratch/list" >&2; die "$binary does not run here: \`cni-multi list\` failed" ;;
    *) die "$binary does not run here: it is for $processor, and this machine is $(uname -m)" ;;
  esac
}

# ---- installing ----

# call FILE WORD...: cni-multi goes by the name that it is called by, here a link's.
call() {
  ln -sf "$(realpath "$1")" "$scratch/cni-multi"
  shift
  "$scratch/cni-multi" "$@" </dev/null
}

# Whether its own `install` does all that this script promises.
can_install() { call "$1" install --help 2>/dev/null | grep -q -e --dry-run; }

require_installer() {
  can_install "$binary" ||
    die "$binary does not know \`install --dry-run\`: it is another program, or an older cni-multi;" \
      "the install.sh of its own version installs it"
}

install_binary() {
  take_or_build_binary
  require_installer
  call "$binary" install --dir "$dir" ${names:+"$names"} ${alias:+"$alias"} ${path:+"$path"} \
    ${dry_run:+"$dry_run"}
}

exists() { [ -e "$1" ] || [ -L "$1" ]; }

# The binary to go back with. It replaces and removes the installed one, even if that is itself.
find_installer() {
  if [ -z "$binary" ]; then
    for installed in "$dir/cni-multi" "$dir/.cni-multi/previous"; do
      if [ -f "$installed" ] && can_install "$installed"; then
        binary=$installed
        return
      fi
    done
    [ -n "$(bundled_binary)" ] || has_cargo || sudo_user_with_cargo ||
      die "no binary in $dir runs and knows \`install --$action\`, and cargo is not in PATH to build one:" \
        "name a newer cni-multi with ./install.sh --$action --binary FILE"
  fi
  take_or_build_binary
  require_installer
}

go_back() {
  if [ -z "$binary" ] && ! exists "$dir/cni-multi" && ! exists "$dir/.cni-multi"; then
    say "Nothing is installed in $dir; nothing to do."
    return
  fi
  find_installer
  call "$binary" install --dir "$dir" "--$action" ${names:+"$names"} ${alias:+"$alias"} ${path:+"$path"} \
    ${dry_run:+"$dry_run"}
}

# ---- the manual ----

# The binary prints its own manual and completions; shells look for the latter below share.
write_manual() {
  case $share in
    /*) ;;
    *) share=$PWD/$share ;;
  esac
  if [ -n "$dry_run" ]; then
    say "would write the manual and the completions below $share"
    return
  fi
  take_or_build_binary
  { call "$binary" man "$share" && write_completions; } ||
    die "could not write the manual and the completions below $share"
  say "The manual and the completions are in $share."
}

write_completions() {
  mkdir -p "$share/bash-completion/completions" "$share/fish/vendor_completions.d" "$share/zsh/site-functions" || return
  call "$binary" completion bash >"$share/bash-completion/completions/cni-multi" &&
    call "$binary" completion fish >"$share/fish/vendor_completions.d/cni-multi.fish" &&
    call "$binary" completion zsh >"$share/zsh/site-functions/_cni-multi" &&
    call "$binary" cnitool completion bash >"$share/bash-completion/completions/cnitool" &&
    call "$binary" cnitool completion fish >"$share/fish/vendor_completions.d/cnitool.fish" &&
    call "$binary" cnitool completion zsh >"$share/zsh/site-functions/_cnitool"
}

# ---- the demonstration ----

demo() {
  call "$binary" doctor --selftest
  show_mistake
  show_next_steps
}

show_mistake() {
  cat >"$scratch/10-pods.conflist" <<'JSON'
{
  "cniVersion": "1.1.0",
  "name": "pods",
  "plugins": [
    { "type": "bridge", "isGatway": true, "vlan": 5000 }
  ]
}
JSON
  ln -s cni-multi "$scratch/bridge"
  words "" "A mistake in a configuration, and where it is" "  \$ cni-multi validate 10-pods.conflist"
  (cd "$scratch" && CNI_PATH=$scratch ./cni-multi validate 10-pods.conflist) | sed 's/^/  /'
}

show_next_steps() {
  pages=docs
  [ -d "$here/docs" ] || pages=share/doc/cni-multi/docs # an archive's
  words "" "Next" \
    "  sudo ./install.sh    install it; --rollback goes one step back, --uninstall removes it" \
    "  $pages/README.md       all pages, by task: Kubernetes, podman, an upgrade, an error"
}

# A link to the binary, and what the linker is tried with. dash runs no EXIT trap when a signal ends it.
make_scratch() {
  scratch=$(mktemp -d) || exit 1
  trap 'rm -rf "$scratch"' EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
}

parse_options "$@"
case $dir in
  /*) ;;
  *) dir=$PWD/$dir ;;
esac
make_scratch
case $action in
  install) install_binary ;;
  rollback | uninstall) go_back ;;
  build) take_or_build_binary; say "$binary" ;;
  demo) take_or_build_binary; demo ;;
  manual) write_manual ;;
esac
