//go:build linux

package etcd_test

import (
	"context"
	"net"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/zkproxy"
)

// line is a proxy of requests, behind one of bytes.
type line struct {
	ensemble.Requests
	requests *grpc.Server
	server   *grpc.ClientConn
	served   chan struct{}
}

func newLine(server string) (*line, error) {
	l := &line{served: make(chan struct{})}
	var err error
	if l.server, err = dial(server, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30))); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l.requests = grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(l.handle), grpc.MaxRecvMsgSize(1<<30), grpc.MaxSendMsgSize(1<<30))
	go func() {
		defer close(l.served)
		_ = l.requests.Serve(listener) // until Stop
	}()
	l.Proxy, err = zkproxy.NewRaw(listener.Addr().String())
	return l, err
}

func (l *line) Close() error {
	err := l.Proxy.Close()
	l.requests.Stop()
	<-l.served
	l.server.Close()
	return err
}

// frameOf returns a request as a frame of ZooKeeper.
func frameOf(method string, body []byte) zkproxy.Frame {
	f := zkproxy.Frame{Dir: zkproxy.Up, Opcode: zkproxy.OpMulti}
	switch method[strings.LastIndexByte(method, '/')+1:] {
	case "Status":
		f.Opcode = zkproxy.OpConnect
	case "LeaseGrant":
		f.Opcode = zkproxy.OpAuth // there is no session yet
	case "LeaseKeepAlive":
		f.Opcode = zkproxy.OpPing
	case "LeaseRevoke":
		f.Opcode = zkproxy.OpClose
	case "Range":
		f.Opcode = zkproxy.OpGetData
	case "Watch":
		f.Opcode = zkproxy.OpAuth
		var r pb.WatchRequest
		if r.Unmarshal(body) == nil && r.GetCreateRequest() != nil {
			f.Opcode = zkproxy.OpAddWatch
		}
	}
	return f
}

// handle passes one call on.
func (l *line) handle(_ any, client grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(client)
	md, _ := metadata.FromIncomingContext(client.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(client.Context(), md))
	defer cancel()
	server, err := l.server.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	pending := make(chan *ensemble.RequestFault, 1)       // the fault of the next reply
	go l.up(ctx, cancel, client, server, method, pending) // it ends with the call
	err = l.down(ctx, client, server, method, pending)
	select {
	case f := <-pending: // it gets no reply
		f.Arm()
	default:
	}
	return err
}

func (l *line) up(ctx context.Context, cancel func(), client grpc.ServerStream, server grpc.ClientStream, method string, pending chan *ensemble.RequestFault) {
	for {
		var body []byte
		if err := client.RecvMsg(&body); err != nil {
			_ = server.CloseSend() // the client sends nothing more
			return
		}
		frame := frameOf(method, body)
		l.Tell(frame)
		f := l.Claim(frame)
		switch {
		case f == nil:
		case f.What == zkproxy.DropRequest:
			l.Cut()
			cancel()
			f.Happened()
			return
		case f.What == zkproxy.HoldRequest:
			if !f.Hold(ctx.Done()) {
				return
			}
		default:
			pending <- f
		}
		if err := server.SendMsg(&body); err != nil {
			return // the other direction gets the error
		}
	}
}

func (l *line) down(ctx context.Context, client grpc.ServerStream, server grpc.ClientStream, method string, pending chan *ensemble.RequestFault) error {
	for {
		var body []byte
		err := server.RecvMsg(&body)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var f *ensemble.RequestFault
		select {
		case f = <-pending:
		default:
		}
		if err == nil && strings.HasSuffix(method, "/LeaseKeepAlive") {
			l.Tell(zkproxy.Frame{Dir: zkproxy.Down, Opcode: zkproxy.OpPing})
		}
		if err == nil && strings.HasSuffix(method, "/LeaseGrant") {
			var r pb.LeaseGrantResponse
			if r.Unmarshal(body) == nil {
				l.Tell(zkproxy.Frame{Dir: zkproxy.Down, Opcode: zkproxy.OpConnect, Session: r.ID})
			}
		}
		switch {
		case f == nil:
		case f.What == zkproxy.DropReply:
			l.Cut()
			f.Happened()
			return errLost
		case !f.Hold(ctx.Done()):
			return errLost
		}
		if err != nil {
			return end(err)
		}
		if err := client.SendMsg(&body); err != nil {
			return err
		}
	}
}
