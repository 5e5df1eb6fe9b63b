# shellcheck shell=bash
# A node as the host sees it: a box (see box.sh) and its cable. Sourced by lc.

# node_up N: makes node N's box; it starts containerd at once, kubelet and kube-proxy when the API server is ready.
# After node_down this is a reboot: /run is new, the disk is kept.
node_up() {
  local i=$1 lkube box init
  ! alive "node$i" >/dev/null || die "node$i is up already"
  rm -rf "$RUN/node$i/run"
  mkdir -p "$RUN/node$i/run"
  lkube=$(cat "$RUN/lkube")
  setsid unshare --mount --net --pid --uts --ipc --fork --kill-child=KILL --mount-proc \
    "$LC/lib/box.sh" "$i" "$lkube" </dev/null >>"$RUN/log/node$i-box.log" 2>&1 &
  box=$!
  record "node$i" $box
  disown
  until init=$(tr -d ' ' 2>/dev/null <"/proc/$box/task/$box/children") && [ -n "$init" ]; do
    [ -d "/proc/$box" ] || die "node$i ended as it started: see $RUN/log/node$i-box.log"
    sleep 0.02
  done
  echo "$init" >"$RUN/node$i/init" # the node's PID 1 as the host sees it
  until [ "$(readlink "/proc/$init/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.02; done
  ip link del "$(veth "$i")" 2>/dev/null || true
  ip link add "$(veth "$i")" type veth peer name eth0 netns "$init"
  ip link set "$(veth "$i")" master "$BRIDGE" up
}

# node_down N: pulls node N's plug: every process in it gets SIGKILL, and its network goes.
node_down() {
  local i=$1 pid init
  pid=$(alive "node$i") || die "node$i is down already"
  init=$(cat "$RUN/node$i/init")
  kill -KILL "$pid"
  while [ -d "/proc/$init" ]; do sleep 0.02; done
  ip link del "$(veth "$i")" 2>/dev/null || true
  remove_cgroup "$CGROUP/node$i" # left over, they would cost the next boot 3 s for each container
}

# in_node N CMD...: runs a command with the node's mounts, network and processes.
in_node() {
  alive "node$1" >/dev/null || die "node$1 is down"
  nsenter -t "$(cat "$RUN/node$1/init")" -m -n -p -u -i -- "${@:2}"
}

# load_image N ARCHIVE: imports an OCI or Docker archive into node N.
load_image() { in_node "$1" ctr -n k8s.io images import - <"$2" >/dev/null || die "node$1 could not import $2"; }
