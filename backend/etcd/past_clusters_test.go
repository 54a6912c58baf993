package etcd

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord/backend/internal/contact"
	"github.com/go-coord/coord/internal/outbox"
)

// Open asks the other endpoint for its cluster. The dial of that request returns when release is closed, and Close
// must not return before. After synctest.Wait all goroutines are blocked: a Close that did not wait has returned by then.
func TestClose_WaitsForTheComparisonOfClusters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		cfg := &config{
			lookup: func(context.Context, string) ([]netip.Addr, error) { return nil, nil },
			dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				<-release
				return nil, ctx.Err()
			},
		}
		servers := contact.NewServers([]string{"127.0.0.1:1", "127.0.0.1:2"}, nil, time.Second)
		s := &session{cfg: cfg, log: outbox.NewLogger(nil), bare: true, servers: servers}
		s.Life, s.hub = contact.NewLife(contact.Clock(), s.end), newHub(s)
		l := &link{target: servers.Targets()[0], cluster: 1, raw: nowhere{}}
		l.ctx, l.cancel = context.WithCancelCause(t.Context())
		s.link = l
		if err := s.oneCluster(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		closed := make(chan struct{})
		go func() { defer close(closed); s.Close() }()
		synctest.Wait()
		if l.reason() == nil {
			t.Error("this tests nothing: the link is not broken")
		}
		select {
		case <-closed:
			t.Error("Close has returned during the comparison")
		default:
		}
		close(release)
		<-closed
	})
}
