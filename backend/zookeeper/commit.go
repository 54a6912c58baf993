package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-coord/coord/backend"
	"github.com/go-zookeeper/zk"
)

// serverMax is just below the request size at which a server drops the connection, 1 MiB by
// default. CheckOps counts an ACL of one entry.
const serverMax = 1<<20 - 1024

var errBroke = errors.New("contact broke before the answer")

// ticket represents a Commit that has begun and may still be applied. The call holds it,
// since it may send again, and so does its request, which can outlive the call.
//
// A call that gives up may have a request that is not written yet, since the zk client has
// goroutines and a queue between a call and the connection. Such a request must not be
// written after one of a later call. So the call, when it gives up, and the writer of the
// connection agree on which comes first: a request is written before the call returns, or
// never.
type ticket struct {
	number  uint64
	stage   atomic.Int32  // a stage
	done    chan struct{} // closed when it has no holder
	holders int           // guarded by the mu of its tickets
}

// A stage is the progress of a commit's request. The request is queued again when a server
// has answered that it did not run it.
const (
	queued int32 = iota
	written
	withdrawn
)

// withdraw reports whether the request has not been written and will not be.
func (t *ticket) withdraw() bool { return t.stage.CompareAndSwap(queued, withdrawn) }

// tickets are the tickets of a session that have a holder.
type tickets struct {
	mu   sync.Mutex
	last uint64 // the number handed out last
	all  map[uint64]*ticket
}

func newTickets() *tickets { return &tickets{all: make(map[uint64]*ticket)} }

func (ts *tickets) take() *ticket {
	t := &ticket{done: make(chan struct{}), holders: 1}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.last++
	t.number = ts.last
	ts.all[t.number] = t
	return t
}

// share adds a holder to a ticket; its caller is a holder.
func (ts *tickets) share(t *ticket) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t.holders++
}

func (ts *tickets) give(t *ticket) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t.holders--
	if t.holders == 0 {
		delete(ts.all, t.number)
		close(t.done)
	}
}

// write reports whether the request of a ticket may be written, and marks it as written.
func (ts *tickets) write(number uint64) bool {
	ts.mu.Lock()
	t := ts.all[number]
	ts.mu.Unlock()
	return t != nil && t.stage.CompareAndSwap(queued, written)
}

// underWay returns the commits that have begun and may still be applied.
func (ts *tickets) underWay() []*ticket {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return slices.Collect(maps.Values(ts.all))
}

// Commit applies operations, all or none. It sends them once, and again only
// after an overloaded server has answered that it did not run them.
func (s *session) Commit(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
	if err := backend.CheckOps(ops); err != nil {
		return nil, err
	}
	if err := s.checkSize(ops); err != nil {
		return nil, err
	}
	fail := func(index int, err error) ([]backend.Result, error) {
		e := &backend.Error{Op: "commit", Path: ops[0].Path, Index: index, Err: err}
		if index < 0 && len(ops) == 1 {
			e.Op = ops[0].Kind.String()
		} else if index >= 0 {
			e.Op, e.Path = ops[index].Kind.String(), ops[index].Path
		}
		return nil, e
	}
	if err := s.enter(); err != nil {
		return fail(-1, err)
	}
	defer s.leave()

	t := s.tickets.take()
	defer s.tickets.give(t)
	request := s.request(ops, t)
	for tries := 1; ; tries++ {
		if err := s.whenConnected(ctx); err != nil {
			return fail(-1, err)
		}
		t.stage.Store(queued)
		s.tickets.share(t)
		results, err := await(ctx, s, func() ([]backend.Result, error) {
			defer s.tickets.give(t)
			return request()
		})
		if err == nil {
			backend.Tell(ops, results)
			return results, nil
		}
		if left, ok := err.(*leftAlone); ok {
			if t.withdraw() {
				return fail(-1, left.cause)
			}
			return fail(-1, backend.Uncertain(left.cause))
		}
		index := -1
		if len(ops) == 1 {
			index = 0
		}
		if blamed, ok := err.(*blame); ok {
			index, err = blamed.index, blamed.err
		}
		switch verdict, mapped := judge(err); verdict {
		case refused:
			if index >= 0 {
				mapped = withNode(err, mapped, ops[index].Kind.String(), ops[index].Path)
			}
			return fail(index, mapped)
		case expired:
			s.lose(errExpired)
			return fail(-1, s.ended())
		case throttled:
			if err := s.easeOff(ctx, tries); err != nil {
				return fail(-1, err)
			}
		default:
			if lost := s.Err(); lost != nil {
				return fail(-1, backend.Uncertain(lost))
			}
			if err == zk.ErrConnectionClosed {
				mapped = errBroke
			}
			return fail(-1, backend.Uncertain(mapped))
		}
	}
}

// checkSize refuses a commit that an ACL with many entries makes too large for a server.
func (s *session) checkSize(ops []backend.Op) error {
	size := 0
	for i := range ops {
		size += 64 + len(ops[i].Path) + len(ops[i].Data)
		switch ops[i].Kind {
		case backend.OpCreate:
			size += s.cfg.aclOf(ops[i].Shared).size()
		case backend.OpAbsent: // two requests, see multi
			size += 64 + len(ops[i].Path) + s.cfg.aclOf(false).size()
		}
		if size > serverMax {
			return &backend.Error{Op: ops[i].Kind.String(), Path: ops[i].Path, Index: i,
				Err: fmt.Errorf("%w: request of at least %d bytes with its ACLs, limit %d", backend.ErrTooLarge, size, serverMax)}
		}
	}
	return nil
}

