package etcd_test

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/go-coord/coord/internal/costtest"
)

// sentTrip records a request in the trips of the link, unless it is a keep-alive.
func (l *link) sentTrip(call *costtest.Trip, method string, body []byte) {
	kind := kindOf(method, body)
	switch {
	case method == "/etcdserverpb.Lease/LeaseKeepAlive":
	case kind == watchCancel:
		l.trips.Sent(l, nil, kind, false) // no client reads the reply
	default:
		l.trips.Sent(l, call, kind, isWrite(method, body))
	}
}

// answeredTrip records a reply or an event. call has the latest request.
func (l *link) answeredTrip(call *costtest.Trip, method string, body []byte) {
	var w pb.WatchResponse
	watch := method == "/etcdserverpb.Watch/Watch" && w.Unmarshal(body) == nil
	switch {
	case method == "/etcdserverpb.Lease/LeaseKeepAlive":
	case watch && w.Canceled:
		l.trips.Answered(l, nil)
	case watch && len(w.Events) > 0:
		l.trips.Notified(l)
	default:
		l.trips.Answered(l, call)
	}
}

// The kinds of requests that are no methods.
const (
	readTxn       = "read"
	writeTxn      = "write"
	watchCreate   = "watch"
	watchCancel   = "cancel"
	watchProgress = "progress"
)

// kindOf returns the kind of a request.
func kindOf(method string, body []byte) string {
	switch method {
	case "/etcdserverpb.KV/DeleteRange":
		return writeTxn
	case "/etcdserverpb.KV/Txn":
		if isWrite(method, body) {
			return writeTxn
		}
		return readTxn
	case "/etcdserverpb.Watch/Watch":
		var w pb.WatchRequest
		switch {
		case w.Unmarshal(body) != nil:
		case w.GetCancelRequest() != nil:
			return watchCancel
		case w.GetProgressRequest() != nil:
			return watchProgress
		case w.GetCreateRequest() != nil:
			return watchCreate
		}
	}
	return method
}

// isWrite reports whether a request can change the tree.
func isWrite(method string, body []byte) bool {
	switch method {
	case "/etcdserverpb.KV/Txn":
		var r pb.TxnRequest
		if r.Unmarshal(body) != nil {
			return true
		}
		for _, op := range r.Success {
			if op.GetRequestRange() == nil {
				return true
			}
		}
		return false
	case "/etcdserverpb.KV/Range", "/etcdserverpb.Watch/Watch":
		return false
	}
	return true
}
