# shellcheck shell=bash
# Makes OCI archives without Docker. Sourced by lc.

make_images() { make_once "$(images)" "the cluster's images" cluster_images; }

# The images that every node imports when it starts.
cluster_images() {
  local dir=$1 bin applet links=()
  bin=$(mkimage)
  for applet in $(busybox --list); do
    [ "$applet" = busybox ] || links+=("@busybox:/bin/$applet")
  done
  "$bin/mkimage" -o "$dir/pause.tar" -t localhost/tributary/pause:1 -u 65535:65535 "$bin/pause:/pause" -- /pause >&2
  "$bin/mkimage" -o "$dir/busybox.tar" -t localhost/tributary/busybox:1 \
    "$(command -v busybox):/bin/busybox" "${links[@]}" -- /bin/sh >&2
  "$bin/mkimage" -o "$dir/coredns.tar" -t localhost/tributary/coredns:1 "$(coredns)/coredns:/coredns" -- /coredns >&2
}

# postgres_archive: where the PostgreSQL image is kept; named by the installed version and what it is made by.
postgres_archive() {
  local v
  v=$(dpkg-query -W -f '${Version}' postgresql-15) || die "postgresql-15 is not installed; run: hack/testdeps"
  echo "$CACHE/localcluster/postgres-$v-$(hash_of "$LC/images/postgres" "$LC/lib/images.sh" "$LC/src/mkimage")/postgres.tar"
}

make_postgres_image() {
  local archive
  archive=$(postgres_archive)
  make_once "$(dirname "$archive")" "the PostgreSQL image" postgres_image
  echo "$archive"
}

# postgres_image DIR: Debian's PostgreSQL 15, the libraries it needs, and busybox for a shell. Without the JIT
# compiler: it would triple the size, and PostgreSQL does without.
postgres_image() {
  local out=$1 root=$1/root pg=/usr/lib/postgresql/15 loader
  mkdir -p "$root"/{bin,etc,tmp,usr/bin,var/lib/postgresql,run/postgresql,var/run}
  (cd / && cp -a --parents usr/lib/postgresql/15/{bin,lib} usr/share/postgresql/15 usr/share/zoneinfo usr/lib/locale/C.utf8 "$root")
  rm -rf "$root$pg"/lib/{bitcode,llvmjit*,pgxs}
  # each library by the name the loader asks for it, wherever the link points
  find "$root$pg" -type f \( -perm -u+x -o -name '*.so' \) -exec ldd {} + 2>/dev/null |
    awk '$2 == "=>" && $3 ~ /^\// {print $3} $1 ~ /^\/lib/ {print $1}' | sort -u |
    while read -r lib; do install -D -m 755 "$lib" "$root$lib"; done
  loader=$(find "$root" -name 'ld-linux*.so.*' | head -1)
  [ -n "$loader" ] || die "found no dynamic loader for $pg/bin/postgres"
  cp "$(command -v busybox)" "$root/bin/busybox"
  for applet in $(busybox --list); do [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"; done
  for program in "$root$pg"/bin/*; do ln -s "$pg/bin/$(basename "$program")" "$root/usr/bin/"; done
  printf 'root:x:0:0:root:/:/bin/sh\npostgres:x:999:999:PostgreSQL:/var/lib/postgresql:/bin/sh\n' >"$root/etc/passwd"
  printf 'root:x:0:\npostgres:x:999:\n' >"$root/etc/group"
  printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
  chmod 1777 "$root"/{tmp,var/lib/postgresql,run/postgresql}
  ln -s /run/postgresql "$root/var/run/postgresql"
  install -m 755 "$LC/images/postgres/entrypoint" "$root/entrypoint"
  tar -C "$root" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf "$out/root.tar" .
  "$(mkimage)/mkimage" -rootfs "$out/root.tar" -o "$out/postgres.tar" -t localhost/tributary/postgres:15 -u 999:999 \
    -w /var/lib/postgresql -e LANG=C.UTF-8 -e PGDATA=/var/lib/postgresql/data -p 5432/tcp -stop-signal SIGINT -- /entrypoint >&2
  rm -rf "$root" "$out/root.tar"
}
