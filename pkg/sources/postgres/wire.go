package postgres

import (
	"encoding/binary"
	"fmt"
	"io"
)

const (
	readBuffer = 256 << 10
	// maxMessage is above what PostgreSQL can send for one row: a field is at
	// most 1 GiB, and so is the buffer that it builds a message in.
	maxMessage = 1<<30 + 1<<16
)

// frames cuts a connection's bytes into protocol messages without copying
// them. Until a caller turns to next, pgconn's frontend reads through Read,
// which never hands out a byte past the current message: so the two can take
// turns on one connection.
type frames struct {
	r      io.Reader
	buf    []byte
	rp, wp int   // buf[rp:wp] has been read from r and not been handed out
	left   int   // bytes of the current message that Read has still to hand out
	read   int64 // bytes read from r in all
}

func newFrames(r io.Reader) *frames { return &frames{r: r, buf: make([]byte, readBuffer)} }

// Read implements io.Reader for pgconn.
func (f *frames) Read(p []byte) (int, error) {
	if f.left == 0 {
		size, err := f.size()
		if err != nil {
			return 0, err
		}
		f.left = size
	}
	if f.rp == f.wp {
		if err := f.fill(1); err != nil {
			return 0, err
		}
	}
	n := copy(p, f.buf[f.rp:min(f.wp, f.rp+f.left)])
	f.rp += n
	f.left -= n
	return n, nil
}

// size returns the size of the message at rp, with its header.
func (f *frames) size() (int, error) {
	if err := f.fill(5); err != nil {
		return 0, err
	}
	n := int(binary.BigEndian.Uint32(f.buf[f.rp+1:]))
	if n < 4 || n > maxMessage {
		return 0, fmt.Errorf("the server sent a message of type %q that claims %d bytes: this is not PostgreSQL's protocol", f.buf[f.rp], n)
	}
	return n + 1, nil
}

// fill reads until n bytes are buffered. After an error it can be called again.
func (f *frames) fill(n int) error {
	if f.rp == f.wp {
		f.rp, f.wp = 0, 0
	}
	if n <= readBuffer {
		f.release()
	}
	if f.wp-f.rp >= n {
		return nil
	}
	if len(f.buf)-f.rp < n {
		if len(f.buf) < n {
			bigger := make([]byte, max(n, 2*len(f.buf)))
			f.wp = copy(bigger, f.buf[f.rp:f.wp])
			f.buf = bigger
		} else {
			f.wp = copy(f.buf, f.buf[f.rp:f.wp])
		}
		f.rp = 0
	}
	for f.wp-f.rp < n {
		m, err := f.r.Read(f.buf[f.wp:])
		f.wp += m
		f.read += int64(m)
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// release gives back what a large message took that is over. What next has
// returned is not valid any more.
func (f *frames) release() {
	if f.rp < f.wp {
		return
	}
	if f.rp, f.wp = 0, 0; len(f.buf) > 4*readBuffer {
		f.buf = make([]byte, readBuffer)
	}
}

// next returns a message; body is valid until the next call, and the caller may
// alter it. After a timeout it can be called again.
func (f *frames) next() (typ byte, body []byte, err error) {
	size, err := f.size()
	if err != nil {
		return 0, nil, err
	}
	if err := f.fill(size); err != nil {
		return 0, nil, err
	}
	typ, body = f.buf[f.rp], f.buf[f.rp+5:f.rp+size:f.rp+size]
	f.rp += size
	return typ, body, nil
}

// buffered says whether next can answer without reading from the connection.
func (f *frames) buffered() bool {
	have := f.wp - f.rp
	if have < 5 {
		return false
	}
	return have >= int(binary.BigEndian.Uint32(f.buf[f.rp+1:]))+1
}
