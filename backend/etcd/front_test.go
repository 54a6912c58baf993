package etcd_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
)

// front is a member of a cluster that is sick in a way of its own: it passes on what it is not told to keep.
type front struct {
	addr  string
	conns atomic.Int64
	cc    *grpc.ClientConn
	srv   *grpc.Server

	mu      sync.Mutex
	hangs   func(method string, body []byte) bool           // requests that get no answer
	drops   func(method string, body []byte) bool           // messages of the server
	rewrite func(method string, body []byte) (other []byte) // of the server
	delay   func(method string, body []byte)                // runs before a request is passed on
	hung    int
	seen    map[string]int
}

func newFront(t *testing.T, server string, o ...grpc.ServerOption) *front {
	t.Helper()
	cc, err := dial(server, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})))
	if err != nil {
		t.Fatal(err)
	}
	f := &front{cc: cc, seen: make(map[string]int)}
	f.srv = grpc.NewServer(append(o, grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(f.handle))...)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.addr = l.Addr().String()
	go f.srv.Serve(countedListener{l, &f.conns})
	t.Cleanup(func() { f.srv.Stop(); cc.Close() })
	return f
}

type countedListener struct {
	net.Listener
	conns *atomic.Int64
}

func (l countedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.conns.Add(1)
	}
	return c, err
}

// sick changes what the front does. It returns how many requests it has left without an answer before.
func (f *front) sick(hangs, drops func(method string, body []byte) bool) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hangs, f.drops = hangs, drops
	return f.hung
}

func (f *front) count(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[method]
}

func (f *front) handle(_ any, in grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(in)
	md, _ := metadata.FromIncomingContext(in.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(in.Context(), md))
	defer cancel()
	out, err := f.cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	go func() {
		for {
			var body []byte
			if in.RecvMsg(&body) != nil {
				out.CloseSend()
				return
			}
			f.mu.Lock()
			f.seen[method]++
			hang := f.hangs != nil && f.hangs(method, body)
			if hang {
				f.hung++
			}
			f.mu.Unlock()
			if hang {
				return
			}
			f.mu.Lock()
			delay := f.delay
			f.mu.Unlock()
			if delay != nil {
				delay(method, body)
			}
			if out.SendMsg(&body) != nil {
				return
			}
		}
	}()
	for {
		var body []byte
		if err := out.RecvMsg(&body); err != nil {
			return end(err)
		}
		f.mu.Lock()
		drop := f.drops != nil && f.drops(method, body)
		if f.rewrite != nil {
			body = f.rewrite(method, body)
		}
		f.mu.Unlock()
		if drop {
			continue
		}
		if err := in.SendMsg(&body); err != nil {
			return err
		}
	}
}

// Ways of being sick.
func isRequest(method string, _ []byte) bool { return kvMethods[method] }

func isReadOnly(method string, body []byte) bool {
	return isRequest(method, body) && !isWrite(method, body)
}

func isAWrite(method string, body []byte) bool {
	return isRequest(method, body) && isWrite(method, body)
}

func isOfWatches(method string, _ []byte) bool { return method == "/etcdserverpb.Watch/Watch" }

var kvMethods = map[string]bool{
	"/etcdserverpb.KV/Txn": true, "/etcdserverpb.KV/Range": true, "/etcdserverpb.KV/DeleteRange": true, "/etcdserverpb.KV/Put": true,
}

// oldVersion makes a server one of a version whose progress replies are not in order.
func oldVersion(method string, body []byte) []byte {
	if method != "/etcdserverpb.Maintenance/Status" {
		return body
	}
	var r pb.StatusResponse
	if r.Unmarshal(body) != nil {
		return body
	}
	r.Version = "3.4.23"
	body, _ = r.Marshal()
	return body
}

// openAtFronts opens a session at a server with two fronts. It returns the front that the session uses
// first.
func openAtFronts(t *testing.T, o etcd.Options, change func(*front)) (s backend.Session, used, other *front) {
	t.Helper()
	used, other = newFront(t, shared.get(t)), newFront(t, shared.get(t))
	if change != nil {
		change(used)
		change(other)
	}
	s = open(t, etcd.New([]string{used.addr, other.addr}, &o))
	if used.count("/etcdserverpb.Lease/LeaseGrant") == 0 {
		used, other = other, used
	}
	return s, used, other
}
