#!/bin/sh
# install.sh: build cni-multi and install it where container runtimes look for CNI plugins.
#
#   ./install.sh                   build a static release binary and install it into /opt/cni/bin
#   ./install.sh --demo            build it and show what it does; needs no root and touches nothing
#   ./install.sh --build           only build it, and print where it is
#   ./install.sh --manual DIR      write pages of the manual, and completions of bash, zsh and fish,
#                                  below DIR, such as /usr/local/share
#   ./install.sh --rollback        back to what was there before the last install
#   ./install.sh --uninstall       remove cni-multi and put back what it replaced
#
#   --dir DIR       the plugin directory, instead of /opt/cni/bin
#   --binary FILE   this binary, instead of building one
#   --dry-run       say what would be done and change nothing in the plugin directory
#                   (--list-only is the same)
#
# What is installed:
#   DIR/cni-multi             the binary
#   DIR/<plugin>              a link to it for each name that `cni-multi list` prints; relative, so
#                             that the directory may be mounted somewhere else in a container
#   DIR/.cni-multi/previous   the binary of the install before this one
#   DIR/.cni-multi/replaced/  files of others that had a plugin's name, for example those of
#                             containernetworking/plugins. The first one of a name is kept.
# Files of other names are not touched. Each name is replaced by one rename, so a runtime that
# starts a plugin meanwhile finds the old one or the new one, and may be running either.
#
# --rollback goes one step back, however often it is run:
#   * where there is a previous binary, it takes the place of the present one (which is deleted),
#     and the names it lists are linked;
#   * else, where files of others were replaced, it is an --uninstall;
#   * else there is nothing to go back to, which is an error.
# --uninstall removes the links that point to cni-multi and the binary, and moves the replaced
# files back. A file of another kind that has a plugin's name by now is left as it is.
set -eu
umask 022

dir=/opt/cni/bin binary='' action=install dry_run=''
here=$(cd "$(dirname "$0")" && pwd)

say() { printf '%s\n' "$*"; }
die() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }

# act SENTENCE COMMAND...: the sentence is what --dry-run prints and what an error names.
act() {
  sentence=$1
  shift
  if [ -n "$dry_run" ]; then
    say "would $sentence"
  else
    "$@" || die "could not $sentence"
  fi
}

usage() { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p;}' "$0"; }

parse_options() {
  while [ $# -gt 0 ]; do
    case $1 in
      --dir | --binary | --manual)
        [ -n "${2:-}" ] || die "$1 wants a path after it"
        case $1 in
          --dir) dir=$2 ;;
          --binary) binary=$2 ;;
          --manual) action=manual share=$2 ;;
        esac
        shift
        ;;
      --demo | --build | --rollback | --uninstall) action=${1#--} ;;
      --dry-run | --list-only) dry_run=yes ;;
      -h | --help) usage; exit 0 ;;
      *) die "$1 is not an option; ./install.sh --help lists them" ;;
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
  probe=$(mktemp -d) || return 1
  # shellcheck disable=SC2086 # they are words
  echo 'fn main() {}' |
    rustc --target "$1" ${RUSTFLAGS:-} -C "link-arg=$2" --crate-name probe --out-dir "$probe" - 2>/dev/null
  status=$?
  rm -rf "$probe"
  return "$status"
}

# Panics name their places in source files. Where those lie on the machine that builds is nobody's business, takes room, and
# would make another binary of each machine.
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
# ours: who wants a position-independent binary says so there.
cargo_build() {
  if linker_takes "$1" -Wl,--icf=all; then small="$small -C link-arg=-Wl,--icf=all"; fi
  # shellcheck disable=SC2086 # these are words, as they are for cargo
  flags=$({ forget_paths; words $small ${RUSTFLAGS:-} -C target-feature=+crt-static; } | toml_list)
  env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS \
    cargo build --release --locked --bin cni-multi --target "$1" --config "target.$1.rustflags=$flags" \
    --manifest-path "$here/Cargo.toml" >&2
}

