# shellcheck shell=bash
# What the scripts of hack/ share. Sourced, never run.
#
# Nothing is written into the source tree but bin/ and dist/: what is expensive to make is kept in
# $CACHE under a hash of what it is made from, and made only when it is missing.

shopt -s inherit_errexit # a command that fails in $(...) ends the script too

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/tributary

log() { printf '%s %s\n' "$(date +%T)" "$*" >&2; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# hash_of PATH...: twelve digits that change when a file in one of the paths does.
hash_of() {
  find "$@" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sed "s|$ROOT/||" | sha256sum | cut -c1-12
}

# need_packages PACKAGE...: installs the Debian packages that are missing.
need_packages() {
  local p missing=()
  for p in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "these Debian packages are needed and there is no apt-get to install them: ${missing[*]}"
  [ "$(id -u)" = 0 ] || die "these Debian packages are missing: run as root: apt-get install --no-install-recommends ${missing[*]}"
  log "installing Debian packages: ${missing[*]}"
  (
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null 2>&1 || {
      apt-get update -qq && apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
    }
  ) >&2 || die "apt-get could not install ${missing[*]}"
}

# make_once DIR WHAT FUNCTION ARG...: unless DIR exists, runs FUNCTION DIR.tmp ARG... and renames the result
# to DIR. Under one lock for everything: two large builds at once take longer than one after the other. Call it where
# `set -e` counts (not before || or in a condition): the first failure in FUNCTION ends the script.
make_once() {
  local dir=$1 what=$2 make=$3
  shift 3
  [ ! -d "$dir" ] || return 0
  mkdir -p "$CACHE"
  (
    set -e
    trap '[ $? = 0 ] || log "$what: failed"' EXIT
    flock -n 9 || { log "$what: waiting for another build to end"; flock 9; }
    [ ! -d "$dir" ] || exit 0
    rm -rf "$dir.tmp"
    mkdir -p "$dir.tmp"
    "$make" "$dir.tmp" "$@" 9>&-
    mv "$dir.tmp" "$dir"
  ) 9>"$CACHE/build.lock"
}

# go_build MODULE OUT [FLAG...] PACKAGE: builds a static binary, saying every 30 s how far it is.
go_build() {
  local module=$1 out=$2 name said start=$SECONDS stale pid
  shift 2
  name=$(basename "$out") said=$out.log
  cd "$module" || return 1
  export CGO_ENABLED=0 GOWORK=off GOFLAGS="-mod=readonly -buildvcs=false"
  log "$name: fetching modules"
  stale=$(go list -trimpath -deps -f '{{if .Stale}}{{.ImportPath}}{{end}}' "${@: -1}" 2>"$said" | grep -c .) ||
    { cat "$said" >&2; return 1; }
  log "$name: $stale packages to build$(expect "$stale")"
  go build -v -trimpath -o "$out" "$@" >"$said" 2>&1 &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.2
    if [ $((SECONDS - start)) -ge 30 ] && [ $(((SECONDS - start) % 30)) = 0 ]; then
      log "$name: $(grep -c . "$said") of $stale packages, $((SECONDS - start)) s"
      sleep 1
    fi
  done
  wait "$pid" || { grep -vxE '[[:alnum:]._~/-]+' "$said" >&2 || tail "$said" >&2; return 1; }
  rm "$said"
  log "$name: built in $((SECONDS - start)) s"
}

# expect STALE: about how long a build of that many packages takes on two idle cores.
expect() {
  [ "$1" -lt 100 ] || echo ", about $((($1 + 99) / 100)) minutes on two idle cores; once, then cached"
}
