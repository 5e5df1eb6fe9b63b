package testport

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

const child = "TRIBUTARY_TEST_PORTS"

func TestMain(m *testing.M) {
	if os.Getenv(child) == "" {
		os.Exit(m.Run())
	}
	for range 200 {
		port, err := Take()
		fmt.Println(port, err)
	}
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // holds them until it is told to end
}

// Processes that take ports at once get different ones, which can be listened on.
func TestTake(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := map[string]bool{}
	see := func(port string) {
		mu.Lock()
		defer mu.Unlock()
		if seen[port] {
			t.Errorf("port %s is handed out twice", port)
		}
		seen[port] = true
	}
	var all, read sync.WaitGroup
	for range 4 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), child+"=1")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		read.Add(1)
		all.Go(func() {
			lines := bufio.NewScanner(out)
			for range 200 {
				if !lines.Scan() {
					t.Error("a process ended early")
					break
				}
				port, failed, _ := strings.Cut(lines.Text(), " ")
				if failed != "<nil>" {
					t.Error(failed)
				}
				see(port)
			}
			read.Done()
			read.Wait() // all hold theirs until all have some
			_ = in.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	for range 200 {
		address, err := TakeAddress()
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(address)
		see(port)
		_ = l.Close()
	}
	all.Wait()
}
