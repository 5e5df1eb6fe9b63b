# shellcheck shell=bash
# Builds what the cluster is made of, from Go modules. Sourced by lc.

build_all() {
  command -v go >/dev/null || die "building the cluster needs Go in PATH"
  make_once "$(mkimage)" "mkimage and pause" build_mkimage
  make_once "$(lkube)" "Kubernetes" build_lkube
  make_once "$(coredns)" "CoreDNS" build_coredns
}

build_mkimage() {
  go_build "$LC/src/mkimage" "$1/mkimage" -ldflags '-s -w' .
  go_build "$LC/src/pause" "$1/pause" -ldflags '-s -w' .
}

# Kubernetes takes its version from the linker; the module's version is the truth.
build_lkube() {
  local v p=k8s.io/component-base/version program
  v=$(sed -n 's/^.*k8s.io\/kubernetes v\([0-9.]*\).*$/\1/p' "$LC/src/lkube/go.mod" | head -1)
  go_build "$LC/src/lkube" "$1/lkube" \
    -ldflags "-s -w -X $p.gitVersion=v$v -X $p.gitMajor=${v%%.*} -X $p.gitMinor=$(echo "$v" | cut -d. -f2)" .
  for program in etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl; do
    ln -s lkube "$1/$program"
  done
}

build_coredns() { go_build "$LC/src/coredns" "$1/coredns" -ldflags '-s -w' .; }
