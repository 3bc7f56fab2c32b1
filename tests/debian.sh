# shellcheck shell=bash
# The Debian archive that this machine uses, one suite at a time, with lists of its own: nothing is installed, and
# apt's own lists and sources stay as they are. Sourced by tests/fetch-reference and tests/vm/run, which set `work`, a
# directory that they remove, `die`, and for another processor than this one `machine`, Debian's name of it.

keyring=/usr/share/keyrings/debian-archive-keyring.gpg

archive() {
  awk '/^URIs:/ {print $2; exit}' /etc/apt/sources.list.d/debian.sources 2>/dev/null | grep . ||
    awk '$1 == "deb" {for (i = 2; i <= NF; i++) if ($i ~ /^https?:.*debian\/?$/) {print $i; exit}}' /etc/apt/sources.list | grep .
}

# use SUITE: from here on `apt_get` knows that suite and no other. An old suite's lists are no longer renewed.
use() {
  local uri
  uri=$(archive) || die "this machine's apt names no Debian archive"
  [ -e "$keyring" ] || die "$keyring is missing: install debian-archive-keyring"
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
  printf "%s [signed-by=$keyring] $uri $1 main\n" deb deb-src >"$work/sources.list"
  apt_get update >&2
}

apt_get() {
  of_suite apt-get -qq "$@"
}

of_suite() { # of_suite TOOL ARG...
  "$@" -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- \
    -o Dir::State::lists="$work/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$work/cache" \
    -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Check-Valid-Until=false \
    -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false \
    ${machine:+-o APT::Architecture="$machine" -o APT::Architectures="$machine"}
}
