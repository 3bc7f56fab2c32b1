# shellcheck shell=bash
# shellcheck disable=SC2034 # its variables are for the cases
# tests/runtimes/host.sh: what the cases beside it share. It is sourced, never run; `run` starts the cases.
#
# A case has a host of its own, which is namespaces: mount, network, process, IPC and UTS. /run is new; /etc, /opt and
# /var/lib can be written and forget it. Nothing reaches the machine's network, daemons or configuration, and whatever
# a case starts ends with it. Only cgroups are the machine's, below one named $group, which `run` removes.
#
# A second network namespace, /run/netns/outside, is a machine behind the host's uplink. It has no route to the
# containers, so that an answer from there shows that their address was masqueraded.

# shellcheck source=packaging/options.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../packaging/options.sh"
words_only "$0" "$@"

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
: "${group:?is what run names the case}" "${work:?is a directory of the case, where run says so}" "${logs:?is where run keeps logs}"
outside=/run/netns/outside
host_ip=192.0.2.1 host_ip6=2001:db8::1
outside_ip=192.0.2.9 outside_ip6=2001:db8::9
image=localhost/who:1 pause_image=localhost/pause:1
passed=0 failed=0

# ---- checks ----

# check CLAIM COMMAND...: one line; the claim holds when the command succeeds.
check() {
  local claim=$1
  shift
  if "$@" >"$work/check" 2>&1 </dev/null; then
    passed=$((passed + 1))
    echo "  ok: $claim"
  else
    failed=$((failed + 1))
    echo "  FAILED: $claim"
    echo "    $*" | cut -c -400
    tail -n 40 "$work/check" | sed 's/^/    | /'
    return 1
  fi
}

fails() { ! "$@"; }

# says WANTED COMMAND...: it succeeds and prints just that.
says() {
  local wanted=$1 said
  shift
  said=$("$@") || { echo "$said"; return 1; }
  [ "$said" = "$wanted" ] || { printf 'wanted: %s\nsaid:   %s\n' "$wanted" "$said"; return 1; }
}

# soon COMMAND...: within twenty seconds. For what daemons do in their own time.
soon() {
  local end=$((SECONDS + 20))
  until "$@" >"$work/soon" 2>&1; do
    [ $SECONDS -lt $end ] || { cat "$work/soon"; return 1; }
    sleep 0.1
  done
}

