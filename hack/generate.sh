#!/bin/bash
# generate.sh: makes every generated file again: Go of the wire protocol, deepcopy functions, CRDs and their page, the page of metrics, RBAC, the chart's CRDs.
# generate.sh --check: fails when a generated file is not what its source says; changes nothing.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "$(readlink -f "$0")")/lib.sh"
cd "$ROOT"

generate() {
  "$ROOT/hack/tool" buf generate
  "$ROOT/hack/tool" controller-gen object paths=./api/... crd paths=./api/... output:crd:dir=config/crd/bases
  if grep -rqs '+kubebuilder:rbac' controllers; then
    "$ROOT/hack/tool" controller-gen rbac:roleName=manager-role paths=./controllers/... output:rbac:dir=config/rbac
  fi
  go run ./hack/apidocs config/crd/bases docs/resources.md
  go run ./hack/metricsdocs docs/metrics.md controllers internal pkg
  if [ -d charts/tributary/files/crds ]; then
    rm -f charts/tributary/files/crds/*
    cp config/crd/bases/*.yaml charts/tributary/files/crds/
    cp config/rbac/role.yaml charts/tributary/files/role.yaml
  fi
}

# check: generates in a copy of the working tree (without what Git ignores), and compares.
check() {
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  mkdir "$scratch/there"
  git ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' f; do [ ! -e "$f" ] || printf '%s\0' "$f"; done |
    tar -cf - --null -T - | tar -C "$scratch/there" -xf -
  cp -r "$scratch/there" "$scratch/generated"
  "$scratch/generated/hack/generate.sh"
  (cd "$scratch" && diff -ru there generated) ||
    die "generated files are not up to date (the lines with + are missing, those with - are too many); run: make generate"
}

case ${1:-} in
  '') generate ;;
  --check) check ;;
  *) die "usage: hack/generate.sh [--check]" ;;
esac
