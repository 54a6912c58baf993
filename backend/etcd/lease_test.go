package etcd

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/go-coord/coord/backend/internal/contact"
)

// keeper is a server that the test plays: it answers keep-alives after a while, or never.
type keeper struct {
	pb.LeaseClient
	grpc.ClientStream
	ctx    context.Context
	sent   []time.Time
	answer func(n int) time.Duration // to the keep-alive with this index; negative: never
	asked  chan int
}

func (k *keeper) LeaseKeepAlive(ctx context.Context, _ ...grpc.CallOption) (pb.Lease_LeaseKeepAliveClient, error) {
	k.ctx = ctx
	return k, nil
}

func (k *keeper) Send(*pb.LeaseKeepAliveRequest) error {
	k.sent = append(k.sent, time.Now())
	k.asked <- len(k.sent) - 1
	return nil
}

func (k *keeper) Recv() (*pb.LeaseKeepAliveResponse, error) {
	after := k.answer(<-k.asked)
	if after < 0 {
		<-k.ctx.Done()
		return nil, context.Cause(k.ctx)
	}
	contact.Sleep(k.ctx, nil, after)
	return &pb.LeaseKeepAliveResponse{TTL: 12}, nil
}

// The link breaks when a renewal has been without an answer for half the lease, and not at the next
// renewal after that.
func TestALinkBreaksWhenARenewalHasNoAnswerForHalfTheLease(t *testing.T) {
	const timeout = 12 * time.Second
	for _, test := range []struct {
		name    string
		lease   time.Duration
		answers []time.Duration // to the first keep-alives; the next one has none
		slept   time.Duration   // of the machine, at the time of the latest keep-alive
		sends   []time.Duration
		breaks  time.Duration
	}{
		{"never", 8 * time.Second, nil, 0, []time.Duration{0}, 4 * time.Second},
		{"at once", 8 * time.Second, []time.Duration{0, 0, 0}, 0, []time.Duration{0, 1500 * time.Millisecond, 3 * time.Second, 4500 * time.Millisecond}, 8500 * time.Millisecond},
		{"soon", 8 * time.Second, []time.Duration{time.Second}, 0, []time.Duration{0, 1500 * time.Millisecond}, 5500 * time.Millisecond},
		{"late", 8 * time.Second, []time.Duration{2 * time.Second}, 0, []time.Duration{0, 2 * time.Second}, 6 * time.Second},
		{"at once, and the lease is much shorter than the timeout", time.Second, []time.Duration{0, 0}, 0, []time.Duration{0, 250 * time.Millisecond, 500 * time.Millisecond}, time.Second},
		{"at once, and the machine slept for more than half the lease", 8 * time.Second, []time.Duration{100 * time.Millisecond}, 5 * time.Second, []time.Duration{0, 100 * time.Millisecond}, 4100 * time.Millisecond},
		{"never, and the machine slept", 8 * time.Second, nil, 2 * time.Second, []time.Duration{0}, 2 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clock, begun := contact.Clock(), time.Now()
				k := &keeper{asked: make(chan int, 1)}
				now := func() contact.Instant {
					at := clock()
					if len(k.sent) > 0 {
						at.Wall += test.slept
					}
					return at
				}
				k.answer = func(n int) time.Duration {
					if n < len(test.answers) {
						return test.answers[n]
					}
					return -1
				}
				s := &session{now: now, servers: contact.NewServers([]string{"a"}, nil, timeout)}
				s.Life = contact.NewLife(now, s.end)
				s.Grant(timeout, contact.Lease{From: now(), Length: test.lease})
				l := &link{leases: k}
				l.ctx, l.cancel = context.WithCancelCause(t.Context())
				l.work.Add(1)
				go s.keepAlive(l)
				<-l.ctx.Done()
				if took := time.Since(begun); took != test.breaks {
					t.Errorf("the link breaks after %v, want %v", took, test.breaks)
				}
				l.work.Wait()
				if len(k.sent) != len(test.sends) {
					t.Fatalf("%d renewals, want %d", len(k.sent), len(test.sends))
				}
				for n, at := range k.sent {
					if after := at.Sub(begun); after != test.sends[n] {
						t.Errorf("renewal %d after %v, want %v", n, after, test.sends[n])
					}
				}
			})
		})
	}
}

// The server ends the connection in good order before the stream of the keep-alives begins. The link takes no more
// requests, and is not broken.
func TestTheStreamOfKeepAlivesIsNotSent(t *testing.T) {
	l := &link{leases: spentLeases{}, leaving: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancelCause(t.Context())
	l.work.Add(1)
	new(session).keepAlive(l)
	if !l.isLeaving() || l.reason() != nil {
		t.Errorf("leaving: %t, %v", l.isLeaving(), l.reason())
	}
}

type spentLeases struct{ pb.LeaseClient }

func (spentLeases) LeaseKeepAlive(context.Context, ...grpc.CallOption) (pb.Lease_LeaseKeepAliveClient, error) {
	return nil, status.Error(codes.Unavailable, "connection error: "+errSpent.Error())
}