die() {
  check "$1" false || :
  shift
  [ $# = 0 ] || tail -n 20 "$@" | cut -c -600
  finish
}

finish() {
  cp "$work"/*.log "$logs" 2>/dev/null
  echo "$passed passed, $failed failed, $SECONDS s"
  [ "$failed" = 0 ] && [ "$passed" != 0 ]
  exit
}

# ---- the host ----

writable_again() { # writable_again DIRECTORY
  mkdir -p "$work/layers$1/upper" "$work/layers$1/work"
  mount -t overlay overlay -o "lowerdir=$1,upperdir=$work/layers$1/upper,workdir=$work/layers$1/work" "$1" ||
    die "an overlay over $1"
}

make_directories() {
  mount -t tmpfs tmpfs "$work" || die "a tmpfs for the case"
  mount -t tmpfs -o mode=755 tmpfs /run && mkdir /run/lock /run/netns
  mount -t tmpfs -o mode=1777 tmpfs /dev/shm
  for directory in /etc /opt /usr/local /var/lib; do writable_again "$directory"; done
  rm -rf /etc/cni /var/lib/cni /var/lib/containerd /var/lib/containers /opt/cni
  mkdir -p /etc/cni/net.d /opt/cni/bin
}

make_links() {
  hostname runtimes
  ip link set lo up
  ip netns add outside
  ip link add uplink type veth peer name eth0 netns outside || die "a veth pair"
  ip address add $host_ip/24 dev uplink
  ip address add $host_ip6/64 dev uplink nodad
  ip -n outside address add $outside_ip/24 dev eth0
  ip -n outside address add $outside_ip6/64 dev eth0 nodad
  ip link set uplink up
  ip -n outside link set eth0 up
  ip -n outside link set lo up
  ip route add default via $outside_ip
  ip -6 route add default via $outside_ip6
  # Who needs forwarding has to switch it on; who needs to pass has to have a rule.
  sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0
  make_firewall
}

make_firewall() {
  for iptables in iptables ip6tables; do
    $iptables -P FORWARD DROP
    $iptables -A FORWARD -m conntrack --ctstate DNAT -j ACCEPT # published ports are for everybody
  done
}

make_host() {
  make_directories
  make_links
  make_root
  make_image "$image" '["httpd", "-f", "-p", "8080", "-h", "/www"]' "$work/image.tar"
  make_image "$pause_image" '["sleep", "1000000"]' "$work/pause.tar"
  ID=outside within "$outside" busybox httpd -p 9000 -h "$work/files/www" || die "a web server outside"
  "$here/../../install.sh" --binary "$CNI_MULTI" --dir /opt/cni/bin >/dev/null || die "install.sh"
}

# Runtimes choose the names of pairs, chains and files: what is compared is all that stays after the last container.
# Addresses by which the kernel knows itself, what comes and goes with a neighbour, and what host-local and `net` keep
# of a network that has no containers are left out.
state() {
  ip -o link | sed -E 's/^[0-9]+: ([^:@]+).*/link \1/'
  ip -o address | awk '$4 !~ /^fe80:/ {print "address", $2, $4}'
  { ip -4 -o route show table all; ip -6 -o route show table all; } |
    grep -v -e fe80: -e ff00: -e multicast -e anycast | sed -E 's/ linkdown//; s/ +$//; s/^/route /'
  { ip -4 rule; ip -6 rule; } | sed 's/^/rule /'
  tc qdisc show | awk '{print "qdisc", $2, $4, $5}'
  nft --stateless list ruleset 2>/dev/null | sed 's/^[ \t]*/nft /'
  find /run/netns /run/cni /var/lib/cni -type f ! -name lock ! -name 'last_reserved_ip.*' 2>/dev/null | sed 's/^/file /'
}

remember() { state | sort >"$work/before"; }

nothing_is_left() { state | sort | diff "$work/before" - | grep '^[<>]' && return 1 || return 0; }

# ---- the image ----

# A root file system of one static program, whose web server tells who it is and who asks.
make_root() {
  local root=$work/files applet
  mkdir -p "$root"/{bin,dev,etc,proc,sys,tmp,run,var,www/cgi-bin}
  cp "$(command -v busybox)" "$root/bin/busybox"
  for applet in $(busybox --list); do
    [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
  done
  echo root:x:0:0:root:/:/bin/sh >"$root/etc/passwd"
  echo root:x:0: >"$root/etc/group"
  cat >"$root/www/cgi-bin/who" <<'CGI'
#!/bin/sh
printf 'Content-Type: text/plain\n\n'
echo "$ID to $REMOTE_ADDR" | sed 's/::ffff://; s/[][]//g'
CGI
  chmod 755 "$root/www/cgi-bin/who"
  tar -C "$root" --numeric-owner --owner=0 --group=0 -cf "$work/files.tar" .
}

# blob FILE: into the layout that is being made; prints what refers to it.
blob() { # blob FILE MEDIA-TYPE
  local digest
  digest=$(sha256sum "$1" | cut -d ' ' -f 1)
  cp "$1" "blobs/sha256/$digest"
  jq -nc --arg type "application/vnd.oci.image.$2" --arg digest "sha256:$digest" --argjson size "$(stat -c %s "$1")" \
    '{mediaType: $type, digest: $digest, size: $size}'
}

# make_image REFERENCE COMMAND TAR: an OCI image layout, as `ctr image import` and `podman load` take it.
make_image() {
  local reference=$1 command=$2 tar=$3 layer config architecture
  architecture=$(dpkg --print-architecture)
  rm -rf "$work/layout"
  mkdir -p "$work/layout/blobs/sha256"
  (
    cd "$work/layout" || exit
    layer=$(blob "$work/files.tar" layer.v1.tar)
    jq -nc --arg architecture "$architecture" --argjson layer "$layer" --argjson command "$command" \
      '{$architecture, os: "linux", config: {Env: ["PATH=/bin"], Cmd: $command},
        rootfs: {type: "layers", diff_ids: [$layer.digest]}}' >"$work/config"
    config=$(blob "$work/config" config.v1+json)
    jq -nc --argjson config "$config" --argjson layer "$layer" \
      '{schemaVersion: 2, mediaType: "application/vnd.oci.image.manifest.v1+json", $config, layers: [$layer]}' >"$work/manifest"
    blob "$work/manifest" manifest.v1+json | jq -c --arg name "$reference" --arg architecture "$architecture" \
      '{schemaVersion: 2, manifests: [. + {platform: {$architecture, os: "linux"},
        annotations: {"io.containerd.image.name": $name, "org.opencontainers.image.ref.name": $name}}]}' >index.json
    echo '{"imageLayoutVersion": "1.0.0"}' >oci-layout
    tar -cf "$tar" oci-layout index.json blobs
  ) || die "the image $reference"
}

