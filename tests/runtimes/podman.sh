# shellcheck shell=bash
# tests/runtimes/podman.sh: a podman with its CNI backend for the cases that need one; sourced after host.sh.

configure_podman() {
  cat >"$work/containers.conf" <<TOML
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"] # a machine without CAP_SYS_RESOURCE cannot raise them
[network]
network_backend = "cni"
cni_plugin_dirs = ["/opt/cni/bin"]
network_config_dir = "/etc/cni/net.d"
default_subnet = "10.88.0.0/24"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
TOML
  cat >"$work/storage.conf" <<TOML
[storage]
driver = "overlay"
graphroot = "$work/containers"
runroot = "/run/containers/storage"
TOML
  export CONTAINERS_CONF=$work/containers.conf CONTAINERS_STORAGE_CONF=$work/storage.conf
  check "podman $(command podman --version | awk '{print $3}') has its CNI backend" says cni podman info --format '{{.Host.NetworkBackend}}'
  check "the image is loaded" podman load -q -i "$work/image.tar" || die "podman load" "$work/check"
}

podman() { timeout 60 podman "$@"; }