// request returns the function that sends the operations each time it is called. It holds
// copies of their data, because the zk client encodes them later.
func (s *session) request(ops []backend.Op, t *ticket) func() ([]backend.Result, error) {
	if len(ops) > 1 || ops[0].Kind == backend.OpCheck || ops[0].Kind == backend.OpAbsent {
		return s.multi(ops, t)
	}
	op := ops[0]
	kind := markCommit
	if op.Kind == backend.OpCreate && op.Mode == backend.Container {
		// The zk client's CreateContainer reads the reply while it may be written, if the zk
		// client is closed meanwhile.
		kind = markContainer
	}
	path := markedForCommit(op.Path, kind, t.number)
	data := copied(op.Data)
	one := func(r backend.Result, err error) ([]backend.Result, error) {
		if err != nil {
			return nil, err
		}
		return []backend.Result{r}, nil
	}
	switch op.Kind {
	case backend.OpCreate:
		flags := flagsOf(op.Mode)
		return func() ([]backend.Result, error) {
			path, err := s.zk.Create(path, data, flags, s.cfg.aclOf(op.Shared))
			return one(backend.Result{Path: path}, err)
		}
	case backend.OpSetData:
		return func() ([]backend.Result, error) {
			stat, err := s.zk.Set(path, data, op.Version)
			if err != nil {
				return nil, err
			}
			return one(backend.Result{Stat: statOf(stat)}, nil)
		}
	default:
		return func() ([]backend.Result, error) {
			return one(backend.Result{}, s.zk.Delete(path, op.Version))
		}
	}
}

// blame is the error of a failed multi, with the index of the operation that failed.
type blame struct {
	index int
	err   error
}

func (b *blame) Error() string { return b.err.Error() }

func (s *session) multi(ops []backend.Op, t *ticket) func() ([]backend.Result, error) {
	requests := make([]any, 0, len(ops))
	owner := make([]int, 0, len(ops)) // for each request, the index of its operation
	kinds := make([]backend.OpKind, len(ops))
	for i, op := range ops {
		add := func(request any) { requests, owner = append(requests, request), append(owner, i) }
		path := op.Path
		if i == 0 {
			path = markedForCommit(path, markCommit, t.number)
		}
		switch kinds[i] = op.Kind; op.Kind {
		case backend.OpCreate:
			add(&zk.CreateRequest{Path: path, Data: copied(op.Data), Acl: s.cfg.aclOf(op.Shared), Flags: flagsOf(op.Mode)})
		case backend.OpSetData:
			add(&zk.SetDataRequest{Path: path, Data: copied(op.Data), Version: op.Version})
		case backend.OpDelete:
			add(&zk.DeleteRequest{Path: path, Version: op.Version})
		case backend.OpCheck:
			add(&zk.CheckVersionRequest{Path: path, Version: op.Version})
		case backend.OpAbsent:
			// A creation is refused if there is a node, and its deletion leaves none.
			add(&zk.CreateRequest{Path: path, Data: copied(nil), Acl: s.cfg.aclOf(false), Flags: zk.FlagPersistent})
			add(&zk.DeleteRequest{Path: op.Path, Version: 0})
		}
	}
	return func() ([]backend.Result, error) {
		replies, err := s.zk.Multi(requests...)
		if err != nil {
			return nil, blamed(replies, owner, err)
		}
		if len(replies) != len(requests) {
			return nil, errMalformed
		}
		results := make([]backend.Result, len(kinds))
		for i, r := range replies {
			result := &results[owner[i]]
			switch kinds[owner[i]] {
			case backend.OpCreate:
				result.Path = r.String
			case backend.OpSetData:
				if r.Stat == nil {
					return nil, errMalformed
				}
				result.Stat = statOf(r.Stat)
			}
		}
		return results, nil
	}
}

// blamed finds the operation that made a multi fail; owner has the one of each request. The results before it have no error, and
// the results after it have a code without meaning. No operation is to blame if the error is
// that of the whole reply.
func blamed(replies []zk.MultiResponse, owner []int, err error) error {
	const afterFailure = -2
	index := slices.IndexFunc(replies, func(r zk.MultiResponse) bool {
		code, _ := codeOf(r.Error)
		return r.Error != nil && code != afterFailure
	})
	if index < 0 || index >= len(owner) {
		return err
	}
	return &blame{owner[index], replies[index].Error}
}

// copied returns a copy that is never nil: the zk client would encode nil as absent data,
// which other clients distinguish from empty data.
func copied(data []byte) []byte { return append(make([]byte, 0, len(data)), data...) }

func flagsOf(m backend.CreateMode) int32 {
	switch m {
	case backend.Ephemeral:
		return zk.FlagEphemeral
	case backend.PersistentSequential:
		return zk.FlagSequence
	case backend.EphemeralSequential:
		return zk.FlagEphemeralSequential
	}
	return zk.FlagPersistent
}
