#!/bin/bash
# cluster.sh: a cluster for the end-to-end tests and the demo, whatever this machine has.
#
#   E2E_KUBECONFIG=FILE     a cluster of yours; E2E_IMAGE_LOAD=CMD is run as CMD ARCHIVE to bring it an image
#   kind                    when kind is installed and Docker answers
#   hack/localcluster       otherwise (Debian, root)
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "$(readlink -f "$0")")/lib.sh"
LC=$ROOT/hack/localcluster/lc
KIND_KUBECONFIG=$CACHE/kind.conf

usage() {
  cat <<'U'
usage: hack/cluster.sh COMMAND

  deps             install what the cluster needs and is missing
  is-up            succeeds when there is one already
  up [NODES]       start it, or use the one that is up; bring it the PostgreSQL image
  load ARCHIVE...  bring it images
  kubeconfig       print the path of its kubeconfig
  dump             print what a person needs to see why something does not work
  down             stop it; nothing is done to a cluster of yours
U
}

if [ -n "${E2E_KUBECONFIG:-}" ]; then
  kind=yours
elif command -v kind >/dev/null && docker info >/dev/null 2>&1; then
  kind=kind
else
  kind=local
fi
kubectl() { KUBECONFIG=$("$0" kubeconfig) "$("$ROOT/hack/tool" envtest-assets)/kubectl" "$@"; }

# The PostgreSQL that the tests and the demo put into the cluster: from Docker's library where there is Docker.
docker_postgres() {
  docker build -q -t localhost/tributary/postgres:15 - >/dev/null <<'D'
FROM postgres:15
USER postgres
CMD ["postgres", "-c", "wal_level=logical", "-c", "max_replication_slots=20", "-c", "max_wal_senders=20"]
D
}

up_yours() {
  local archive
  kubectl version >/dev/null || die "the cluster of E2E_KUBECONFIG=$E2E_KUBECONFIG does not answer"
  [ -n "${E2E_IMAGE_LOAD:-}" ] || return 0
  archive=$("$LC" images postgres)
  load_yours "$archive"
}
load_yours() {
  [ -n "${E2E_IMAGE_LOAD:-}" ] || die "set E2E_IMAGE_LOAD to a command that brings an image archive to your cluster"
  for archive in "$@"; do $E2E_IMAGE_LOAD "$archive"; done
}

kind_is_up() { kind get clusters 2>/dev/null | grep -qx tributary; }
up_kind() {
  local nodes
  if ! kind_is_up; then
    nodes=$(for _ in $(seq 2 "$1"); do echo '- role: worker'; done)
    printf 'kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes:\n- role: control-plane\n%s\n' "$nodes" |
      kind create cluster --name tributary --kubeconfig "$KIND_KUBECONFIG" --wait 180s --config -
  fi
  docker_postgres
  kind load docker-image --name tributary localhost/tributary/postgres:15
}
load_kind() { for archive in "$@"; do kind load image-archive --name tributary "$archive"; done; }

up_local() {
  local archive
  "$LC" status >/dev/null 2>&1 || "$LC" start "$1" >/dev/null
  archive=$("$LC" images postgres)
  "$LC" load "$archive"
}

dump() {
  kubectl get nodes -o wide
  kubectl get pods,services,statefulsets,deployments,replicationnodes,postgressources,fanoutsources,archivesources,archiveexports,replicationmeshes,relaytrees -A -o wide
  kubectl get events -A --sort-by=.lastTimestamp | tail -60
  kubectl get pods -A --no-headers -o custom-columns=:.metadata.namespace,:.metadata.name |
    while read -r namespace pod; do
      [ "$namespace" != kube-system ] || continue
      echo "--- logs of $namespace/$pod"
      kubectl -n "$namespace" logs "$pod" --all-containers --tail=60 </dev/null
      kubectl -n "$namespace" logs "$pod" --all-containers --tail=30 --previous </dev/null 2>/dev/null
    done
}

command=${1:---help}
[ $# = 0 ] || shift
case $command-$kind in
  deps-local) "$LC" deps; "$LC" build ;;
  deps-*) ;;
  is-up-yours) ;;
  is-up-kind) kind_is_up ;;
  is-up-local) "$LC" status >/dev/null 2>&1 ;;
  up-*) "up_$kind" "${1:-1}" ;;
  load-local) "$LC" load "$@" ;;
  load-*) "load_$kind" "$@" ;;
  kubeconfig-yours) echo "$E2E_KUBECONFIG" ;;
  kubeconfig-kind) echo "$KIND_KUBECONFIG" ;;
  kubeconfig-local) "$LC" kubeconfig ;;
  dump-*) set +e; dump 2>&1 ;;
  down-yours) ;;
  down-kind) kind delete cluster --name tributary --kubeconfig "$KIND_KUBECONFIG" ;;
  down-local) "$LC" stop ;;
  -h-* | --help-* | help-*) usage ;;
  *) usage >&2; die "no such command: $command" ;;
esac
