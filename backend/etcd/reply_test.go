package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
)

// damage changes a message of the server. It reports false if it does not apply to the message.
type damage func(method string, body []byte) ([]byte, bool)

func damageTxn(f func(r *pb.TxnResponse) bool) damage {
	return func(method string, body []byte) ([]byte, bool) {
		var r pb.TxnResponse
		if method != "/etcdserverpb.KV/Txn" || r.Unmarshal(body) != nil || !f(&r) {
			return body, false
		}
		body, _ = r.Marshal()
		return body, true
	}
}

// damagePair changes the pairs of a range in a transaction.
func damagePair(f func(r *pb.RangeResponse)) damage {
	return damageTxn(func(r *pb.TxnResponse) bool {
		for _, op := range r.Responses {
			if kvs := op.GetResponseRange(); kvs != nil && len(kvs.Kvs) > 0 {
				f(kvs)
				return true
			}
		}
		return false
	})
}

func damageWatch(f func(r *pb.WatchResponse) bool) damage {
	return func(method string, body []byte) ([]byte, bool) {
		var r pb.WatchResponse
		if method != "/etcdserverpb.Watch/Watch" || r.Unmarshal(body) != nil || !f(&r) {
			return body, false
		}
		body, _ = r.Marshal()
		return body, true
	}
}

func damageEvent(f func(e *mvccpb.Event)) damage {
	return damageWatch(func(r *pb.WatchResponse) bool {
		if len(r.Events) > 0 {
			f(r.Events[0])
		}
		return len(r.Events) > 0
	})
}

func damageRenewal(f func(r *pb.LeaseKeepAliveResponse)) damage {
	return func(method string, body []byte) ([]byte, bool) {
		var r pb.LeaseKeepAliveResponse
		if method != "/etcdserverpb.Lease/LeaseKeepAlive" || r.Unmarshal(body) != nil {
			return body, false
		}
		f(&r)
		body, _ = r.Marshal()
		return body, true
	}
}

var anotherResponse = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: &pb.TxnResponse{}}}

// The damages that a session must notice.
var damages = map[string]damage{
	"txn: no header":        damageTxn(func(r *pb.TxnResponse) bool { r.Header = nil; return true }),
	"txn: no revision":      damageTxn(func(r *pb.TxnResponse) bool { r.Header.Revision = 0; return true }),
	"txn: huge revision":    damageTxn(func(r *pb.TxnResponse) bool { r.Header.Revision = math.MaxInt64; return true }),
	"txn: no responses":     damageTxn(func(r *pb.TxnResponse) bool { r.Responses = nil; return true }),
	"txn: a response less":  damageTxn(func(r *pb.TxnResponse) bool { r.Responses = r.Responses[1:]; return true }),
	"txn: a response more":  damageTxn(func(r *pb.TxnResponse) bool { r.Responses = append(r.Responses, anotherResponse); return true }),
	"txn: another response": damageTxn(func(r *pb.TxnResponse) bool { r.Responses[0] = anotherResponse; return true }),
	"txn: empty response":   damageTxn(func(r *pb.TxnResponse) bool { r.Responses[0] = &pb.ResponseOp{}; return true }),
	"txn: other responses": damageTxn(func(r *pb.TxnResponse) bool {
		for i := range r.Responses {
			r.Responses[i] = anotherResponse
		}
		return true
	}),
	"pair: negative count": damagePair(func(r *pb.RangeResponse) { r.Count = -1 }),
	"pair: huge count":     damagePair(func(r *pb.RangeResponse) { r.Count = math.MaxInt64 }),
	"pair: another key":    damagePair(func(r *pb.RangeResponse) { r.Kvs[0].Key = []byte("x") }),
	"pair: no key":         damagePair(func(r *pb.RangeResponse) { r.Kvs[0].Key = nil }),
	"pair: empty":          damagePair(func(r *pb.RangeResponse) { r.Kvs[0] = &mvccpb.KeyValue{} }),
	"pair: twice":          damagePair(func(r *pb.RangeResponse) { r.Kvs = append(r.Kvs, &mvccpb.KeyValue{}) }),
	"pair: no version":     damagePair(func(r *pb.RangeResponse) { r.Kvs[0].Version = 0 }),
	"pair: of the future":  damagePair(func(r *pb.RangeResponse) { r.Kvs[0].ModRevision = math.MaxInt64 }),
	"pair: born later":     damagePair(func(r *pb.RangeResponse) { r.Kvs[0].CreateRevision = r.Kvs[0].ModRevision + 1 }),

	"watch: no header":             damageWatch(func(r *pb.WatchResponse) bool { r.Header = nil; return len(r.Events) == 0 && !r.Created }),
	"watch: events without header": damageWatch(func(r *pb.WatchResponse) bool { r.Header = nil; return len(r.Events) > 0 }),
	"watch: made without header":   damageWatch(func(r *pb.WatchResponse) bool { r.Header = nil; return r.Created }),
	"watch: negative revision":     damageWatch(func(r *pb.WatchResponse) bool { r.Header.Revision = -1; return true }),
	"event: no pair":               damageEvent(func(e *mvccpb.Event) { e.Kv = nil }),
	"event: no key":                damageEvent(func(e *mvccpb.Event) { e.Kv.Key = nil }),
	"event: another key":           damageEvent(func(e *mvccpb.Event) { e.Kv.Key = []byte("x") }),
	"event: no revision":           damageEvent(func(e *mvccpb.Event) { e.Kv.ModRevision = 0 }),
	"event: another type":          damageEvent(func(e *mvccpb.Event) { e.Type = 7 }),

	"renewal: another lease": damageRenewal(func(r *pb.LeaseKeepAliveResponse) { r.ID++ }),
	"renewal: shorter":       damageRenewal(func(r *pb.LeaseKeepAliveResponse) { r.TTL-- }),
}