target_directory() {
  cargo metadata --no-deps --format-version 1 --manifest-path "$here/Cargo.toml" |
    sed 's/.*"target_directory":"\([^"]*\)".*/\1/'
}

find_cargo() {
  PATH=$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin
  command -v cargo >/dev/null ||
    die "cargo is not in PATH. Where another user has it: build there with ./install.sh --build," \
      "then install here with ./install.sh --binary FILE"
}

build() {
  find_cargo
  triple=$(target_triple)
  cargo_build "$triple" || die "cargo could not build cni-multi for $triple"
  binary=$(target_directory)/$triple/release/cni-multi
  [ -f "$binary" ] || die "cargo built no $binary"
  run_list "$binary" >/dev/null || die "$binary was built and does not run: \`cni-multi list\` failed.$(advice)"
}

# The caller's flags may not go with ours.
advice() {
  [ -z "${RUSTFLAGS:-}" ] ||
    say " RUSTFLAGS in the environment is '$RUSTFLAGS' and took part in the build; try without it: env -u RUSTFLAGS $0"
}

# The command line describes itself to a program of the build; the binary carries none of it.
write_manual() {
  find_cargo
  case $share in
    /*) ;;
    *) share=$PWD/$share ;;
  esac
  act "write the manual and the completions below $share" \
    cargo run --quiet --locked --example manual --manifest-path "$here/Cargo.toml" -- "$share"
  [ -n "$dry_run" ] || say "The manual and the completions are in $share."
}

take_or_build_binary() {
  case $binary in
    '') build ;;
    */*) ;;
    *) binary=./$binary ;;
  esac
  [ -f "$binary" ] || die "$binary is not a file"
}

# ---- the plugin directory ----

# `cni-multi list` of a file of any name: it goes by the name that it is called by, here a link's.
run_list() {
  scratch=$(mktemp -d) || return 1
  ln -s "$(realpath "$1")" "$scratch/cni-multi"
  "$scratch/cni-multi" list </dev/null
  status=$?
  rm -rf "$scratch"
  return "$status"
}

# list_names FILE WHAT-TO-CALL-IT: the names that a binary lists; a name that could leave the directory or hide in it is refused.
list_names() {
  listed=$(run_list "$1") || die "$2 does not run here: \`cni-multi list\` failed"
  [ -n "$listed" ] || die "$2 is not cni-multi: \`cni-multi list\` printed nothing"
  for name in $listed; do
    case $name in
      cni-multi | -* | *[!a-z0-9-]*) die "$2 is not cni-multi: \`cni-multi list\` printed '$name'" ;;
    esac
  done
  say "$listed"
}

exists() { [ -e "$1" ] || [ -L "$1" ]; }

is_our_link() {
  [ -L "$1" ] || return 1
  case $(readlink "$1") in
    cni-multi | ./cni-multi | "$dir/cni-multi") return 0 ;;
    *) return 1 ;;
  esac
}

is_foreign() { exists "$1" && ! is_our_link "$1"; }

# Anything left of an install, be it whole or interrupted.
is_installed() { exists "$dir/cni-multi" || exists "$state"; }

# The lock is a file that no other user can open; any user could lock the directory itself. clean_up removes the file,
# so a process that waited for it looks whether it still has its name.
lock() {
  [ -z "$dry_run" ] || return 0
  open_lock || open_lock || die "$state/lock could not be made"
  if ! flock -n 9; then
    say "another install.sh is at work in $dir, waiting for it"
    flock -w 60 9 || die "another install.sh has been at work in $dir for a minute"
  fi
  if [ -e /proc/self/fd/9 ] && [ "$(file_at "$state/lock")" != "$(file_at /proc/self/fd/9)" ]; then lock; fi
}

file_at() { stat -Lc %d:%i "$1" 2>/dev/null; }

# Where another run removes the directory in this moment, the second try succeeds.
open_lock() {
  (umask 077 && mkdir -p "$state" && : >>"$state/lock") 2>/dev/null && command exec 9>>"$state/lock"
}

