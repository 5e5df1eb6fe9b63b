// mkimage writes an OCI image archive (single layer, no daemon, stdlib only).
//
//	mkimage -o out.tar -t localhost/app:dev [-u 65532] [-e K=V]... [-w /dir] [-p 8080/tcp]... \
//	        [-stop-signal SIGINT] [-rootfs rootfs.tar] [src:dst]... -- /entrypoint arg...
//
// Each src:dst adds a file or a whole directory. Output is deterministic
// (fixed mtimes, sorted), so the same input gives the same digest.
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"time"
)

type multi []string

func (m *multi) String() string     { return strings.Join(*m, ",") }
func (m *multi) Set(s string) error { *m = append(*m, s); return nil }

func die(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		os.Exit(1)
	}
}

func digest(b []byte) string { s := sha256.Sum256(b); return "sha256:" + hex.EncodeToString(s[:]) }

var epoch = time.Unix(0, 0).UTC()

func main() {
	var env, expose multi
	out := flag.String("o", "image.tar", "output archive")
	tag := flag.String("t", "", "image name:tag")
	user := flag.String("u", "", "user (uid[:gid])")
	wd := flag.String("w", "/", "working directory")
	stop := flag.String("stop-signal", "", "signal that ends the program (default SIGTERM)")
	rootfs := flag.String("rootfs", "", "base rootfs tar (e.g. from mmdebstrap)")
	flag.Var(&env, "e", "environment K=V (repeatable)")
	flag.Var(&expose, "p", "exposed port, e.g. 8080/tcp (repeatable)")
	args, entry := os.Args[1:], []string(nil)
	for i, a := range args {
		if a == "--" {
			args, entry = args[:i], args[i+1:]
			break
		}
	}
	die(flag.CommandLine.Parse(args))
	adds := flag.Args()
	if *tag == "" {
		die(fmt.Errorf("-t is required"))
	}
	var layer bytes.Buffer
	tw := tar.NewWriter(&layer)
	seen := map[string]bool{}
	mkdirs := func(p string) {
		p = strings.Trim(path.Dir("/"+p), "/")
		if p == "" {
			return
		}
		cur := ""
		for _, c := range strings.Split(p, "/") {
			cur = path.Join(cur, c)
			if !seen[cur] {
				seen[cur] = true
				die(tw.WriteHeader(&tar.Header{Name: cur + "/", Typeflag: tar.TypeDir, Mode: 0o755, ModTime: epoch}))
			}
		}
	}
	if *rootfs != "" {
		f, err := os.Open(*rootfs)
		die(err)
		tr := tar.NewReader(f)
		for {
			h, err := tr.Next()
			if err == io.EOF {
				break
			}
			die(err)
			n := strings.Trim(path.Clean("/"+h.Name), "/")
			if n == "" || strings.HasPrefix(n, "dev/") {
				continue
			}
			if h.Typeflag == tar.TypeDir {
				seen[n] = true
			}
			die(tw.WriteHeader(h))
			_, err = io.Copy(tw, tr)
			die(err)
		}
		f.Close()
	} else {
		// a minimal root: /tmp, /etc/passwd, /etc/group
		for _, d := range []struct {
			n string
			m int64
		}{{"etc", 0o755}, {"tmp", 0o1777}} {
			seen[d.n] = true
			die(tw.WriteHeader(&tar.Header{Name: d.n + "/", Typeflag: tar.TypeDir, Mode: d.m, ModTime: epoch}))
		}
		for _, f := range [][2]string{
			{"etc/group", "root:x:0:\nnonroot:x:65532:\n"},
			{"etc/passwd", "root:x:0:0:root:/:/bin/sh\nnonroot:x:65532:65532:nonroot:/tmp:/bin/sh\n"},
			{"etc/nsswitch.conf", "hosts: files dns\n"},
		} {
			die(tw.WriteHeader(&tar.Header{Name: f[0], Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(f[1])), ModTime: epoch}))
			_, err := tw.Write([]byte(f[1]))
			die(err)
		}
	}
	for _, a := range adds {
		src, dst, ok := strings.Cut(a, ":")
		if !ok {
			die(fmt.Errorf("want src:dst, got %q", a))
		}
		if rest, isLink := strings.CutPrefix(src, "@"); isLink { // @target:/link = symlink
			n := strings.Trim(dst, "/")
			mkdirs(n)
			die(tw.WriteHeader(&tar.Header{Name: n, Linkname: rest, Typeflag: tar.TypeSymlink, Mode: 0o777, ModTime: epoch}))
			continue
		}
		var files []string
		die(filepath.WalkDir(src, func(p string, d fs.DirEntry, err error) error {
			if err == nil && (!d.IsDir() || p != src) {
				files = append(files, p)
			}
			return err
		}))
		sort.Strings(files)
		for _, p := range files {
			rel, _ := filepath.Rel(src, p)
			n := strings.Trim(path.Join(dst, rel), "/")
			fi, err := os.Lstat(p)
			die(err)
			link := ""
			if fi.Mode()&os.ModeSymlink != 0 {
				link, err = os.Readlink(p)
				die(err)
			}
			if fi.IsDir() {
				if seen[n] {
					continue
				}
				seen[n] = true
			}
			mkdirs(n)
			h, err := tar.FileInfoHeader(fi, link)
			die(err)
			h.Name, h.Uid, h.Gid, h.Uname, h.Gname = n, 0, 0, "", ""
			h.ModTime, h.AccessTime, h.ChangeTime = epoch, time.Time{}, time.Time{}
			if fi.IsDir() {
				h.Name += "/"
			}
			die(tw.WriteHeader(h))
			if fi.Mode().IsRegular() {
				f, err := os.Open(p)
				die(err)
				_, err = io.Copy(tw, f)
				die(err)
				f.Close()
			}
		}
	}
	die(tw.Close())
	lb := layer.Bytes()
	ld := digest(lb)

	type obj = map[string]any
	cfg := obj{"Entrypoint": entry, "WorkingDir": *wd,
		"Env": append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, env...)}
	if *user != "" {
		cfg["User"] = *user
	}
	if *stop != "" {
		cfg["StopSignal"] = *stop
	}
	if len(expose) > 0 {
		ep := obj{}
		for _, p := range expose {
			ep[p] = obj{}
		}
		cfg["ExposedPorts"] = ep
	}
	cb, _ := json.Marshal(obj{"architecture": runtime.GOARCH, "os": "linux", "created": "1970-01-01T00:00:00Z", "config": cfg,
		"rootfs":  obj{"type": "layers", "diff_ids": []string{ld}},
		"history": []obj{{"created": "1970-01-01T00:00:00Z", "created_by": "mkimage"}}})
	mb, _ := json.Marshal(obj{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": obj{"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(cb), "size": len(cb)},
		"layers": []obj{{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": ld, "size": len(lb)}}})
	_, ref, _ := strings.Cut(*tag, ":")
	ib, _ := json.Marshal(obj{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
		"manifests": []obj{{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest(mb), "size": len(mb),
			"platform":    obj{"architecture": runtime.GOARCH, "os": "linux"},
			"annotations": obj{"io.containerd.image.name": *tag, "org.opencontainers.image.ref.name": ref}}}})

	f, err := os.Create(*out)
	die(err)
	ow := tar.NewWriter(f)
	put := func(n string, b []byte) {
		die(ow.WriteHeader(&tar.Header{Name: n, Mode: 0o644, Size: int64(len(b)), ModTime: epoch}))
		_, err := ow.Write(b)
		die(err)
	}
	put("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	put("index.json", ib)
	blob := func(b []byte) { put("blobs/sha256/"+strings.TrimPrefix(digest(b), "sha256:"), b) }
	blob(lb)
	blob(cb)
	blob(mb)
	die(ow.Close())
	die(f.Close())
	fmt.Printf("%s %s %d bytes\n", *tag, digest(mb), len(lb))
}
