# shellcheck shell=bash
# Tests of the packages' units and daemon, and of the source package.
# Sourced by tests/packages, which has the roots, the packages and the comparisons.

# ---- the daemon ----

# The same package with another version before it.
older_deb() {
  dpkg-deb -R "$(only '*.deb')" "$work/older"
  sed -i 's/^Version: .*/Version: 0.0.1/' "$work/older/DEBIAN/control"
  dpkg-deb -Znone -b "$work/older" "$root/srv/older.deb" >/dev/null
}

# A systemd that is asked and does nothing: $root/asked has what it is asked for.
fake_systemd() {
  mkdir -p "$root/run/systemd/system" "$root/usr/bin"
  cat >"$root/usr/bin/systemctl" <<'SCRIPT'
#!/bin/sh
case $* in
  *is-active*) exit 3 ;;
  *is-enabled*) for unit; do :; done; test -e "/enabled/$unit" && echo enabled ;;
  *) echo "$@" >>/asked ;;
esac
SCRIPT
  chmod 0755 "$root/usr/bin/systemctl"
}
asked() { sort -u "$root/asked" && rm "$root/asked"; }

# What the daemon then does with its leases: plugins::ipam::dhcp::old_and_new::an_upgraded_daemon_keeps_the_leases.
test_an_upgrade_of_the_deb_restarts_a_running_daemon() {
  new_debian
  fake_systemd
  older_deb
  debian dpkg -i /srv/older.deb
  is "$(asked)" '--system daemon-reload'
  debian sh -c 'dpkg -i /srv/cni-multi_*.deb'
  is "$(asked)" $'--system daemon-reload\ntry-restart cni-dhcp.service cni-multi-ipam.service cni-multi-sync-firewalld.service'
  # An administrator's word against starting anything is kept.
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
  chmod 0755 "$root/usr/sbin/policy-rc.d"
  debian sh -c 'dpkg -i /srv/cni-multi_*.deb'
  is "$(asked)" '--system daemon-reload'
  rm "$root/usr/sbin/policy-rc.d"
  debian dpkg -r cni-multi
  is "$(asked)" $'--system daemon-reload\nstop cni-dhcp.socket cni-dhcp.service cni-multi-ipam.socket cni-multi-ipam.service cni-multi-sync-firewalld.service cni-multi-sync.service cni-multi-sync@docker.service cni-multi-sync@ufw.service'
  # What is enabled serves again after a new installation.
  install -D /dev/null "$root/enabled/cni-dhcp.socket"
  debian sh -c 'dpkg -i /srv/cni-multi_*.deb'
  is "$(asked)" $'--quiet --system start cni-dhcp.socket\n--system daemon-reload\ntry-restart cni-dhcp.service cni-multi-ipam.service cni-multi-sync-firewalld.service'
}

# The same files under another version.
older_rpm() {
  mkdir "$work/files"
  (cd "$work/files" && rpm2cpio "$(only '*.rpm')" | cpio -idm --quiet)
  rpmbuild -bb --quiet --define "_topdir $work/older" --define "_rpmdir $work/older" --define 'cni_version 0.0.1' \
    --define "cni_root $work/files" --define '_binary_payload w0.gzdio' packaging/rpm/cni-multi.spec
  compgen -G "$work/older/*/cni-multi-0.0.1-1.*.rpm"
}

test_an_upgrade_of_the_rpm_restarts_a_running_daemon() {
  new_rpm_root
  fake_systemd
  rpm --root "$root" --install --nodeps "$(older_rpm)"
  is "$(asked)" '--system daemon-reload'
  rpm --root "$root" --upgrade --nodeps "$(only '*.rpm')"
  is "$(asked)" $'--system daemon-reload\ntry-restart cni-dhcp.service cni-multi-ipam.service cni-multi-sync-firewalld.service'
  rpm --root "$root" --erase cni-multi
  is "$(asked)" $'--no-reload disable --now cni-dhcp.socket cni-dhcp.service cni-multi-ipam.socket cni-multi-ipam.service cni-multi-sync-firewalld.service cni-multi-sync.service cni-multi-sync@docker.service cni-multi-sync@ufw.service\n--system daemon-reload'
}

