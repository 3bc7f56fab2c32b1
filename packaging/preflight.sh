# shellcheck shell=sh
# packaging/preflight.sh: what this machine lacks, found before anything is compiled or installed. POSIX sh.
#
# Sourced by install.sh and tests/run, with `here`, the root of the repository. `preflight YES NEED...` returns when
# there is everything; else it prints what is missing with the one command line that installs it, and exits with 1. Where
# YES is `yes`, or empty and a yes is typed on a terminal, root has apt or dnf install it, and the needs are checked again.
#
#   cargo        a Rust that compiles this source; with sudo, that of the calling user is as good
#   own-cargo    the same, in this user's own PATH or home
#   compiler     a C compiler whose programs can be linked statically, as rustc has them linked
#   room:MB      so much room where cargo builds, less what a build reuses of earlier ones
#   dir:DIR      this user may write in the directory, or in the one that it will be made in
#   namespaces   the kernel lets this process create network and mount namespaces
#
# What it finds: PATH with cargo, and cargo_user, the user to build as instead of root.
: "${here:?is the root of the repository}"

preflight() {
  assent=$1
  shift
  check_needs "$@"
  [ -n "$lacks" ] || return 0
  report_lacks
  if can_install_packages && is_agreed; then
    install_lacks
    check_needs "$@"
    [ -n "$lacks" ] || return 0
    report_lacks
  fi
  exit 1
}

check_needs() {
  export PATH # which a shell that was started without it has to itself
  lacks='' wanted='' rustup='' rust_of='' advice='' cargo_user=''
  for need; do
    case $need in
      cargo | own-cargo) check_cargo "$need" ;;
      compiler) check_compiler ;;
      room:*) check_room "${need#room:}" ;;
      dir:*) check_directory "${need#dir:}" ;;
      namespaces) check_namespaces ;;
    esac
  done
}

lack() { lacks="${lacks:+$lacks, }$1"; }

advise() {
  advice="${advice:+$advice
}$1"
}

is_superuser() { [ "$(id -u)" = 0 ]; }

# ---- Rust ----

# getent knows directories of users too; a small system may have neither it nor them.
home_of() { # home_of USER
  { getent passwd "$1" || grep "^$1:" /etc/passwd; } 2>/dev/null | head -n 1 | cut -d : -f 6
}

own_cargo_bin() {
  if [ -n "${CARGO_HOME:-}" ]; then
    echo "$CARGO_HOME/bin"
  else
    echo "${HOME:-$(home_of "$(id -un)")}/.cargo/bin"
  fi
}

# rustup's place comes last in PATH, but first where the cargo in front of it is too old for this source.
has_cargo() {
  bin=$(own_cargo_bin)
  case :$PATH: in
    *:"$bin":*) ;;
    *) PATH=$PATH:$bin ;;
  esac
  if ! is_new_enough "$(rust_version rustc)" && [ -x "$bin/rustc" ]; then PATH=$bin:$PATH; fi
  command -v cargo >/dev/null && command -v rustc >/dev/null
}

called_by_sudo() { [ -n "${SUDO_USER:-}" ] && [ "$SUDO_USER" != root ] && is_superuser; }

# Whether the user that called sudo has cargo. That user then builds, and owns what cargo writes.
sudo_user_with_cargo() {
  called_by_sudo || return 1
  user_bin=$(home_of "$SUDO_USER")/.cargo/bin
  [ -x "$user_bin/cargo" ]
}

as_sudo_user() {
  sudo -u "$SUDO_USER" -H -- env ${CARGO_TARGET_DIR:+"CARGO_TARGET_DIR=$CARGO_TARGET_DIR"} \
    ${RUSTFLAGS:+"RUSTFLAGS=$RUSTFLAGS"} "$@"
}

# rust_version COMMAND...: such as 1.89.0; nothing if it cannot be called
rust_version() { "$@" --version 2>/dev/null | sed -n 's/^rustc \([0-9][0-9.]*\).*/\1/p'; }

rust_needed() { sed -n 's/^rust-version = "\(.*\)"/\1/p' "$here/Cargo.toml"; }