# ---- traffic ----

within() { # within NAMESPACE COMMAND...
  nsenter --net="$1" "${@:2}"
}

# The host itself, for those who take a namespace.
host=/proc/self/ns/net

# who NAMESPACE ADDRESS:PORT: the web server there answers "ID to ADDRESS", its name and whom it sees.
who() { within "$1" curl --silent --show-error --fail --globoff --max-time 3 "http://$2/cgi-bin/who"; }

pings() { within "$1" ping -q -c 1 -W 2 "$2"; } # pings NAMESPACE ADDRESS

# answer_udp NAMESPACE NAME: datagrams to port 5353, until the namespace's processes end.
answer_udp() {
  # shellcheck disable=SC2016 # for the inner shell
  within "$1" socat UDP4-LISTEN:5353,fork SYSTEM:"read line && echo $2 to \$SOCAT_PEERADDR" &
}

who_udp() { # who_udp NAMESPACE ADDRESS:PORT
  echo who | within "$1" socat -t 0.5 - "UDP4:$2" | grep .
}

address_of() { # address_of NAMESPACE INTERFACE FAMILY
  within "$1" ip -j "-$3" address show dev "$2" scope global | jq -r '.[].addr_info[0].local // empty'
}

mtu_of() { within "$1" ip -j link show dev "$2" | jq '.[0].mtu'; } # mtu_of NAMESPACE INTERFACE

# Two containers, a and b, on eth0, whose namespaces are $a and $b: what every network must let pass. $gateway is the
# host's address in their network.
check_traffic() {
  local a4 b4 a6 b6
  a4=$(address_of "$a" eth0 4) b4=$(address_of "$b" eth0 4) a6=$(address_of "$a" eth0 6) b6=$(address_of "$b" eth0 6)
  check "container to container ($b4 to $a4)" says "a to $b4" who "$b" "$a4:8080"
  check "host to container" says "a to $gateway" who "$host" "$a4:8080"
  check "container to outside, masqueraded" says "outside to $host_ip" who "$b" "$outside_ip:9000"
  check "a big packet to outside" within "$b" ping -q -c 1 -W 2 -s 4000 "$outside_ip"
  check "outside does not reach a container" fails pings "$outside" "$a4"
  [ -n "$a6" ] || return 0
  check "container to container ($b6 to $a6)" says "a to $b6" who "$b" "[$a6]:8080"
  check "container to outside, masqueraded, IPv6" says "outside to $host_ip6" who "$b" "[$outside_ip6]:9000"
}

