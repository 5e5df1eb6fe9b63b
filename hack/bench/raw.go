package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// Raw readers take frames off the wire and look at no more of them than what
// counts the changes, so that what is measured is the server.

// rawCodec passes frames as bytes.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case []byte:
		return mem.BufferSlice{mem.SliceBuffer(m)}, nil
	case proto.Message:
		b, err := proto.Marshal(m)
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	}
	return nil, fmt.Errorf("cannot send a %T", v)
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*rawFrame)
	if !ok {
		return fmt.Errorf("cannot receive a %T", v)
	}
	f.size = data.Len()
	if f.keep || f.size < 1024 {
		f.data = data.Materialize()
		return nil
	}
	// Enough for a batch's header: its fields come before the payload.
	n := 0
	f.data = append(f.data[:0], make([]byte, 256)...)
	for _, b := range data {
		if n += copy(f.data[n:], b.ReadOnlyData()); n == len(f.data) {
			break
		}
	}
	return nil
}

// rawFrame is a frame, or the beginning of one.
type rawFrame struct {
	keep bool
	data []byte
	size int
}

// batch returns the number of changes of a Batch frame.
func (f *rawFrame) batch() (changes uint64, ok bool) {
	num, typ, n := protowire.ConsumeTag(f.data)
	if num != 8 || typ != protowire.BytesType {
		return 0, false
	}
	p := f.data[n:]
	_, n = protowire.ConsumeVarint(p)
	for p = p[max(n, 0):]; len(p) > 0; {
		num, typ, n := protowire.ConsumeTag(p)
		if n < 0 || num == 15 {
			break
		}
		p = p[n:]
		if num == 7 {
			changes, _ = protowire.ConsumeVarint(p)
		}
		if n = protowire.ConsumeFieldValue(num, typ, p); n < 0 {
			break
		}
		p = p[n:]
	}
	return changes, true
}

// rawFrames are batches that were read.
type rawFrames struct {
	frames [][]byte // if they were kept
	bytes  int64
}

// window is what a raw reader's connection may have under way.
const window = 4 << 20

func dialRaw(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(1<<30)))
}

var raws struct {
	sync.Mutex
	n int
}

// readRaw reads a log from a position until it has so many changes.
func readRaw(ctx context.Context, address string, log engine.LogID, from engine.Position, changes int, keep bool) (*rawFrames, error) {
	conn, err := dialRaw(address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, wirepb.Replication_Session_FullMethodName)
	if err != nil {
		return nil, err
	}
	raws.Lock()
	raws.n++
	id := fmt.Sprintf("bench/raw-%d", raws.n)
	raws.Unlock()
	for _, f := range []*wirepb.Frame{
		{Kind: &wirepb.Frame_Hello{Hello: &wirepb.Hello{
			MinVersion: session.MinVersion, Version: session.Version, NodeId: id, Capabilities: []string{session.CapOriginCursors},
		}}},
		{Kind: &wirepb.Frame_Subscribe{Subscribe: &wirepb.Subscribe{
			Channel: 1, Log: &wirepb.LogID{Origin: log.Origin, Epoch: uint64(log.Epoch)}, Credit: 1 << 40,
			From: &wirepb.Subscribe_Cursor{Cursor: &wirepb.Cursor{Position: string(from)}},
		}}},
	} {
		if err := stream.SendMsg(f); err != nil {
			return nil, err
		}
	}
	out := &rawFrames{}
	f := &rawFrame{keep: keep}
	for got := 0; got < changes; {
		if err := stream.RecvMsg(f); err != nil {
			return nil, fmt.Errorf("a raw reader with %d of %d changes: %w", got, changes, err)
		}
		n, ok := f.batch()
		if !ok {
			continue
		}
		got += int(n)
		out.bytes += int64(f.size)
		if keep {
			out.frames = append(out.frames, f.data)
			f.data = nil
		}
	}
	return out, nil
}

// readAll runs many readers at once, and returns how long they took.
func readAll(ctx context.Context, n int, read func(context.Context) (*rawFrames, error)) (time.Duration, error) {
	g, ctx := errgroup.WithContext(ctx)
	start := time.Now()
	for range n {
		g.Go(func() error { _, err := read(ctx); return err })
	}
	err := g.Wait()
	return time.Since(start), err
}

// save writes the frames for serveBare.
func (r *rawFrames) save(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	for _, frame := range r.frames {
		if _, err := w.Write(binary.BigEndian.AppendUint32(nil, uint32(len(frame)))); err != nil {
			return err
		}
		if _, err := w.Write(frame); err != nil {
			return err
		}
	}
	return w.Flush()
}

const bareMethod = "/bench.Bare/Frames"

// serveBare sends the frames of a file to each caller, and prints its address.
func serveBare(ctx context.Context, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var frames [][]byte
	for len(data) > 0 {
		n := binary.BigEndian.Uint32(data)
		frames, data = append(frames, data[4:4+n]), data[4+n:]
	}
	s := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			for _, f := range frames {
				if err := stream.SendMsg(f); err != nil {
					return err
				}
			}
			return nil
		}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	return s.Serve(l)
}

// bareServer is serveBare in a process of its own, as a node is.
type bareServer struct {
	address string
	pid     int
	stop    func()
}

func startBare(ctx context.Context, path string) (*bareServer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-bare", path)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &bareServer{pid: cmd.Process.Pid, stop: func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		s.stop()
		return nil, err
	}
	s.address = strings.TrimSpace(line)
	return s, nil
}

// readBare reads what serveBare sends.
func readBare(ctx context.Context, address string) (*rawFrames, error) {
	conn, err := dialRaw(address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, bareMethod)
	if err != nil {
		return nil, err
	}
	out, f := &rawFrames{}, &rawFrame{}
	for {
		if err := stream.RecvMsg(f); err != nil {
			if errors.Is(err, io.EOF) {
				return out, nil
			}
			return nil, err
		}
		f.batch()
		out.bytes += int64(f.size)
	}
}
