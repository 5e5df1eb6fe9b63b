#!/bin/bash
# images.sh: packs the binaries of bin/ as OCI archives, dist/images/manager.tar and dist/images/node.tar, without Docker.
# They run as user 65532 and hold nothing but the program and the CA certificates of this machine.
set -euo pipefail
# shellcheck source=hack/localcluster/lib/env.sh
. "$(dirname "$(readlink -f "$0")")/localcluster/lib/env.sh"
# shellcheck source=hack/localcluster/lib/build.sh
. "$LC/lib/build.sh"
cd "$ROOT"
make_once "$(mkimage)" "mkimage and pause" build_mkimage
mkdir -p dist/images
for name in manager node; do
  [ -x "bin/$name" ] || die "bin/$name is missing; run: make images"
  files=("bin/$name:/$name")
  certificates=/etc/ssl/certs/ca-certificates.crt
  [ ! -e $certificates ] || files+=("$certificates:$certificates")
  "$(mkimage)/mkimage" -o "dist/images/$name.tar" -t "localhost/tributary/$name:dev" -u 65532:65532 "${files[@]}" -- "/$name"
done
