package etcd

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/go-coord/coord/backend/internal/contact"
)

// played is a server that the test plays.
type played struct {
	pb.KVClient
	pb.LeaseClient
	txn    func(*pb.TxnRequest) (*pb.TxnResponse, error)
	revoke func(id int64) error
	grants int
}

func (p *played) Txn(_ context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	return p.txn(r)
}

func (p *played) LeaseRevoke(_ context.Context, r *pb.LeaseRevokeRequest, _ ...grpc.CallOption) (*pb.LeaseRevokeResponse, error) {
	return &pb.LeaseRevokeResponse{}, p.revoke(r.ID)
}

func (p *played) LeaseGrant(context.Context, *pb.LeaseGrantRequest, ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
	p.grants++
	return nil, errors.New("no lease")
}

// linkTo returns a link to a server that the test plays.
func linkTo(t *testing.T, p *played) *link {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///nowhere", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	l := &link{cc: cc, kv: p, leases: p, wake: make(chan struct{}, 1)}
	l.ctx, l.cancel = context.WithCancelCause(t.Context())
	return l
}

// An error is definite only if the server says so before it runs a request. A proxy, a server that is
// stopping and gRPC itself answer with any other code, and the server can have run the request.
func TestDoubt_OfAnErrorOfAnyCode(t *testing.T) {
	s := &session{cfg: &config{}}
	l := linkTo(t, new(played))
	definite := map[codes.Code]bool{
		codes.InvalidArgument: true, codes.PermissionDenied: true, codes.OutOfRange: true,
		codes.ResourceExhausted: true, codes.FailedPrecondition: true, codes.NotFound: true,
	}
	for code := codes.Code(1); code <= 20; code++ {
		want := unknown
		if definite[code] {
			want = refused
		}
		if got := s.judge(l, status.Error(code, "the text of another program")); got != want {
			t.Errorf("%v: %d, want %d", code, got, want)
		}
	}
	for _, err := range []error{
		io.EOF, io.ErrUnexpectedEOF, context.Canceled, context.DeadlineExceeded, errBroken,
		rpctypes.ErrGRPCTimeout, rpctypes.ErrGRPCTimeoutDueToLeaderFail, rpctypes.ErrGRPCTimeoutDueToConnectionLost, rpctypes.ErrGRPCTimeoutWaitAppliedIndex,
		rpctypes.ErrGRPCStopped, rpctypes.ErrGRPCNoLeader, rpctypes.ErrGRPCLeaderChanged, rpctypes.ErrGRPCUnhealthy, rpctypes.ErrGRPCCorrupt,
	} {
		if got := s.judge(l, err); got != unknown {
			t.Errorf("%v: %d, want %d", err, got, unknown)
		}
	}
}

// While an epoch begins, another commit loses its reply. The epoch may have begun before that commit
// reached the server, so it settles only the earlier ones.
func TestDoubt_ANewerOneIsNotSettledByAnEarlierEpoch(t *testing.T) {
	s := &session{cfg: &config{}, key: "session", settler: make(chan struct{}, 1)}
	p := new(played)
	p.txn = func(*pb.TxnRequest) (*pb.TxnResponse, error) {
		s.doubt("newer")
		return &pb.TxnResponse{Succeeded: true}, nil
	}
	l := linkTo(t, p)
	s.doubt("older")
	if err := s.settle(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if !s.inDoubt() || !slices.Equal(s.unsure, []string{"newer"}) {
		t.Errorf("in doubt: %t, about %q", s.inDoubt(), s.unsure)
	}
	p.txn = func(r *pb.TxnRequest) (*pb.TxnResponse, error) {
		if n := len(r.Success); n != 2 || string(r.Success[1].GetRequestDeleteRange().GetKey()) != "newer" {
			t.Errorf("the next epoch has %v", r.Success)
		}
		return &pb.TxnResponse{Succeeded: true}, nil
	}
	if err := s.settle(t.Context(), l); err != nil || s.inDoubt() || len(s.unsure) > 0 {
		t.Errorf("%v, in doubt: %t, about %q", err, s.inDoubt(), s.unsure)
	}
}

// The lease of a lost session may live on the servers, and commits of it may be on their way. The next
// session of the backend begins only when that lease is over for certain.
func TestOpen_FailsAsLongAsAnOldLeaseMayLive(t *testing.T) {
	for _, test := range []struct {
		err  error
		ends bool
	}{
		{rpctypes.ErrGRPCLeaseNotFound, true},
		{nil, true},
		{rpctypes.ErrGRPCTimeout, false},
		{status.Error(codes.NotFound, "the text of another program"), false},
		{status.Error(codes.Unavailable, "closed"), false},
	} {
		c := &config{times: contact.Times{Timeout: 10 * time.Second}}
		c.lost.Add(7)
		c.lost.Add(8)
		p := &played{revoke: func(id int64) error {
			if id == 8 {
				return test.err
			}
			return nil
		}}
		s := &session{cfg: c, now: contact.Clock()}
		err := s.openAt(t.Context(), linkTo(t, p))
		if err == nil || (p.grants == 1) != test.ends || !test.ends && !errors.Is(err, test.err) {
			t.Errorf("%v: %v, %d leases requested", test.err, err, p.grants)
		}
		left := 0
		if err := c.lost.End(func(int64) error { left++; return nil }); err != nil || left != map[bool]int{true: 0, false: 1}[test.ends] {
			t.Errorf("%v: %d leases are not known to be over", test.err, left)
		}
	}
}
