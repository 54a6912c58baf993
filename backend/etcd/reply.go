package etcd

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Not everything that speaks the protocol is an etcd: proxies, emulators and other versions answer too. So
// each reply is checked against its request before anything reads it. An unexpected reply breaks the link,
// and a commit that got it is uncertain. The rest of the package relies on what checkReply and checkWatch
// have found.

var errReply = errors.New("etcd: the server sent an invalid reply")

func unexpected(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errReply, fmt.Sprintf(format, args...))
}

// maxRevision is the largest revision from which a sequence number can be made.
const maxRevision = math.MaxInt64/places - 1

// checkReply reports a reply that does not fit its request.
func checkReply(req, reply any) error {
	switch q := req.(type) {
	case *pb.TxnRequest:
		r := reply.(*pb.TxnResponse)
		if err := checkHeader(r.Header); err != nil {
			return err
		}
		ops := q.Failure
		if r.Succeeded {
			ops = q.Success
		}
		if len(r.Responses) != len(ops) {
			return unexpected("%d responses to %d operations", len(r.Responses), len(ops))
		}
		for i, op := range ops {
			if err := checkResponse(op, r.Responses[i], r.Header.Revision); err != nil {
				return err
			}
			if q := op.GetRequestRange(); q != nil && len(q.RangeEnd) == 0 && puts(ops[:i], q.Key) && len(r.Responses[i].GetResponseRange().Kvs) == 0 {
				return unexpected("no value of a key that was put")
			}
		}
	case *pb.RangeRequest:
		r := reply.(*pb.RangeResponse)
		if err := checkHeader(r.Header); err != nil {
			return err
		}
		return checkRange(q, r, r.Header.Revision)
	case *pb.DeleteRangeRequest:
		r := reply.(*pb.DeleteRangeResponse)
		if err := checkHeader(r.Header); err != nil {
			return err
		}
		return checkDeletion(r)
	case *pb.LeaseGrantRequest:
		return checkLease(reply.(*pb.LeaseGrantResponse))
	}
	return nil
}

func checkHeader(h *pb.ResponseHeader) error {
	switch {
	case h == nil:
		return unexpected("a reply without a header")
	case h.Revision <= 0 || h.Revision > maxRevision:
		return unexpected("revision %d", h.Revision)
	}
	return nil
}

// checkResponse reports a response of a transaction that does not fit its operation.
func checkResponse(op *pb.RequestOp, r *pb.ResponseOp, revision int64) error {
	switch q := op.Request.(type) {
	case *pb.RequestOp_RequestRange:
		return checkRange(q.RequestRange, r.GetResponseRange(), revision)
	case *pb.RequestOp_RequestPut:
		if r.GetResponsePut() == nil {
			return unexpected("a response of another type to a put")
		}
	case *pb.RequestOp_RequestDeleteRange:
		return checkDeletion(r.GetResponseDeleteRange())
	}
	return nil
}

// puts reports whether one of the operations puts a key.
func puts(ops []*pb.RequestOp, key []byte) bool {
	return slices.ContainsFunc(ops, func(op *pb.RequestOp) bool {
		put := op.GetRequestPut()
		return put != nil && bytes.Equal(put.Key, key)
	})
}

// checkDeletion reports the response to the deletion of one key.
func checkDeletion(r *pb.DeleteRangeResponse) error {
	switch {
	case r == nil:
		return unexpected("a response of another type to a deletion")
	case r.Deleted < 0 || r.Deleted > 1:
		return unexpected("%d keys deleted of one", r.Deleted)
	}
	return nil
}

func checkRange(q *pb.RangeRequest, r *pb.RangeResponse, revision int64) error {
	switch {
	case r == nil:
		return unexpected("a response of another type to a range")
	case r.Count < 0 || r.Count > math.MaxInt32:
		return unexpected("a count of %d", r.Count)
	case len(q.RangeEnd) == 0 && len(r.Kvs) > 1:
		return unexpected("%d pairs of one key", len(r.Kvs))
	case len(q.RangeEnd) > 0 && q.Limit == 0 && r.More:
		return unexpected("only a part of a range")
	}
	for _, kv := range r.Kvs {
		if err := checkPair(kv, q.Key, q.RangeEnd, revision); err != nil {
			return err
		}
		if kv.CreateRevision <= 0 || kv.CreateRevision > kv.ModRevision || kv.Version <= 0 {
			return unexpected("revisions %d and %d, version %d of a key", kv.CreateRevision, kv.ModRevision, kv.Version)
		}
	}
	return nil
}

// checkPair reports a pair that is not one of a range of keys as of a revision.
func checkPair(kv *mvccpb.KeyValue, from, to []byte, revision int64) error {
	if kv == nil {
		return unexpected("no key and value")
	}
	in := string(kv.Key) == string(from)
	if len(to) > 0 {
		in = string(from) <= string(kv.Key) && string(kv.Key) < string(to)
	}
	switch {
	case !in:
		return unexpected("an unexpected key %.100q", kv.Key)
	case kv.ModRevision <= 0 || kv.ModRevision > revision:
		return unexpected("a key of revision %d at revision %d", kv.ModRevision, revision)
	}
	return nil
}

// maxTTL is the longest timeout in seconds that etcd grants.
const maxTTL = 9_000_000_000

// checkLease reports a lease that cannot be that of a session.
func checkLease(r *pb.LeaseGrantResponse) error {
	switch {
	case r.Error != "":
		return unexpected("a lease with the error %.100q", r.Error)
	case r.ID <= 0:
		return unexpected("an invalid lease id %d", r.ID)
	case r.TTL <= 0 || r.TTL > maxTTL:
		return unexpected("a lease of %d s", r.TTL)
	}
	return nil
}

// checkWatch reports a response of a watch stream. w is its watcher, or nil.
func checkWatch(r *pb.WatchResponse, w *watcher) error {
	if r.Canceled || r.CompactRevision != 0 {
		return nil // these have no revision, and end the watcher
	}
	if err := checkHeader(r.Header); err != nil {
		return err
	}
	rev := int64(0)
	for _, e := range r.Events {
		if e == nil {
			return unexpected("an empty event")
		}
		if w == nil {
			continue
		}
		from, to := w.key.bounds()
		if err := checkPair(e.Kv, from, to, maxRevision); err != nil {
			return err
		}
		kv := e.Kv
		switch {
		case kv.ModRevision < rev:
			return unexpected("an event of revision %d after one of %d", kv.ModRevision, rev)
		case e.Type != mvccpb.PUT && e.Type != mvccpb.DELETE:
			return unexpected("an event of type %d", e.Type)
		case e.Type == mvccpb.PUT && (kv.CreateRevision <= 0 || kv.CreateRevision > kv.ModRevision || kv.Version <= 0):
			return unexpected("an event with revisions %d and %d, version %d", kv.CreateRevision, kv.ModRevision, kv.Version)
		}
		rev = kv.ModRevision
	}
	return nil
}

// checkRenewal reports a reply to a keep-alive of a lease that was granted for a time. A reply that
// says that the lease is over is none of these.
func checkRenewal(r *pb.LeaseKeepAliveResponse, id int64, granted time.Duration) error {
	switch {
	case r.ID != id:
		return unexpected("a renewal of lease %d", r.ID)
	case r.TTL > 0 && time.Duration(r.TTL) < granted/time.Second:
		return unexpected("a renewal for %d s of a lease of %v", r.TTL, granted)
	}
	return nil
}
