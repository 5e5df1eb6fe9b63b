package controllers_test

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// cacheLag is how far the manager's cache is behind in these tests, always (K13).
const cacheLag = time.Second

// lagging delivers what watches say cacheLag late.
func lagging(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(r)
		if err == nil && r.URL.Query().Get("watch") != "" {
			resp.Body = newLate(resp.Body)
		}
		return resp, err
	})
}

// late is a body that is read cacheLag after it came.
type late struct {
	body   io.ReadCloser
	chunks chan chunk
	rest   []byte
	done   chan struct{}
	once   sync.Once
}

type chunk struct {
	data []byte
	err  error
	due  time.Time
}

func newLate(body io.ReadCloser) *late {
	l := &late{body: body, chunks: make(chan chunk, 4096), done: make(chan struct{})}
	go l.fill()
	return l
}

func (l *late) fill() {
	for {
		b := make([]byte, 32<<10)
		n, err := l.body.Read(b)
		select {
		case l.chunks <- chunk{b[:n], err, time.Now().Add(cacheLag)}:
		case <-l.done:
			return
		}
		if err != nil {
			return
		}
	}
}

// Read implements io.Reader.
func (l *late) Read(p []byte) (int, error) {
	if len(l.rest) == 0 {
		select {
		case c := <-l.chunks:
			select {
			case <-time.After(time.Until(c.due)):
			case <-l.done:
				return 0, io.ErrClosedPipe
			}
			if l.rest = c.data; c.err != nil {
				l.chunks <- chunk{err: c.err} // for the next read
				if len(c.data) == 0 {
					return 0, c.err
				}
			}
		case <-l.done:
			return 0, io.ErrClosedPipe
		}
	}
	n := copy(p, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

// Close implements io.Closer.
func (l *late) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.body.Close()
}
