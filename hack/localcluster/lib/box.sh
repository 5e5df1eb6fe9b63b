#!/bin/bash
# box.sh N LKUBE: one node. Runs as PID 1 of its own mount, network, PID, UTS and IPC namespaces, so that the node
# has its own /run, /var/lib/kubelet, /var/lib/containerd, interfaces, packet filter and process tree, and one
# SIGKILL ends all of it.
set -euo pipefail
# shellcheck source=hack/localcluster/lib/env.sh
. "$(dirname "$0")/env.sh"
i=$1 lkube=$2 name=node$1 dir=$RUN/node$1 ip=$(node_ip "$1")
hostname "$name"

# --- mounts ---
bind() { mkdir -p "$dir/$1" "$2"; mount --bind "$dir/$1" "$2"; }
bind_file() { mkdir -p "$(dirname "$2")"; [ -e "$2" ] || : >"$2"; mount --bind "$1" "$2"; }
mkdir -p "$dir/cgroup"
# A fresh sysfs shows this network namespace, and hides the cgroup mounts: carry them over, while all is still
# private (a shared umount would take both).
mount --rbind $CGROUPS "$dir/cgroup"
umount -R -l /sys
mount -t sysfs sysfs /sys
mount --rbind "$dir/cgroup" $CGROUPS
umount -l "$dir/cgroup"
mount --make-rshared / # volumes may use mount propagation
bind run /run
bind kubelet /var/lib/kubelet
bind containerd /var/lib/containerd
bind log-pods /var/log/pods
bind log-containers /var/log/containers
bind cni /var/lib/cni
bind etc-cni /etc/cni
bind etc-containerd /etc/containerd
printf '127.0.0.1 localhost\n%s %s\n' "$ip" "$name" >"$dir/hosts"
bind_file "$dir/hosts" /etc/hosts
: >"$dir/resolv.conf"
bind_file "$dir/resolv.conf" "$(readlink -m /etc/resolv.conf)"
tr -d - </proc/sys/kernel/random/uuid >"$dir/machine-id"
[ ! -e /etc/machine-id ] || bind_file "$dir/machine-id" /etc/machine-id
# The kubelet sets global sysctls. Give it what it wants to read, without touching the machine's.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
  kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
  file=$dir/sysctl-$(basename "${setting%=*}")
  echo "${setting#*=}" >"$file"
  bind_file "$file" "/proc/sys/${setting%=*}"
done

# --- cgroups: a root of our own for the kubelet ---
for tree in $(cgroup_trees); do mkdir -p "$tree/$CGROUP/$name"; done
if cgroup_v2; then
  for parent in $CGROUPS "$CGROUPS/$CGROUP" "$CGROUPS/$CGROUP/$name"; do
    for c in cpu cpuset io memory pids; do
      ! grep -qw $c "$parent/cgroup.controllers" || echo "+$c" >"$parent/cgroup.subtree_control"
    done
  done
else
  for parent in "$CGROUP" "$CGROUP/$name"; do # a new cpuset has no cpus, and nothing can join it
    for f in cpuset.cpus cpuset.mems; do cat "$CGROUPS/cpuset/$f" >"$CGROUPS/cpuset/$parent/$f"; done
  done
fi

# --- network ---
until [ -e /sys/class/net/eth0 ]; do sleep 0.05; done # the host plugs it in
ip link set lo up
ip addr add "$ip/24" dev eth0
ip link set eth0 up
ip route add default via $NET.1 # the machine does not forward: this only gives a source address
for j in $(seq "$(nodes)"); do [ "$j" = "$i" ] || ip route add "$PODS.$j.0/24" via "$(node_ip "$j")"; done
sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.route_localnet=1
sysctl -qw net.bridge.bridge-nf-call-iptables=1 2>/dev/null || true

# --- configuration ---
mkdir -p /etc/cni/net.d
cat >/etc/cni/net.d/10-tributary.conflist <<J
{"cniVersion": "1.0.0", "name": "tributary", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true, "mtu": 1500,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$PODS.$i.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}]}
J
# restrict_oom_score_adj: without CAP_SYS_RESOURCE nothing may go below our own score, and runc would fail.
cat >/etc/containerd/config.toml <<T
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/tributary/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "$(command -v runc)"
      SystemdCgroup = false
T
# No eviction and no image garbage collection: the machine's disk is not ours to judge, and an image that was
# loaded cannot be pulled again.
cat >"$dir/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP/$name
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
address: $ip
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $PKI/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $PKI/$name.crt
tlsPrivateKeyFile: $PKI/$name.key
clusterDomain: cluster.local
clusterDNS: [$DNS]
resolvConf: /etc/resolv.conf
failSwapOn: false
syncFrequency: 10s
nodeStatusUpdateFrequency: 5s
serializeImagePulls: false
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 100Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}
Y
# Conntrack settings are read-only outside the first network namespace: 0 leaves them alone.
cat >"$dir/kube-proxy.yaml" <<Y
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: $PKI/proxy.conf}
hostnameOverride: $name
clusterCIDR: $PODS.0.0/16
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
Y

# --- processes ---
# keep NAME CMD...: runs it and, as an init would, starts it again when it ends.
keep() {
  local what=$1
  shift
  while :; do
    "$@" || echo "$what ended with $?"
    sleep 0.5
  done </dev/null >>"$RUN/log/$name-$what.log" 2>&1 &
}
keep containerd containerd
until [ -e "$RUN/api-ready" ] && [ -S /run/containerd/containerd.sock ]; do sleep 0.05; done
keep kubelet "$lkube/kubelet" --config="$dir/kubelet.yaml" --kubeconfig="$PKI/$name.conf" \
  --hostname-override="$name" --node-ip="$ip" --cert-dir=/var/lib/kubelet/pki
keep kube-proxy "$lkube/kube-proxy" --config="$dir/kube-proxy.yaml"
wait