make_directory() {
  [ -z "$dry_run" ] || return 0
  if [ ! -d "$dir" ]; then
    exists "$dir" && die "$dir is not a directory"
    mkdir -p "$dir" || die "$dir does not exist and could not be made"
    made_dir=yes
  fi
}

check_directory() {
  [ -d "$dir" ] || die "$dir is not a directory"
  [ -n "$dry_run" ] || { [ -w "$dir" ] && [ -r "$dir" ]; } ||
    die "$dir cannot be written by $(id -un): it is read-only or belongs to someone else"
}

# Temporary files lie in the state directory: the same file system, and no runtime looks into it.
# Those of a run that was killed go as well: this one holds the lock.
clean_up() {
  [ -z "$dry_run" ] && [ -d "$state" ] || return 0
  rm -f "$state"/new.* "$state"/link.* "$state"/keep.* "$state/lock"
  rmdir "$state/replaced" 2>/dev/null || :
  rmdir "$state" 2>/dev/null || :
  if [ -n "${made_dir:-}" ]; then rmdir "$dir" 2>/dev/null || :; fi
}

# dash runs no EXIT trap when a signal ends it.
clean_up_at_exit() {
  trap clean_up EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
}

# A second name for a file, without a moment in which it has none: a hard link, or a copy where
# the file system has none.
keep() {
  rm -f "$state/keep.$$"
  ln -P "$1" "$state/keep.$$" 2>/dev/null || cp -pP "$1" "$state/keep.$$" || return 1
  mv -fT "$state/keep.$$" "$2"
}

keep_previous() {
  exists "$dir/cni-multi" || return 0
  if [ ! -L "$dir/cni-multi" ] && cmp -s "$dir/cni-multi" "$1"; then
    say "$dir/cni-multi is this build already"
    return 0
  fi
  act "keep $dir/cni-multi as $state/previous" keep "$dir/cni-multi" "$state/previous"
  act "forget that the install before was rolled back" rm -f "$state/rolled-back"
}

keep_foreign() {
  for name in $names; do
    is_foreign "$dir/$name" || continue
    if ! exists "$state/replaced/$name"; then
      act "move $dir/$name to $state/replaced/$name" keep "$dir/$name" "$state/replaced/$name"
    elif ! cmp -s "$dir/$name" "$state/replaced/$name"; then
      say "$dir/$name came after $state/replaced/$name, which stays the one that is kept"
    fi
  done
}

refuse_directories() {
  for name in $names cni-multi; do
    if [ -d "$dir/$name" ] && [ ! -L "$dir/$name" ]; then
      die "$dir/$name is a directory; nothing was changed"
    fi
  done
}

copy_binary() {
  cp "$binary" "$state/new.$$" || return 1
  chmod 0755 "$state/new.$$" || return 1
  # A machine that loses power after the rename must not find an empty file behind the name.
  sync "$state/new.$$" 2>/dev/null || sync
}

replace_by_link() {
  ln -sf cni-multi "$state/link.$$" && mv -fT "$state/link.$$" "$dir/$1"
}

link_names() {
  for name in $names; do
    [ -L "$dir/$name" ] && [ "$(readlink "$dir/$name")" = cni-multi ] && continue
    act "link $dir/$name to cni-multi" replace_by_link "$name"
  done
}

# The link of a plugin goes; the file that it replaced comes back.
unlink_name() {
  if exists "$state/replaced/$1"; then
    act "move $state/replaced/$1 back to $dir/$1" mv -fT "$state/replaced/$1" "$dir/$1"
  else
    act "remove the link $dir/$1" rm -f "$dir/$1"
  fi
}

is_named() {
  case " $(say "$names" | tr '\n' ' ') " in *" $1 "*) return 0 ;; *) return 1 ;; esac
}

is_anything_kept() { [ -n "$(ls -A "$state/replaced" 2>/dev/null)" ]; }

# Our links that no name in $names stands for: all of them when it is empty.
unlink_others() {
  for path in "$dir"/*; do
    name=${path##*/}
    if is_our_link "$path" && ! is_named "$name"; then unlink_name "$name"; fi
  done
}

# ---- the actions ----