is_new_enough() { # is_new_enough VERSION
  [ -n "$1" ] && [ "$(printf '%s\n' "$(rust_needed)" "$1" | sort -t . -k 1,1n -k 2,2n -k 3,3n | head -n 1)" = "$(rust_needed)" ]
}

check_cargo() { # check_cargo NEED
  if has_cargo; then
    check_rust "$(rust_version rustc)" "$(command -v rustup)"
    [ "$1" = cargo ] || check_components
  elif sudo_user_with_cargo && [ "$1" = cargo ]; then
    cargo_user=$SUDO_USER rust_of=$SUDO_USER
    check_rust "$(rust_version as_sudo_user "$user_bin/rustc")" "$user_bin/rustup"
  elif sudo_user_with_cargo; then
    lack "cargo for root: only $SUDO_USER has it"
    advise "Run the command again without sudo."
  else
    lack "cargo"
    want_rustup
    [ "$1" = own-cargo ] || ! called_by_sudo || rust_of=$SUDO_USER
  fi
}

check_rust() { # check_rust VERSION RUSTUP
  is_new_enough "$1" && return
  lack "Rust $(rust_needed) or newer: rustc is ${1:-there, but does not run}"
  if [ ! -x "$2" ]; then
    want_rustup
  elif [ -n "$1" ]; then
    rustup="rustup update"
  else
    rustup="rustup default stable"
  fi
}

# What the tests need besides: a distribution's cargo and rustup's minimal profile come without.
check_components() {
  { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1 && return
  lack "rustfmt and clippy"
  if command -v rustup >/dev/null; then rustup="rustup component add rustfmt clippy"; else want_rustup; fi
}

want_rustup() {
  rustup="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y"
  command -v curl >/dev/null || want "$(curl_packages)"
}

# ---- C compiler ----

# rustc calls it to link: build scripts dynamically, the program statically. With rustup's own musl the latter needs no library.
check_compiler() {
  if ! command -v cc >/dev/null; then
    lack "a C compiler"
  elif ! links; then
    lack "the C library's files to link with ($linker_says)"
  elif ! has_musl && ! links -static; then
    lack "the static C library ($linker_says)"
  else
    return 0
  fi
  want "$(compiler_packages)"
}

links() { # links FLAG...
  probe=$(mktemp -d) || return 0 # cc has no room for its files either, and says so
  echo 'int main(void) { return 0; }' >"$probe/main.c"
  linker_says=$(cc "$@" -o "$probe/main" "$probe/main.c" 2>&1) && linked=0 || linked=1
  linker_says=$(echo "$linker_says" | head -n 1)
  rm -rf "$probe"
  return $linked
}

has_musl() {
  command -v rustc >/dev/null && [ -d "$(rustc --print sysroot 2>/dev/null)/lib/rustlib/$(uname -m)-unknown-linux-musl" ]
}

# ---- packages ----

package_manager() {
  for manager in apt-get dnf zypper apk pacman; do
    if command -v $manager >/dev/null; then echo $manager && return; fi
  done
}

compiler_packages() {
  case $(package_manager) in
    apt-get) echo gcc libc6-dev ;;
    dnf) echo gcc glibc-static ;;
    zypper) echo gcc glibc-devel-static ;;
    apk) echo gcc musl-dev ;;
    pacman) echo gcc ;;
    *) echo 'a C compiler (cc) with a static C library' ;;
  esac
}

# Debian's curl only recommends the certificates.
curl_packages() {
  case $(package_manager) in
    apt-get) echo curl ca-certificates ;;
    *) echo curl ;;
  esac
}

want() {
  if [ -n "$(package_manager)" ]; then separator=' '; else separator=', '; fi
  wanted="${wanted:+$wanted$separator}$1"
}

# Fresh containers have no lists of packages.
install_command() { # install_command [SUDO]
  case $(package_manager) in
    apt-get) echo "${1:-}apt-get update && ${1:-}apt-get install -y --no-install-recommends $wanted" ;;
    dnf) echo "${1:-}dnf install -y $(code_ready_builder)$wanted" ;;
    zypper) echo "${1:-}zypper --non-interactive install $wanted" ;;
    apk) echo "${1:-}apk add $wanted" ;;
    pacman) echo "${1:-}pacman -Syu --needed --noconfirm $wanted" ;;
  esac
}

