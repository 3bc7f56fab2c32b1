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
