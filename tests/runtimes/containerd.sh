# shellcheck shell=bash
# tests/runtimes/containerd.sh: a containerd for the cases that need one; sourced after host.sh.

# The address is containerd's usual one, in the host's own /run.
configure_containerd() {
  cat >"$work/containerd.toml" <<TOML
version = 2
root = "$work/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.tracing",
]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$pause_image"
  restrict_oom_score_adj = true # a machine without CAP_SYS_RESOURCE refuses what it asks for else
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
    max_conf_num = 0
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.internal.v1.opt"]
  path = "$work/opt"
TOML
  export CRI_PYTHON=$work
  protoc --proto_path="$here" --python_out="$work" cri.proto || die "protoc"
}

start_containerd() {
  containerd -c "$work/containerd.toml" >>"$work/containerd.log" 2>&1 &
  containerd=$!
  check "containerd $(containerd --version | awk '{print $3}') is up" soon ctr version || die "containerd" "$work/containerd.log"
}

stop_containerd() {
  kill "$containerd"
  wait "$containerd" 2>/dev/null
}

import_images() { # import_images NAMESPACE
  check "the images are imported" ctr -n "$1" image import "$work/image.tar" || die "images" "$work/containerd.log"
  ctr -n "$1" image import "$work/pause.tar" >/dev/null
}

# ---- CRI ----

# Two networks, in the newest version that this containerd speaks.
write_networks() {
  local version=1.1.0
  case $(containerd --version | awk '{print $3}') in [01].*) version=1.0.0 ;; esac
  jq -n --arg version $version '{
    cniVersion: $version, name: "lab", plugins: [
      {type: "bridge", bridge: "lab0", mtu: 1400, isGateway: true, ipMasq: true, hairpinMode: true, ipam: {
        type: "host-local", ranges: [[{subnet: "10.88.0.0/24"}], [{subnet: "fd00:88::/64"}]],
        routes: [{dst: "0.0.0.0/0"}, {dst: "::/0"}]}},
      {type: "portmap", snat: true, capabilities: {portMappings: true}},
      {type: "firewall"},
      {type: "tuning", sysctl: {"net.core.somaxconn": "517"}},
      {type: "bandwidth", capabilities: {bandwidth: true}}
    ]}' >/etc/cni/net.d/10-lab.conflist
  jq -n --arg version $version '{
    cniVersion: $version, name: "back", plugins: [
      {type: "bridge", bridge: "back0", ipam: {type: "host-local", ranges: [[{subnet: "10.89.0.0/24"}]]}},
      {type: "firewall"}
    ]}' >/etc/cni/net.d/20-back.conflist
}

network_is_ready() { cri Status | jq -e '.status.conditions[] | select(.type == "NetworkReady") | .status == true'; }

cri() { /usr/bin/python3 "$here/cri.py" "$@"; }

pod_config() { # pod_config NAME [PORTS [ANNOTATIONS]]
  jq -nc --arg name "$1" --argjson ports "${2:-[]}" --argjson annotations "${3:-null}" --arg group "/$group" --arg logs "$work/pods" '
    {metadata: {$name, uid: $name, namespace: "default"}, hostname: $name, logDirectory: $logs, portMappings: $ports,
     $annotations, linux: {cgroupParent: $group}} | del(..|nulls)'
}

declare -A pods

# A pod and the container in it.
run_pod() { # run_pod NAME [PORTS [ANNOTATIONS]]
  local config container
  config=$(pod_config "$@")
  pods[$1]=$(cri RunPodSandbox "{\"config\": $config}" 2>"$work/error" | jq -r .podSandboxId)
  check "pod $1 runs" test -n "${pods[$1]}" || die "pod $1" "$work/error" "$work/containerd.log"
  container=$(cri CreateContainer "$(jq -nc --arg pod "${pods[$1]}" --argjson config "$config" --arg name "$1" --arg image "$image" '
    {podSandboxId: $pod, sandboxConfig: $config, config: {
      metadata: {$name}, image: {$image}, envs: [{key: "ID", value: $name}], logPath: ($name + ".log")}}')" | jq -r .containerId)
  cri StartContainer "{\"containerId\": \"$container\"}" >/dev/null
  check "its container runs" soon who "$(namespace_of "$1")" 127.0.0.1:8080 || die "container $1" "$work/containerd.log"
}

namespace_of() { pod_namespace "${pods[$1]}"; } # namespace_of NAME

take_off() { # take_off NAME
  call_for StopPodSandbox "${pods[$1]}" && call_for RemovePodSandbox "${pods[$1]}"
}

pod_namespace() { # pod_namespace POD
  ctr -n k8s.io container info "$1" | jq -r '.Spec.linux.namespaces[] | select(.type == "network").path'
}

call_for() { # call_for METHOD POD...: all at once
  mapfile -t requests < <(printf '{"podSandboxId": "%s"}\n' "${@:2}")
  cri "$1" "${requests[@]}"
}