# The option for the repository that has glibc-static in RHEL and its derivatives, where it is not enabled.
code_ready_builder() {
  case $wanted in *glibc-static*) ;; *) return 0 ;; esac
  release=$(rpm -E '%{?rhel}' 2>/dev/null) || return 0
  if [ -z "$release" ]; then
    return 0 # Fedora
  elif rpm -q redhat-release >/dev/null 2>&1; then
    echo "--enablerepo=codeready-builder-for-rhel-$release-$(uname -m)-rpms "
  elif rpm -q oraclelinux-release >/dev/null 2>&1; then
    echo "--enablerepo=ol${release}_codeready_builder "
  elif [ "$release" = 8 ]; then
    echo "--enablerepo=powertools "
  else
    echo "--enablerepo=crb "
  fi
}

# For the shell that this was typed in, which with sudo is an ordinary user's.
install_line() {
  if is_superuser && [ -z "${SUDO_USER:-}" ]; then
    install_command
  elif command -v sudo >/dev/null; then
    install_command 'sudo '
  else
    echo "su -c '$(install_command)'"
  fi
}

# ---- what is said and done ----

report_lacks() {
  {
    echo "This machine lacks: $lacks"
    if [ -z "$wanted" ]; then
      [ -z "$rustup" ] || echo "First type: $rustup"
    elif [ -n "$(package_manager)" ]; then
      echo "First type: $(install_line)${rustup:+ && $rustup}"
    else
      echo "First install: $wanted"
      [ -z "$rustup" ] || echo "Then type: $rustup"
    fi
    [ -z "$advice" ] || echo "$advice"
  } >&2
}

can_install_packages() {
  is_superuser && [ -n "$wanted$rustup" ] || return 1
  case $(package_manager) in
    apt-get | dnf) ;;
    *) return 1 ;;
  esac
}

is_agreed() {
  [ -n "$assent" ] || { [ -t 0 ] && [ -t 2 ] && ask "Do that now?"; } || return 1
  [ "$assent" != no ]
}

ask() { # ask QUESTION
  printf '%s [y/N] ' "$1" >&2
  read -r answer || return 1
  case $answer in
    [yY] | [yY][eE][sS]) ;;
    *) return 1 ;;
  esac
}

# Standard output belongs to the caller. Rust becomes the building user's.
install_lacks() {
  {
    [ -z "$wanted" ] || DEBIAN_FRONTEND=noninteractive sh -c "$(install_command)" || return 0
    # shellcheck disable=SC2016 # the home of that user
    [ -z "$rustup" ] || ${rust_of:+as_sudo_user} sh -c 'PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin; '"$rustup" || return 0
  } </dev/null >&2
}

# ---- room and rights ----

existing() { # existing PATH: itself, or the nearest directory above it that exists
  above=$1
  while [ ! -e "$above" ] && [ "$above" != / ] && [ "$above" != . ]; do above=$(dirname "$above"); done
  printf '%s\n' "$above"
}

check_room() { # check_room MEGABYTES
  target=${CARGO_TARGET_DIR:-$here/target}
  free=$(df -Pk "$(existing "$target")" 2>/dev/null | sed -n '2s/.* \([0-9][0-9]*\)  *[0-9]*% .*/\1/p')
  if [ -n "$free" ] && [ $(((free + $(built_before "$target")) / 1024)) -lt "$1" ]; then
    lack "room: $((free / 1024)) MB are free in $(existing "$target"), and the build takes $1 MB"
    advise "Free some, or set CARGO_TARGET_DIR to a directory on another file system."
  fi
  check_target "$(existing "$target")"
}