install_binary() {
  take_or_build_binary
  make_directory
  check_directory
  lock
  clean_up_at_exit
  if [ -n "$dry_run" ]; then
    names=$(list_names "$binary" "$binary") || exit 1
    refuse_directories
  else
    mkdir -p "$state/replaced" || die "$state could not be made"
    copy_binary || die "$binary could not be copied into $dir"
    names=$(list_names "$state/new.$$" "$binary, copied into $dir,") || exit 1
    refuse_directories
  fi
  keep_previous "$binary"
  keep_foreign
  act "rename the new binary to $dir/cni-multi" mv -fT "$state/new.$$" "$dir/cni-multi"
  link_names
  unlink_others
  [ -n "$dry_run" ] || finish "cni-multi is installed in $dir"
}

finish() {
  sync "$dir" 2>/dev/null || :
  say "$1, with these plugins: $(say "$names" | tr '\n' ' ' | sed 's/ $//')"
  if is_anything_kept; then say "What had these names before is kept in $state/replaced for --uninstall."; fi
}

rollback() {
  is_installed || { say "Nothing is installed in $dir; nothing to do."; return 0; }
  check_directory
  lock
  clean_up_at_exit
  if exists "$state/previous"; then
    names=$(list_names "$state/previous" "$state/previous") || exit 1
    refuse_directories
    # The mark comes first: a run that is interrupted after the rename must not count as none.
    act "mark the rollback in $state/rolled-back" touch "$state/rolled-back"
    keep_foreign
    act "rename $state/previous to $dir/cni-multi" mv -fT "$state/previous" "$dir/cni-multi"
  elif exists "$state/rolled-back"; then
    say "$dir was rolled back already; --uninstall goes back to before cni-multi."
    names=$(list_names "$dir/cni-multi" "$dir/cni-multi") || exit 1
  elif is_anything_kept; then
    remove_all
    return 0
  else
    die "$dir holds no previous binary and no replaced plugins to go back to; --uninstall removes cni-multi"
  fi
  link_names
  unlink_others
  [ -n "$dry_run" ] || finish "The previous cni-multi is back in $dir"
}

uninstall() {
  is_installed || { say "Nothing is installed in $dir; nothing to do."; return 0; }
  check_directory
  lock
  clean_up_at_exit
  remove_all
}

# A replaced file whose name is free comes back even where its link was removed by hand.
restore_rest() {
  for kept in "$state/replaced"/*; do
    exists "$kept" || continue
    name=${kept##*/}
    is_our_link "$dir/$name" && continue # of a dry run: what unlink_others would have done
    if cmp -s "$kept" "$dir/$name"; then
      act "remove $kept, which $dir/$name still is" rm -f "$kept"
    elif exists "$dir/$name"; then
      say "$dir/$name is not a link to cni-multi and stays; what was replaced earlier stays in $kept"
    else
      unlink_name "$name"
    fi
  done
}

# The replaced files come back before the binary goes, so no name that both have is ever without one.
remove_all() {
  names=''
  look_what_is_left
  unlink_others
  restore_rest
  act "remove $dir/cni-multi, $state/previous and $state/rolled-back" \
    rm -f "$dir/cni-multi" "$state/previous" "$state/rolled-back"
  [ -n "$dry_run" ] || say "cni-multi is removed from $dir."
  tell_left
}

# What stays in nftables when cni-multi goes, in one line: asked of the binary while it is there.
look_what_is_left() {
  left=$("$dir/cni-multi" install --left 2>/dev/null) || left='' # an older one does not know
}

tell_left() {
  [ -n "$dry_run" ] || [ -z "$left" ] || say "$left"
}

demo() {
  take_or_build_binary
  exec "$here/tests/demo" "$binary"
}

parse_options "$@"
case $dir in
  /*) ;;
  *) dir=$PWD/$dir ;;
esac
dir=${dir%/}
state=$dir/.cni-multi
case $action in
  install) install_binary ;;
  build) take_or_build_binary; say "$binary" ;;
  rollback) rollback ;;
  uninstall) uninstall ;;
  demo) demo ;;
  manual) write_manual ;;
esac