# The ports that a has published in each case: 18080/tcp and 18053/udp everywhere, 18081/tcp at 127.0.0.1.
check_host_ports() {
  check "host port: from outside, whose address is seen" says "a to $outside_ip" who "$outside" "$host_ip:18080"
  check "host port: from the host" who "$host" "$host_ip:18080"
  check "host port: from the host by 127.0.0.1" who "$host" 127.0.0.1:18080
  check "host port: from the container itself" who "$a" "$host_ip:18080"
  check "host port: from another container" who "$b" "$host_ip:18080"
  check "host port at 127.0.0.1" who "$host" 127.0.0.1:18081
  check "host port at 127.0.0.1: not at another address" fails who "$outside" "$host_ip:18081"
  answer_udp "$a" a
  check "host port, udp: from outside" soon says "a to $outside_ip" who_udp "$outside" "$host_ip:18053"
  check "host port, udp: from the host" soon who_udp "$host" "$host_ip:18053"
  check "host port, udp: from another container" soon who_udp "$b" "$host_ip:18053"
  [ -n "$(address_of "$a" eth0 6)" ] || return 0
  check "host port: from outside, IPv6" says "a to $outside_ip6" who "$outside" "[$host_ip6]:18080"
}

check_host_ports_closed() {
  check "host port: closed with its container" fails who "$outside" "$host_ip:18080"
  check "host port, udp: closed with its container" fails who_udp "$outside" "$host_ip:18053"
}

# ---- attachments ----

# What libcni has recorded, with the configuration that it has recorded: CHECK, which no runtime calls.
attachments_hold() { # attachments_hold COUNT
  local count=0 file
  mkdir -p "$work/recorded"
  while read -r file; do
    attachment_holds "$file" || { echo "$file"; return 1; }
    count=$((count + 1))
  done < <(cni-multi net ps -o json | jq -r '.[] | select(.network != "cni-loopback").file')
  [ "$count" = "$1" ] || { echo "$count attachments, $1 were expected"; return 1; }
}

attachment_holds() { # attachment_holds FILE
  local attachment network id interface netns arguments
  attachment=$(cni-multi net inspect "${1##*/}" -o json) || return
  jq .config <<<"$attachment" >"$work/recorded/10.conflist"
  # The arguments have no space in them.
  read -r network id interface netns arguments < <(
    jq -r '[.network, .containerId, .ifname, .netns, (.capabilityArgs // {} | tojson)] | join(" ")' <<<"$attachment")
  CAP_ARGS=$arguments cni-multi net check "$network" "$netns" --conf-dir "$work/recorded" --container-id "$id" --ifname "$interface"
}

cni-multi() { /opt/cni/bin/cni-multi "$@"; }

leases() { find /var/lib/cni/networks -type f -regex '.*/[0-9a-f.:]*[.:][0-9a-f.:]*' 2>/dev/null | wc -l; }

# ---- doctor ----

# The findings of a healthy host that are no mistakes, by case: code, and what the evidence begins with.
expected_findings() { # expected_findings CASE
  case $1 in
    # ctr has no arguments for plugins, so the case writes into the file what a runtime passes.
    containerd-ctr) echo 'reserved-key /etc/cni/net.d/10-lab.conflist' ;;
  esac
}

# The containers work, as the case has just seen: doctor finds what is expected, and nothing else.
doctor_has_no_finding() {
  local code evidence
  cni-multi doctor -o json >"$work/doctor"
  jq -r '.findings[] | "\(.code) \(.evidence)"' "$work/doctor" >"$work/findings" || { cat "$work/doctor"; return 1; }
  while read -r code evidence; do
    grep -qF "$code $evidence" "$work/findings" || { echo "doctor no longer finds $code $evidence"; return 1; }
    grep -vF "$code $evidence" "$work/findings" >"$work/unexpected"
    mv "$work/unexpected" "$work/findings"
  done < <(expected_findings "${0##*/}")
  ! grep . "$work/findings"
}
