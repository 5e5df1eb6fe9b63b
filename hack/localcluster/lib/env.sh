# shellcheck shell=bash
# Names, addresses and places of the local cluster, and the helpers its scripts share. Sourced, never run.
# shellcheck disable=SC2034 # used where it is sourced

LC=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=hack/lib.sh
. "$LC/../lib.sh"

RUN=${XDG_STATE_HOME:-$HOME/.local/state}/tributary/localcluster  # one run's state and logs; pki/ outlives it
PKI=$RUN/pki
MAX_NODES=5          # certificates are made for so many
NET=10.213.0         # node network, on a bridge of our own: the host is .1, node N is .(10+N)
PODS=10.244          # pods of node N: $PODS.N.0/24
SVC=10.96            # services: $SVC.0.0/16
DNS=$SVC.0.10
API=https://$NET.1:6443
ETCD=http://127.0.0.1:23790
ETCD_PEER=http://127.0.0.1:23791
BRIDGE=tributary0
CGROUP=tributary     # the name of our part of the cgroup tree

node_ip() { echo "$NET.$((10 + $1))"; }
veth() { echo "tributary-n$1"; }
nodes() { cat "$RUN/nodes" 2>/dev/null || echo 0; }
need_root() { [ "$(id -u)" = 0 ] || die "$1 needs root: it makes network interfaces, mounts and cgroups"; }
need_running() { [ -e "$RUN/nodes" ] || die "no cluster is running; start one: lc start"; }
need_node() {
  case $1 in [1-9]) [ "$1" -le "$(nodes)" ] && return ;; esac
  die "no such node: '$1'; this cluster's nodes are 1 to $(nodes)"
}

# Where each built component is kept; the names change when the sources do.
lkube() { echo "$CACHE/localcluster/lkube-$(hash_of "$LC/src/lkube")"; }
coredns() { echo "$CACHE/localcluster/coredns-$(hash_of "$LC/src/coredns")"; }
mkimage() { echo "$CACHE/localcluster/mkimage-$(hash_of "$LC/src/mkimage" "$LC/src/pause")"; }
images() { echo "$CACHE/localcluster/images-$(hash_of "$LC/src" "$LC/lib/images.sh")"; }

# A pid file holds "pid starttime", so that a pid used again is never taken for ours.
start_time() {
  local s
  s=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  s=${s##*) }
  # shellcheck disable=SC2086
  set -- $s
  echo "${20}"
}
record() { echo "$2 $(start_time "$2")" >"$RUN/pids/$1"; }
alive() {
  local pid since
  [ -e "$RUN/pids/$1" ] && read -r pid since <"$RUN/pids/$1" && [ "$(start_time "$pid")" = "$since" ] && echo "$pid"
}

# cgroup v1 has a tree for each controller, v2 has one tree.
CGROUPS=/sys/fs/cgroup
cgroup_v2() { [ -e $CGROUPS/cgroup.controllers ]; }
cgroup_trees() {
  if cgroup_v2; then
    echo $CGROUPS
  else
    for t in cpu cpuacct cpuset memory devices freezer blkio pids systemd unified; do
      [ ! -d $CGROUPS/$t ] || echo $CGROUPS/$t
    done
  fi
}

# remove_cgroup PATH: removes it and all below it in every tree, once the killed tasks have left.
remove_cgroup() {
  local tree dir
  for tree in $(cgroup_trees); do
    dir=$tree/$1
    for _ in $(seq 100); do
      [ -d "$dir" ] || break
      find "$dir" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.05
    done
    [ ! -d "$dir" ] || log "left behind: $dir"
  done
}