// One message of the server is damaged. The session gives up the connection, and no call is wrong.
func TestEtcd_DamagedReplyBreaksTheLink(t *testing.T) {
	t.Parallel()
	for name, f := range damages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			done := make(chan struct{})
			armed := false
			sick := newFront(t, shared.get(t))
			sick.rewrite = func(method string, body []byte) []byte {
				if !armed {
					return body
				}
				body, did := f(method, body)
				if did {
					armed = false
					close(done)
				}
				return body
			}
			o := &etcd.Options{SessionTimeout: 10 * time.Second, Prefix: fresh("damage-" + strings.ReplaceAll(name, " ", "-"))}
			s := open(t, etcd.New([]string{sick.addr}, o))
			commit(t, s, backend.Create("/d", nil, backend.Persistent), backend.Create("/d/a", nil, backend.Persistent))
			tree := backend.NewTreeWatch(100)
			defer tree.Stop()
			if err := s.WatchTree(t.Context(), "/d", tree); err != nil {
				t.Fatal(err)
			}
			sick.mu.Lock()
			armed = true
			sick.mu.Unlock()
			// A commit may be uncertain, and nothing else may be wrong.
			version := int32(-1)
			for n := 0; ; n++ {
				_, err := s.Commit(t.Context(), backend.SetData("/d/a", []byte{byte(n)}, backend.AnyVersion))
				uncertain := errors.Is(err, backend.ErrUncertain)
				if err != nil && !uncertain {
					t.Fatal(err)
				}
				w := backend.NewWatch()
				_, stat, err := s.Get(t.Context(), "/d/a", w)
				w.Stop()
				if err != nil || stat.Version < version || stat.Version == version && !uncertain {
					t.Fatalf("round %d: version %d after %d, %v", n, stat.Version, version, err)
				}
				version = stat.Version
				names, _, err := s.Children(t.Context(), "/d", nil)
				if err != nil || len(names) != 1 || names[0] != "a" {
					t.Fatalf("children: %q, %v", names, err)
				}
				select {
				case <-done:
				default:
					continue
				}
				break
			}
			for sick.conns.Load() < 2 && t.Context().Err() == nil {
				if _, err := s.Exists(t.Context(), "/d", nil); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// oddEtcd is a server that sends what etcd does not.
type oddEtcd struct {
	pb.UnimplementedKVServer
	pb.UnimplementedLeaseServer
	pb.UnimplementedWatchServer
	pb.UnimplementedMaintenanceServer
	ttl    int64
	grants atomic.Int32
	txns   atomic.Int32
	cancel func() // called with the second grant
}

func (f *oddEtcd) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	return &pb.StatusResponse{Header: &pb.ResponseHeader{}, Leader: 1, Version: "3.6.0"}, nil
}

func (f *oddEtcd) LeaseGrant(context.Context, *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	if f.grants.Add(1) == 2 && f.cancel != nil {
		defer f.cancel()
	}
	return &pb.LeaseGrantResponse{ID: 7, TTL: f.ttl}, nil
}

func (f *oddEtcd) Txn(context.Context, *pb.TxnRequest) (*pb.TxnResponse, error) {
	f.txns.Add(1)
	return nil, errLost
}

// A lease of no length, or of one that overflows, is none of a session.
func TestEtcd_LeaseOfAnImpossibleLengthIsRefused(t *testing.T) {
	t.Parallel()
	for _, ttl := range []int64{0, -1, math.MinInt64, 1 << 40, 1 << 62, math.MaxInt64} {
		t.Run(fmt.Sprint(ttl), func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			srv, f := grpc.NewServer(), &oddEtcd{ttl: ttl, cancel: cancel}
			pb.RegisterKVServer(srv, f)
			pb.RegisterLeaseServer(srv, f)
			pb.RegisterWatchServer(srv, f)
			pb.RegisterMaintenanceServer(srv, f)
			go srv.Serve(l)
			defer srv.Stop()
			_, err = etcd.New([]string{l.Addr().String()}, nil).Open(ctx)
			if !errors.Is(err, context.Canceled) || f.grants.Load() < 2 || f.txns.Load() > 0 {
				t.Errorf("Open: %v, after %d leases; %d requests with one", err, f.grants.Load(), f.txns.Load())
			}
		})
	}
	t.Run("shorter than the margin", func(t *testing.T) {
		t.Parallel()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		srv, f := grpc.NewServer(), &oddEtcd{ttl: 3}
		pb.RegisterLeaseServer(srv, f)
		pb.RegisterMaintenanceServer(srv, f)
		go srv.Serve(l)
		defer srv.Stop()
		o := &etcd.Options{SessionTimeout: 10 * time.Second, LossMargin: 4 * time.Second}
		if _, err := etcd.New([]string{l.Addr().String()}, o).Open(t.Context()); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("Open: %v", err)
		}
	})
}