# The units are files of the package like others: dpkg --verify knows them, also where the reference was there before.
units_are_the_package_s() {
  local unit
  for unit in cni-dhcp.service cni-dhcp.socket cni-multi-ipam.service cni-multi-ipam.socket; do
    is "$(debian dpkg -S "/usr/lib/systemd/system/$unit")" "cni-multi: /usr/lib/systemd/system/$unit"
    [ -s "$root/usr/lib/systemd/system/$unit" ] || die "$unit is not there"
  done
  is "$(debian dpkg --verify cni-multi)" ''
  lacks "$(debian dpkg-divert --list)" cni-multi
}

# ---- source and units ----

# The build itself takes minutes; CONTRIBUTING.md has how it is tried by hand. That it has all crates, cargo says.
test_the_source_package_has_all_of_the_source_and_of_the_crates() {
  local root=$work/source
  packaging/build dsc --out "$work/dsc"
  (cd "$work/dsc" && sha256sum --quiet --strict -c SHA256SUMS)
  dpkg-source -x "$work/dsc/cni-multi_$version.dsc" "$root" >/dev/null
  is "$(git -c safe.directory='*' ls-files | grep -v '\.gitignore$' | (cd "$root" && xargs -d '\n' ls -d 2>&1 >/dev/null))" ''
  make -s -C "$root" -f debian/rules debian/cargo/config.toml
  (cd "$root" && RUSTUP_HOME=${RUSTUP_HOME:-${HOME:-/root}/.rustup} CARGO_HOME=$PWD/debian/cargo \
    unshare --net cargo metadata --locked --offline --format-version 1) | jq -r '.packages[].name' | sort >"$work/crates"
  is "$(cat "$work/crates")" "$(sed -n 's/^name = "\(.*\)"/\1/p' Cargo.lock | sort)"
  is "$(awk '/^Checksums/ {exit} {print}' "$work/dsc/cni-multi_$version.dsc" | sed -n 's/^Format: //p')" '3.0 (native)'
}

# Exposure as systemd counts it, in tenths. Units that stay have no option that makes a mount namespace, and say why; SECURITY.md
# has what that and each of their privileges count.
test_the_units_are_confined() {
  local unit limit
  while read -r unit limit; do
    systemd-analyze security --offline=true --no-pager --threshold="$limit" "$PWD/packaging/$unit" >"$work/analysis" ||
      die "$unit: $(tail -n 1 "$work/analysis")"
  done <<'END'
sysext/cni-multi-install.service 13
systemd/cni-dhcp.service 47
systemd/cni-multi-ipam.service 19
systemd/cni-multi-sync.service 34
systemd/cni-multi-sync@.service 34
systemd/cni-multi-sync-firewalld.service 45
END
  # Each unit is one of the table.
  is "$(find packaging -name '*.service' | wc -l)" 6
  for unit in cni-dhcp cni-multi-sync-firewalld; do
    lacks "$(grep -v '^#' "packaging/systemd/$unit.service")" \
      '^\(Protect[SPK][^=]*\|Private[^=]*\|ProtectHome\|ProtectControlGroups\|[A-Za-z]*Paths\|MountFlags\)='
  done
}

# Debian's package has each profile that a unit enters, as a file that its administrator may change. tests/vm/booted
# tries them.
test_units_enter_profiles_that_the_deb_has() {
  local profiles
  profiles=$(sed -n 's/^AppArmorProfile=-//p' packaging/systemd/*.service | sort)
  is "$profiles" "$(ls packaging/apparmor)"
  unpack "$(only '*.deb')" "$work/unpacked"
  is "$(cat "$work/unpacked/DEBIAN/conffiles")" "$(sed 's#^#/etc/apparmor.d/#' <<<"$profiles")"
  is "$(sed -n 's/^profile \([^ ]*\) .*/\1/p' "$work/unpacked/etc/apparmor.d/"* | sort)" "$profiles"
}

# Where nftables, firewalld, docker or ufw starts, they follow it; where it restarts, they run again. Each follows one
# service: some exclude each other, and a unit of both would have to be stopped and started at once.
test_the_repairs_follow_the_firewall() {
  local unit=packaging/systemd/cni-multi-sync.service
  is "$(sed -n 's/^\(After\|PartOf\|ReloadPropagatedFrom\|WantedBy\)=//p' "$unit" | sort -u)" nftables.service
  is "$(sed -n 's/^\(After\|PartOf\|ReloadPropagatedFrom\|WantedBy\)=//p' "${unit/./@.}" | sort -u)" %i.service
  is "$(sed -n 's/^\(PartOf\|WantedBy\)=//p' packaging/systemd/cni-multi-sync-firewalld.service | sort -u)" firewalld.service
}
