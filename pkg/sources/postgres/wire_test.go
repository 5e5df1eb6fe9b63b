package postgres

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"testing"

	"pgregory.net/rapid"
)

// chunks gives bytes in pieces, with timeouts between some of them.
type chunks struct {
	t    *rapid.T
	data []byte
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.data) == 0 {
		return 0, io.EOF
	}
	if rapid.IntRange(0, 9).Draw(c.t, "timeout") == 0 {
		return 0, os.ErrDeadlineExceeded
	}
	n := min(len(p), len(c.data), rapid.IntRange(1, 3*readBuffer).Draw(c.t, "chunk"))
	copy(p, c.data[:n])
	c.data = c.data[n:]
	return n, nil
}

// Messages of any size, read in any pieces, first through Read and then by
// next, come whole and in order, and a timeout loses nothing.
func TestFrames(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var stream []byte
		var sizes []int
		for range rapid.IntRange(1, 12).Draw(t, "messages") {
			size := rapid.OneOf(rapid.IntRange(0, 40), rapid.IntRange(0, 5*readBuffer)).Draw(t, "size")
			sizes = append(sizes, size)
			stream = append(stream, 'd')
			stream = binary.BigEndian.AppendUint32(stream, uint32(size+4))
			stream = append(stream, bytes.Repeat([]byte{byte(len(sizes))}, size)...)
		}
		f := newFrames(&chunks{t, stream})
		byRead := rapid.IntRange(0, len(sizes)).Draw(t, "by Read")
		for i, size := range sizes {
			var body []byte
			if i < byRead {
				body = make([]byte, size+5)
				for n := 0; n < len(body); {
					m, err := f.Read(body[n:])
					if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
						t.Fatal(err)
					}
					n += m
				}
				body = body[5:]
			} else {
				for {
					had := f.buffered()
					typ, b, err := f.next()
					if err == nil {
						if typ != 'd' {
							t.Fatalf("type %q", typ)
						}
						body = b
						break
					}
					if had || !errors.Is(err, os.ErrDeadlineExceeded) {
						t.Fatalf("buffered: %t, %v", had, err)
					}
				}
			}
			if len(body) != size || bytes.Count(body, []byte{byte(i + 1)}) != size {
				t.Fatalf("message %d: %d bytes, want %d", i, len(body), size)
			}
		}
		if _, _, err := f.next(); !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("at the end: %v", err)
		}
	})
}

// Read never hands out a byte of the next message: it stays for next.
func TestFramesReadStopsAtAMessage(t *testing.T) {
	t.Parallel()
	f := newFrames(bytes.NewReader([]byte("Z\x00\x00\x00\x05Id\x00\x00\x00\x04")))
	buf := make([]byte, 100)
	n, err := f.Read(buf)
	if err != nil || string(buf[:n]) != "Z\x00\x00\x00\x05I" {
		t.Fatalf("%q, %v", buf[:n], err)
	}
	if typ, body, err := f.next(); err != nil || typ != 'd' || len(body) != 0 {
		t.Fatalf("%q %q %v", typ, body, err)
	}
}

func TestFramesRefusesOtherProtocols(t *testing.T) {
	t.Parallel()
	for _, head := range []string{"HTTP/1.1 400", "d\x00\x00\x00\x03x", "d\xff\xff\xff\xffx"} {
		if _, _, err := newFrames(bytes.NewReader([]byte(head))).next(); err == nil {
			t.Errorf("%q is taken as a message", head)
		}
	}
}
