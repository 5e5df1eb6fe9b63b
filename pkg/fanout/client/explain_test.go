package client

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// What accepts connections and says nothing has not spoken another protocol: a peer that
// hangs, or a network that holds what is sent, is tried again like one that is away.
func TestSilentUpstream(t *testing.T) {
	t.Parallel()
	lis, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts; the kernel does
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	conn, err := grpc.NewClient("passthrough:///"+lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 100 * time.Millisecond}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	err = (&Config{}).explain("up:7400", conn.Invoke(t.Context(), "/a.B/C", nil, nil), time.Second)
	var se *engine.SourceError
	if !errors.As(err, &se) || se.Reason != engine.ReasonDisconnected || se.Permanent || !strings.Contains(err.Error(), "says nothing") {
		t.Errorf("%+v", err)
	}
}
