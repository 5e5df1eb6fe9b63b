package pgsession_test

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/pgsession"
)

// Who waits for a connection is woken by what the mark says, at the end of the
// connection, and when the mark falls.
func TestLowWater(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	here, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	there, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	type read struct {
		n   int
		err error
	}
	wait := func() <-chan read {
		_ = here.SetReadDeadline(time.Now().Add(time.Second))
		c := make(chan read, 1)
		go func() {
			n, err := here.Read(make([]byte, 4096))
			c <- read{n, err}
		}()
		time.Sleep(20 * time.Millisecond) // it waits by now
		return c
	}
	send := func(n int) {
		if _, err := there.Write(make([]byte, n)); err != nil {
			t.Fatal(err)
		}
	}
	mark := pgsession.NewLowWater(here)
	mark.Raise(1000)
	got := wait()
	send(10)
	if r := <-got; !errors.Is(r.err, os.ErrDeadlineExceeded) {
		t.Errorf("10 bytes of 1000 woke: %+v", r)
	}
	_ = here.SetReadDeadline(time.Now().Add(time.Second))
	if n, err := here.Read(make([]byte, 4096)); n != 10 || err != nil {
		t.Errorf("what has come cannot be read: %d, %v", n, err)
	}
	got = wait()
	send(1000)
	if r := <-got; r.n != 1000 {
		t.Errorf("1000 bytes did not wake: %+v", r)
	}
	got = wait()
	send(10)
	time.Sleep(20 * time.Millisecond)
	mark.Lower()
	if r := <-got; r.n != 10 {
		t.Errorf("the falling mark did not wake: %+v", r)
	}
	mark.Raise(1000)
	got = wait()
	_ = there.Close()
	if r := <-got; r.n != 0 || errors.Is(r.err, os.ErrDeadlineExceeded) {
		t.Errorf("the end did not wake: %+v", r)
	}
}