# built_before TARGET: the kilobytes that a build reuses: those of cargo's profiles in which this program was compiled before.
# What else a target directory has, such as other projects' profiles or results of tests, makes no room.
built_before() {
  reused=0
  for profile in "$1"/debug "$1"/release "$1"/*/debug "$1"/*/release; do
    set -- "$1" "$profile"/.fingerprint/cni-multi-*
    [ -e "$2" ] || continue
    reused=$((reused + $(du -sk "$profile" 2>/dev/null | cut -f 1)))
  done
  echo $reused
}

# An earlier build by root leaves a directory that this user cannot write to.
check_target() {
  [ -n "$cargo_user" ] || [ -w "$1" ] || {
    lack "write permission for user $(id -un) in $1"
    advise "Set CARGO_TARGET_DIR to a directory of your own, or have root type: chown -R $(id -un) '$1'."
  }
}

check_directory() {
  [ -w "$(existing "$1")" ] || {
    lack "write permission for user $(id -un) in $(existing "$1")"
    if is_superuser; then
      advise "Its file system may be read-only: name another directory with --dir."
    else
      advise "Run the command again with sudo, or name another directory with --dir."
    fi
  }
}

# ---- namespaces ----

# By trying it; without that program by reading what would forbid it.
check_namespaces() {
  if is_superuser; then flags='-n -m -p -f' kinds='net mnt pid'; else flags='-U -r -n -m -p -f' kinds='user net mnt pid'; fi
  said=''
  if command -v unshare >/dev/null; then
    # shellcheck disable=SC2086 # they are words
    if said=$(unshare $flags true 2>&1); then return; fi
    said=${said:-unshare failed}
  fi
  forbid_by_count || forbid_by_right || forbid_by_unknown "$said"
  ! is_superuser || offer_user_namespace
}

# Where root may create no other namespace, it may still create a user namespace, and the others in it.
offer_user_namespace() {
  case $lacks in *'namespaces for user'*) ;; *) return 0 ;; esac
  unshare -U -r -n -m -p -f true 2>/dev/null || return 0
  advise "Or put unshare -U -r before the command: in a user namespace of its own it may create them."
}

lack_namespaces() { # lack_namespaces REASON
  lack "namespaces for user $(id -un): $1"
}

offer_sysctl() { # offer_sysctl NAME VALUE
  advise "An administrator can change that: sysctl -w $1=$2"
}

fact() { cat "/proc/sys/$1" 2>/dev/null; }

status() { sed -n "s/^$1:[[:space:]]*//p" /proc/self/status 2>/dev/null; }

forbid_by_count() {
  for kind in $kinds; do
    if [ "$(fact "user/max_${kind}_namespaces")" = 0 ]; then
      lack_namespaces "user.max_${kind}_namespaces is 0"
      offer_sysctl "user.max_${kind}_namespaces" 15000
      return
    fi
  done
  return 1
}

# CAP_SYS_ADMIN is bit 21.
forbid_by_right() {
  if is_superuser; then
    [ $((0x0$(status CapEff) >> 21 & 1)) = 0 ] || return
    lack_namespaces "it lacks CAP_SYS_ADMIN, as in most containers"
    advise "Start the container with --privileged, or run the command on the host."
  elif [ "$(fact kernel/unprivileged_userns_clone)" = 0 ]; then
    lack_namespaces "kernel.unprivileged_userns_clone is 0"
    offer_sysctl kernel.unprivileged_userns_clone 1
  elif [ "$(fact kernel/apparmor_restrict_unprivileged_userns)" = 1 ]; then
    lack_namespaces "kernel.apparmor_restrict_unprivileged_userns is 1"
    offer_sysctl kernel.apparmor_restrict_unprivileged_userns 0
  else
    return 1
  fi
}

# A filter is read as the reason only where trying it has failed: most sessions of systemd have none, containers do.
forbid_by_unknown() { # forbid_by_unknown MESSAGE
  [ -n "$1" ] || return 0
  if [ "$(status Seccomp)" = 2 ]; then
    lack_namespaces "a seccomp filter forbids them, as in most containers"
    advise "Start the container with --privileged, or run the command on the host."
  else
    lack_namespaces "the kernel refuses them ($1)"
    advise "Run the command as another user, or outside of this container or chroot."
  fi
}
