# shellcheck shell=bash
# What the tiers of tests/run need besides cargo: Debian packages and the reference plugins.
# Sourced by tests/run, which sets `logs`, `target`, `install` and `extent`.

# For the integration tests that each run has.
packages=(iproute2 iptables nftables conntrack iputils-ping socat jq kmod perl-base)
# For what only --kernels runs: a root and a machine of the other processor.
packages_of_kernels=(qemu-system-arm mmdebstrap xz-utils)
# For what --all and --kernels run: the other integration tests, the scripts, the virtual machine.
packages_of_whole=(strace shellcheck groff-base firewalld dbus qemu-system-x86 busybox-static cpio python3-jsonschema fish zsh
  dnsmasq-base kea-dhcp4-server kea-dhcp6-server radvd etcd-server etcd-client openssl openvswitch-switch)
# For what only --all runs: the reference plugins and cnitool, packages and their roots, runtimes.
packages_of_all=(containernetworking-plugins golang-go rpm rpm2cpio lintian squashfs-tools mmdebstrap skopeo systemd python3-kubernetes git
  containerd runc podman curl protobuf-compiler python3-grpcio python3-protobuf)
# Their packages would start them, now and at each boot.
servers=(kea-dhcp4-server kea-dhcp6-server radvd etcd openvswitch-switch containerd podman podman-restart)

not_installed='' # names, once install_packages has not installed them

missing_packages() {
  local package wanted=("${packages[@]}")
  case $extent in
    whole) wanted+=("${packages_of_whole[@]}" "${packages_of_all[@]}") ;;
    lint) wanted=(shellcheck jq) ;;
    fresh) wanted=(mmdebstrap) ;;
    kernels) wanted+=("${packages_of_whole[@]}" "${packages_of_kernels[@]}") ;;
  esac
  for package in "${wanted[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' || echo "$package"
  done
}

# Installs what is missing as root, with --yes or after a yes on a terminal; names it otherwise.
install_packages() {
  local missing
  command -v apt-get >/dev/null || { not_installed="Debian packages"; echo "no apt-get: tests whose programs are missing are skipped"; return 0; }
  mapfile -t missing < <(missing_packages)
  [ ${#missing[@]} != 0 ] || return 0
  if ! is_root || ! may_ask; then
    name_packages "${missing[@]}"
    return 0
  fi
  echo "${#missing[@]} Debian packages that tests use are missing; reading apt's lists"
  apt-get update -qq >"$logs/apt.log" 2>&1 </dev/null
  announce_packages "${missing[@]}"
  if [ "$install" = ask ] && ! ask "Install them?"; then
    name_packages "${missing[@]}"
    return 0
  fi
  if ! without_services apt_install "${missing[@]}" >>"$logs/apt.log" 2>&1 </dev/null; then
    show_log apt
    close apt 0 1 0
  fi
}

may_ask() { [ "$install" = yes ] || { [ "$install" = ask ] && [ -t 0 ] && [ -t 2 ]; }; }

# An ordinary user may still fetch what is only unpacked.
name_packages() { # name_packages PACKAGE...
  not_installed=$*
  echo "not installed, so what needs them is skipped: $*"
  ! is_root || { echo "  tests/run --yes installs them" && install=; }
}

# apt's own words for how many packages, how much to fetch and how much room.
announce_packages() {
  local plan
  plan=$(apt-get install --assume-no --no-install-recommends "$@" 2>/dev/null |
    sed -nE 's/^([0-9]+ upgraded, [0-9]+ newly installed).*/\1/p; s/^(Need to get .*|After this operation.*)/\1/p' | paste -sd ' ')
  echo "installing ${*}"
  echo "  with what they depend on: ${plan:-apt-get does not say how much}"
  echo "  that takes one to three minutes; without them, the tests that need them are skipped"
}

apt_install() { DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; }

# Package scripts ask policy-rc.d before they start a service. Servers that were not installed before are disabled.
without_services() {
  local policy=/usr/sbin/policy-rc.d ours='' status
  local server new=()
  for server in "${servers[@]}"; do
    [ -e "/lib/systemd/system/$server.service" ] || new+=("$server")
  done
  if [ ! -e $policy ]; then
    ours=yes
    printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy
  fi
  "$@"
  status=$?
  [ -z "$ours" ] || rm -f $policy
  for server in "${new[@]}"; do
    [ ! -e "/lib/systemd/system/$server.service" ] || systemctl disable "$server"
  done
  return $status
}

# The newest reference there is: Debian sid's, else the installed package's.
find_reference() {
  local dir=/usr/lib/cni
  if [ -n "$install" ]; then
    dir=$(tests/fetch-reference "$target/reference" 2>"$logs/reference.log") || dir=/usr/lib/cni
  fi
  [ -x "$dir/bridge" ] || { echo "no reference plugins: what compares with them is skipped"; return 0; }
  export CNI_REFERENCE=$dir
  echo "reference plugins: $dir"
}

# cnitool is in no package: it is compiled where Go is installed, and only --all installs Go.
find_cnitool() {
  [ -n "$install" ] && command -v go >/dev/null || return 0
  CNI_TOOL=$(tests/fetch-reference "$target/reference" cnitool 2>>"$logs/reference.log") || return 0
  export CNI_TOOL
  echo "reference cnitool: $CNI_TOOL"
}
