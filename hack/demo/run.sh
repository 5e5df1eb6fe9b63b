#!/bin/bash
# run.sh: the main job on a cluster, from nothing to a summary: the operator from the chart, PostgreSQL, a topology of four
# nodes in three levels (config/samples), writes at the source, a parent killed, rows compared. Ends with 1 when they differ.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "$(readlink -f "$0")")/../lib.sh"
cd "$ROOT"

NS=demo
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

say "1. Build the operator and the node"
env=$(hack/testdeps e2e)
eval "$env"
need_packages jq
make images build
say "2. A Kubernetes cluster"
hack/cluster.sh is-up || trap 'say "Cleaning up"; hack/cluster.sh down' EXIT # a cluster that was up stays up
hack/cluster.sh up
hack/cluster.sh load dist/images/*.tar
KUBECONFIG=$(hack/cluster.sh kubeconfig)
export KUBECONFIG
PATH=$(hack/tool envtest-assets):$PATH
k() { kubectl -n $NS "$@"; }

say "3. The operator, from the chart"
hack/tool helm upgrade --install tributary charts/tributary --namespace tributary-system --create-namespace \
  -f hack/demo/values.yaml --wait --timeout 3m >/dev/null
kubectl -n tributary-system get deployments

say "4. PostgreSQL with 1,000 orders"
kubectl create namespace $NS --dry-run=client -o yaml | kubectl apply -f - >/dev/null
k apply -f hack/demo/postgres.yaml >/dev/null
k wait --for=condition=Ready pod/postgres --timeout=180s >/dev/null
sql() { k exec -i postgres -- psql -X -q -At -v ON_ERROR_STOP=1 -U postgres -d shop; }
until echo 'SELECT 1' | k exec -i postgres -- psql -X -q -At -U postgres -d postgres >/dev/null 2>&1; do sleep 1; done
echo 'CREATE DATABASE shop' | k exec -i postgres -- psql -X -q -U postgres -d postgres
sql <<'S'
CREATE TABLE orders (id bigint PRIMARY KEY, customer int, total numeric(12,2), note text);
INSERT INTO orders SELECT i, i % 100, i / 7.0, 'order ' || i FROM generate_series(1, 1000) i;
S

say "5. kubectl apply: four nodes in three levels"
if kubectl get storageclass -o json | jq -e '.items[] | select(.metadata.annotations["storageclass.kubernetes.io/is-default-class"] == "true")' >/dev/null; then
  k apply -k config/samples
else
  echo "this cluster has no default StorageClass: the relay tree of config/samples, whose nodes have volumes, is left out"
  for kind in postgressource fanoutsource replicationnode replicationmesh; do k apply -f "config/samples/tributary_v1alpha1_$kind.yaml"; done
fi
k wait --for=condition=Ready replicationnodes --all --timeout=180s >/dev/null || { k get tributary; die "the topology did not become ready"; }
k get tributary
bin/tributary tree -n $NS

# pod NODE: its first pod that runs; api POD PATH: its HTTP port, by way of the API server
pod() { k get pods -l "app.kubernetes.io/instance=$1" --field-selector=status.phase=Running -o jsonpath='{.items[0].metadata.name}'; }
api() { k get --raw "/api/v1/namespaces/$NS/pods/$1:8080/proxy/$2"; }
parent() { api "$(pod edge)" statusz | jq -r '.sources[0].parent.id // "none"'; }

say "6. Writes at the source for 20 s; meanwhile the edge's parent is killed"
(
  for i in $(seq 40); do
    echo "INSERT INTO orders SELECT 1000 + $i * 100 + j, j, j / 3.0, 'new ' || j FROM generate_series(0, 99) j;
      UPDATE orders SET total = total + 1 WHERE id % 10 = $i % 10;
      DELETE FROM orders WHERE id % 97 = $i;"
    sleep 0.5
  done | sql
) &
writer=$!
sleep 4
before=$(parent)
name=${before#*/}
echo "the edge reads from $before; killing that node (its Deployment is held at zero for a while)"
kubectl -n tributary-system scale deployment --all --replicas=0 >/dev/null # nobody brings it back: the edge is on its own
k scale deployment "$name" --replicas=0 >/dev/null
k delete pod "$(pod "$name")" --grace-period=0 --force >/dev/null 2>&1
after=$before
for _ in $(seq 100); do
  after=$(parent)
  [ "$after" = "$before" ] || [ "$after" = none ] || break
  sleep 0.1
done
if [ "$after" = "$before" ] || [ "$after" = none ]; then die "the edge did not move to another parent"; fi
echo "the edge moved to $after by itself, without the operator"
kubectl -n tributary-system scale deployment --all --replicas=1 >/dev/null
wait $writer

say "7. The operator is back, and brings the killed node back"
kubectl -n tributary-system rollout status deployment --timeout=120s >/dev/null
for _ in $(seq 60); do
  k wait --for=condition=Ready replicationnodes --all --timeout=5s >/dev/null 2>&1 && [ -n "$(pod "$name")" ] && break
  sleep 1
done
bin/tributary tree -n $NS

say "8. Summary"
digest() { sort | sha256sum | cut -c1-16; }
source_rows() { echo "SELECT id || '|' || customer || '|' || total || '|' || note FROM orders" | sql; }
node_rows() { api "$1" "v1/tables/public.orders/rows?limit=10000" | jq -r '.rows[] | "\(.id)|\(.customer)|\(.total|tostring)|\(.note)"'; }
written=$(source_rows | wc -l)
# jq may print numbers shorter than they are: compare totals as numbers on both sides
norm() { awk -F'|' '{printf "%s|%s|%.2f|%s\n", $1, $2, $3, $4}'; }
want=$(source_rows | norm | digest)
printf '%-12s %8s  %-16s  %s\n' "" ROWS DIGEST LAG
printf '%-12s %8s  %-16s\n' PostgreSQL "$written" "$want"
failed=
for node in root eu us edge; do
  p=$(pod "$node") got='' rows=0
  for _ in $(seq 60); do
    got=$(node_rows "$p" | norm | digest)
    [ "$got" != "$want" ] || break
    sleep 0.5
  done
  rows=$(node_rows "$p" | wc -l)
  lag=$(api "$p" statusz | jq -r '.logs[0] | if .lagKnown then "\(.lagSeconds) s" else "unknown" end')
  printf '%-12s %8s  %-16s  %s\n' "$node" "$rows" "$got" "$lag"
  [ "$got" = "$want" ] || failed="$failed $node"
done
[ -z "$failed" ] || die "these nodes do not have what the source has:$failed"
say "Every node has the $written rows of the source."
