# shellcheck shell=bash
# Starts and stops the cluster: the control plane on the host, each node in its box. Sourced by lc.

cluster_start() {
  local count=$1 i began=$SECONDS bin imports
  case $count in [1-9]) ;; *) die "the number of nodes is 1 to $MAX_NODES, not '$count'" ;; esac
  [ "$count" -le "$MAX_NODES" ] || die "the number of nodes is 1 to $MAX_NODES, not $count"
  need_root "lc start"
  check_deps
  [ ! -e "$RUN/nodes" ] || die "a cluster is there already (lc status); stop it first: lc stop"
  build_all
  make_images
  bin=$(lkube)
  cluster_clean
  mkdir -p "$RUN"/{pids,log}
  rm -f "$RUN"/log/*
  echo "$count" >"$RUN/nodes"
  echo "$bin" >"$RUN/lkube"
  trap 'log "start failed; logs are in $RUN/log"; cluster_clean' EXIT
  make_pki
  start_network "$count"
  for i in $(seq "$count"); do node_up "$i"; done
  log "nodes made ($((SECONDS - began)) s)"
  start_api "$bin"
  import_images "$count" &
  imports=$!
  wait_for "the API server" 120 api_ready
  log "API server ready ($((SECONDS - began)) s)"
  start_controllers "$bin"
  sed "s/@DNS@/$DNS/" "$LC"/manifests/*.yaml | kubectl apply -f - >/dev/null
  wait $imports || die "the images could not be imported: see $RUN/log"
  touch "$RUN/api-ready" # the kubelets start now: before, they would try to pull the images
  for i in $(seq "$count"); do wait_for "node$i to register" 120 kubectl get node "node$i"; done
  kubectl wait --for=condition=Ready node --all --timeout=120s >/dev/null
  log "nodes ready ($((SECONDS - began)) s)"
  kubectl -n kube-system rollout status deploy/coredns --timeout=120s >/dev/null
  trap - EXIT
  log "cluster of $count ready ($((SECONDS - began)) s)"
}

cluster_stop() {
  need_root "lc stop"
  cluster_clean
  log "stopped; logs are in $RUN/log"
}

# cluster_clean: ends every process by recorded pid and removes all that start made but the logs and the PKI. Works on
# what a start that failed halfway left, and on nothing.
cluster_clean() {
  local f pid i saved
  for f in "$RUN"/pids/*; do # SIGKILL of a box's unshare ends the node's whole PID namespace; the state goes anyway
    [ ! -e "$f" ] || ! pid=$(alive "$(basename "$f")") || kill -KILL "$pid"
  done
  for i in $(seq "$MAX_NODES"); do ip link del "$(veth "$i")" 2>/dev/null || true; done
  ip link del "$BRIDGE" 2>/dev/null || true # its routes go with it
  for i in $PODS.0.0/16 $SVC.0.0/16; do ip route del unreachable "$i" metric 4000 2>/dev/null || true; done
  remove_cgroup "$CGROUP"
  if saved=$(cat "$RUN/inotify" 2>/dev/null); then sysctl -qw fs.inotify.max_user_instances="$saved"; fi
  rm -rf "$RUN"/{etcd,pids,api-ready,nodes,lkube,inotify} "$RUN"/node[1-9]
}

# start_network NODES: the node network, which the host reaches pods and services through. The unreachable routes
# keep stray packets for the cluster from leaving the machine.
start_network() {
  local i now
  ip link add "$BRIDGE" type bridge
  ip addr add "$NET.1/24" dev "$BRIDGE"
  ip link set "$BRIDGE" up
  for i in $PODS.0.0/16 $SVC.0.0/16; do ip route add unreachable "$i" metric 4000; done
  ip route add "$SVC.0.0/16" via "$(node_ip 1)"
  for i in $(seq "$1"); do ip route add "$PODS.$i.0/24" via "$(node_ip "$i")"; done
  now=$(sysctl -n fs.inotify.max_user_instances)
  if [ "$now" -lt 1024 ]; then
    echo "$now" >"$RUN/inotify"
    sysctl -qw fs.inotify.max_user_instances=1024
  fi
}

# daemon PROGRAM ARG...: runs it on the host, its output in the log folder.
daemon() {
  local name
  name=$(basename "$1")
  setsid "$@" </dev/null >"$RUN/log/$name.log" 2>&1 &
  record "$name" $!
  disown
}

start_api() {
  daemon "$1/etcd" --data-dir="$RUN/etcd" --unsafe-no-fsync --log-level=warn \
    --listen-client-urls="$ETCD" --advertise-client-urls="$ETCD" \
    --listen-peer-urls="$ETCD_PEER" --initial-advertise-peer-urls="$ETCD_PEER" --initial-cluster=default="$ETCD_PEER"
  daemon "$1/kube-apiserver" --etcd-servers="$ETCD" --bind-address="$NET.1" --advertise-address="$NET.1" --secure-port=6443 \
    --service-cluster-ip-range="$SVC.0.0/16" --allow-privileged=true \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
    --tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key" --client-ca-file="$PKI/ca.crt" \
    --kubelet-preferred-address-types=InternalIP --kubelet-certificate-authority="$PKI/ca.crt" \
    --kubelet-client-certificate="$PKI/apiserver-kubelet-client.crt" --kubelet-client-key="$PKI/apiserver-kubelet-client.key" \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local \
    --service-account-key-file="$PKI/sa.pub" --service-account-signing-key-file="$PKI/sa.key" \
    --requestheader-client-ca-file="$PKI/front-proxy-ca.crt" --requestheader-allowed-names=front-proxy-client \
    --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
    --requestheader-extra-headers-prefix=X-Remote-Extra- \
    --proxy-client-cert-file="$PKI/front-proxy-client.crt" --proxy-client-key-file="$PKI/front-proxy-client.key"
}

start_controllers() {
  local name
  for name in kube-controller-manager kube-scheduler; do
    local conf=$PKI/${name#kube-}.conf args=()
    if [ $name = kube-controller-manager ]; then
      args=(--use-service-account-credentials --service-account-private-key-file="$PKI/sa.key" --root-ca-file="$PKI/ca.crt"
        --cluster-signing-cert-file="$PKI/ca.crt" --cluster-signing-key-file="$PKI/ca.key"
        --client-ca-file="$PKI/ca.crt" --requestheader-client-ca-file="$PKI/front-proxy-ca.crt")
    fi
    daemon "$1/$name" --kubeconfig="$conf" --authentication-kubeconfig="$conf" --authorization-kubeconfig="$conf" \
      --bind-address=127.0.0.1 --leader-elect=false "${args[@]}"
  done
}

# import_images NODES: the cluster's own images into every node.
import_images() {
  local i f
  for i in $(seq "$1"); do
    wait_for "containerd of node$i" 60 in_node "$i" ctr version
    for f in "$(images)"/*.tar; do load_image "$i" "$f"; done
  done
}

# wait_for WHAT SECONDS CMD...: until CMD succeeds; gives up after SECONDS or when a process of the cluster has ended.
wait_for() {
  local what=$1 until=$((SECONDS + $2)) f
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $until ] || die "gave up waiting for $what: see $RUN/log"
    for f in "$RUN"/pids/*; do
      alive "$(basename "$f")" >/dev/null || die "$(basename "$f") ended while waiting for $what: see $RUN/log"
    done
    sleep 0.2
  done
}

api_ready() { curl -sf --max-time 2 --cacert "$PKI/ca.crt" --cert "$PKI/admin.crt" --key "$PKI/admin.key" "$API/readyz"; }

kubectl() { KUBECONFIG=$PKI/admin.conf "$(cat "$RUN/lkube")/kubectl" "$@"; }

cluster_status() {
  local f name
  [ -e "$RUN/nodes" ] || { echo "no cluster"; return 1; }
  for f in "$RUN"/pids/*; do
    name=$(basename "$f")
    printf '%-24s %s\n' "$name" "$(alive "$name" || echo down)"
  done
  kubectl get nodes -o wide
}
