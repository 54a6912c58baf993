package etcd_test

import (
	"maps"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// trips counts the round trips that follow each other, by cause and not by time. A request has
// the level of what its client has received by then, plus one. A reply has the level of its
// request, and an event has that of the latest write that the servers were sent. So the level of a
// client is at least the number of round trips that it waited for. It can be higher: what the
// client received is not always what it waited for.
//
// Keep-alives count for nothing. Nor do the replies to the cancellation of a watch, since no
// client reads them. The zero value counts nothing before reset.
type trips struct {
	mu       sync.Mutex
	round    int
	levels   map[*link]int
	requests map[*link]map[string]int // by kind
	write    int                      // the highest level of a write
	seen     int                      // messages in all rounds
	events   map[*link]int
}

// tripCall is what trips knows of one call: the latest request on it.
type tripCall struct{ round, level int }

// reset begins another count. Replies to requests before it count for nothing.
func (t *trips) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.round++
	t.levels, t.requests, t.events = make(map[*link]int), make(map[*link]map[string]int), make(map[*link]int)
	t.write = 0
}

// sent records a request before the server gets it.
func (t *trips) sent(l *link, c *tripCall, method string, body []byte) {
	if t == nil || method == "/etcdserverpb.Lease/LeaseKeepAlive" {
		return
	}
	kind := kindOf(method, body)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen++
	if t.round == 0 {
		return
	}
	if t.requests[l] == nil {
		t.requests[l] = make(map[string]int)
	}
	t.requests[l][kind]++
	if kind == watchCancel {
		return
	}
	*c = tripCall{t.round, t.levels[l] + 1}
	if isWrite(method, body) {
		t.write = max(t.write, c.level)
	}
}

// answered records a reply, or an event, before the client gets it.
func (t *trips) answered(l *link, c *tripCall, method string, body []byte) {
	if t == nil || method == "/etcdserverpb.Lease/LeaseKeepAlive" {
		return
	}
	var w pb.WatchResponse
	watch := method == "/etcdserverpb.Watch/Watch" && w.Unmarshal(body) == nil
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen++
	if t.round == 0 {
		return
	}
	level := 0
	switch {
	case watch && w.Canceled:
		return
	case watch && len(w.Events) > 0:
		t.events[l]++
		level = t.write
	case c.round == t.round:
		level = c.level
	}
	t.levels[l] = max(t.levels[l], level)
}

// of returns the round trips of a client, and its requests.
func (t *trips) of(l *link) (level int, requests map[string]int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.levels[l], maps.Clone(t.requests[l])
}

// all returns the requests of all clients by kind.
func (t *trips) all() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := make(map[string]int)
	for _, kinds := range t.requests {
		for kind, n := range kinds {
			sum[kind] += n
		}
	}
	return sum
}

// total returns the number of messages so far.
func (t *trips) total() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen
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
