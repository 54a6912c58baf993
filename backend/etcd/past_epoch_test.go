package etcd

import (
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

// The service was restored from a backup and has compacted the revisions that the session has seen. The session
// key has an earlier epoch than the session has begun, which shows it.
func TestEtcd_AnEarlierEpochIsAnotherHistory(t *testing.T) {
	for version, lost := range map[int64]bool{2: true, 3: false, 4: false} {
		s := &session{cfg: &config{}, key: "p:session/1", epoch: 3, relinked: make(chan struct{}), servers: contact.NewServers([]string{"a"}, nil, time.Second)}
		s.Life, s.hub = contact.NewLife(contact.Clock(), s.end), newHub(s)
		s.past.put = trace{"p//n", 10}
		l := &link{kv: answering{txn: func(r *pb.TxnRequest) (*pb.TxnResponse, error) {
			if len(r.Success) > 1 {
				return nil, rpctypes.ErrGRPCCompacted
			}
			own := &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{{Key: []byte(s.key), Version: version, ModRevision: 5}}}
			return &pb.TxnResponse{Header: &pb.ResponseHeader{Revision: 20}, Succeeded: true, Responses: []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponseRange{ResponseRange: own}}}}, nil
		}}}
		if err := s.same(t.Context(), l); errors.Is(err, backend.ErrSessionLost) != lost || !lost && err != nil || (s.Ended() != nil) != lost {
			t.Errorf("epoch %d after epoch 3: %v, the session: %v", version, err, s.Ended())
		}
	}
}
