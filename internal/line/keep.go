package line

import (
	"bytes"
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/contender"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/trace"
)

// leastUnkept is the shortest time after contention in which the client keeps no lock on the
// path.
const leastUnkept = time.Second

// mostKept is how many idle locks a client keeps.
const mostKept = 4096

// A keptLock is the node of a lock that a client keeps beyond the first Release, see
// MutexOptions.Keep. Until the kept lock is over, a Lock of the same client, and each hand-over to a
// local waiter, sends nothing. All holds of a kept lock have the same node and token.
//
// The following rules make this safe. Model checking (internal/model/keep_test.go) found, for
// each rule left out, a contender of another client that waits for ever, a hold without a
// node, two holders, or a guarded write under a later hold.
//   - A kept lock is possible only if its node was created alone in the directory. One request
//     arms the watches on the directory and on the node for every change since that
//     creation. So a contender that came before the request is not missed.
//   - Each event of these watches counts as contention, also LookAgain. So does a failure to arm
//     them. Contention ends the kept lock: if it is idle, the client deletes the node at once;
//     otherwise the hold continues as a hold without Keep. It does not matter whether the other
//     contender has left meanwhile.
//   - A Release tests the kept lock and makes it idle under the mutex under which contention ends
//     it. A kept lock that is over has no further holds.
//   - The watch on the node belongs to the kept lock, and serves each of its holds. A grant in
//     memory tests the lease, the session and that watch, as every grant does.
//   - A Release passes the turn only to a local waiter that waits at that moment, so the waiter takes it.
//   - A Release ends the kept lock if a commit under the guard of the hold can be on its way:
//     see Hold.IsGuarded.
//   - The turn is passed in memory only between callers that write the same data.
type keptLock struct {
	q *localQueue
	place
	data []byte        // of the node
	keep time.Duration // MutexOptions.Keep

	own *backend.Watch // on the data of the node
	dir *backend.Watch // on the children of the directory

	begin sync.Once // of run
	runs  bool

	armed  chan struct{} // closed when the request that arms the watches is over
	rested chan struct{} // receives when the kept lock becomes idle; for one value
	excess chan struct{} // receives when the client has too many idle kept locks; for one value
	over   chan struct{} // closed when the kept lock is over

	// Guarded by the queue's mu.
	state     keptState
	hold      *core.Hold // of keptHeld, nil while the turn is passed; of keptIdle, the latest
	since     time.Time  // of keptIdle
	contended bool       // of keptOver: a watch had fired when the kept lock ended

	entry *list.Element // of keptIdle, in idle of the client; guarded by its idleMu
}

// listIdle adds k to the idle kept locks of the client. If there are too many, it tells the kept lock that
// was idle longest to end.
func (k *keptLock) listIdle() {
	x := linesOf(k.s.Client())
	x.idleMu.Lock()
	defer x.idleMu.Unlock()
	k.entry = x.idle.PushBack(k)
	if x.idle.Len() > mostKept {
		first := x.idle.Front().Value.(*keptLock)
		select {
		case first.excess <- struct{}{}:
		default:
		}
	}
}

// unlistIdle removes k from the idle kept locks of the client.
func (k *keptLock) unlistIdle() {
	x := linesOf(k.s.Client())
	x.idleMu.Lock()
	defer x.idleMu.Unlock()
	x.idle.Remove(k.entry)
	k.entry = nil
}

// keptState is the state of a kept lock.
//
//	held: its holder releases, and may keep     -> idle, or held by the next local waiter
//	      it may not keep; contention; a loss       -> over
//	idle: a local caller takes the lock         -> held
//	      contention; Keep has passed; a loss;
//	      too many idle kept locks of the client     -> over; the node is deleted
//	over: final
type keptState int8

const (
	keptHeld keptState = iota
	keptIdle
	keptOver
)

// newKept returns the kept lock that begins with the grant of h for r at p, or nil if the client
// does not keep the lock.
func (q *localQueue) newKept(r *request, p place, h *core.Hold) core.NodeKeeper {
	if r.keep == 0 || p.Siblings != 1 || contender.IsHighNumber(p.s, p.Seq) || linesOf(q.l.c).wasContended(q.l.dir) {
		return nil
	}
	return &keptLock{
		q: q, place: p, data: r.data, keep: r.keep,
		own: backend.NewWatch(), dir: backend.NewWatch(),
		armed: make(chan struct{}), rested: make(chan struct{}, 1), excess: make(chan struct{}, 1), over: make(chan struct{}),
		hold: h,
	}
}

// wasContended reports whether contention has ended a kept lock in dir a short time ago.
func (x *clientLines) wasContended(dir string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	until, ok := x.contended[dir]
	if ok && !time.Now().Before(until) {
		delete(x.contended, dir)
		ok = false
	}
	return ok
}

// noteContention notes that contention has ended the kept lock, so that the client keeps no lock on the path
// for a while. Otherwise a contender that comes again and again would wait each time for an idle client to
// delete its node.
func (k *keptLock) noteContention() {
	x := linesOf(k.s.Client())
	x.mu.Lock()
	defer x.mu.Unlock()
	kinds.Remember(&x.contended, k.q.l.dir, time.Now().Add(max(k.keep, leastUnkept)))
}

// isContended reports whether a watch of the kept lock has fired.
func (k *keptLock) isContended() bool { return k.dir.Kind() != 0 || k.own.Kind() != 0 }

// finish ends the kept lock. It returns the state before, and the hold.
func (k *keptLock) finish() (was keptState, h *core.Hold) {
	k.q.mu.Lock()
	defer k.q.mu.Unlock()
	return k.finishLocked()
}

// finishLocked is finish for a caller that holds the queue's mu.
func (k *keptLock) finishLocked() (was keptState, h *core.Hold) {
	was, h = k.state, k.hold
	if was == keptIdle {
		k.q.idle = nil
		k.unlistIdle()
	}
	if was != keptOver {
		k.state, k.contended = keptOver, k.isContended()
		close(k.over)
	}
	return was, h
}

// keepAt ends the turn of h without a request: the next local waiter gets the node, or the
// kept lock becomes idle. It reports false if the node has to be deleted; the kept lock is over then.
func (k *keptLock) keepAt(h *core.Hold) bool {
	q := k.q
	if h.IsGuarded() { // nothing is armed for a node that is deleted now
		k.drop()
		return false
	}
	able := k.Watch() && k.s.Backend().Err() == nil
	contended := k.isContended()
	if contended && able {
		defer k.noteContention()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if k.state == keptOver {
		return false
	}
	if !able || contended {
		k.finishLocked()
		return false
	}
	if len(q.waiting) == 0 {
		k.state, k.since, q.idle = keptIdle, time.Now(), k
		k.listIdle()
		select {
		case k.rested <- struct{}{}:
		default:
		}
		return true
	}
	w := q.waiting[0]
	if !bytes.Equal(w.data, k.data) {
		k.finishLocked()
		return false
	}
	k.hold = nil
	w.reserved = reservedNode{state: reservedKept, kept: k}
	q.move(w, waiterServe)
	return true
}

// take gives the caller an idle kept lock of the queue, or returns nil. The caller holds q.mu.
func (q *localQueue) take() *keptLock {
	k := q.idle
	if k == nil || k.isContended() {
		return nil
	}
	q.idle, k.state, k.hold = nil, keptHeld, nil
	k.unlistIdle()
	return k
}

// resume grants the lock to a caller that has the turn and the node of the kept lock k. If it
// returns nil, the node is removed, and the caller takes a new place. resume waits for the request that arms
// the watches: without watches the client would not learn that the node was deleted.
func (q *localQueue) resume(ctx context.Context, r *request, k *keptLock) *core.Hold {
	select {
	case <-k.armed:
	case <-ctx.Done():
	}
	if r.keep > 0 && bytes.Equal(r.data, k.data) && ctx.Err() == nil && !k.isOver() {
		h := core.NewHold(k.s, k.Path, k.Czxid, r.span, q)
		h.SetKeeper(k)
		if h.Grant(ctx, 1, k.own, nil) == nil {
			q.mu.Lock()
			k.hold = h
			over := k.state == keptOver
			q.mu.Unlock()
			if over { // run has ended the kept lock, and had no hold to watch
				q.l.c.GoWork(func() { h.WatchNode("", nil) })
			}
			return h
		}
	}
	k.drop()
	k.s.RemoveAndWait(k.Path)
	return nil
}

// drop ends the kept lock for a caller that has its node and removes it.
func (k *keptLock) drop() {
	if k.isContended() && k.s.Backend().Err() == nil {
		k.noteContention()
	}
	k.finish()
}

func (k *keptLock) isOver() bool {
	select {
	case <-k.over:
		return true
	default:
		return false
	}
}

// OwnWatch returns the watch on the node.
func (k *keptLock) OwnWatch() *backend.Watch { return k.own }

// Watch begins to watch the kept lock. It reports false if the client is closed.
func (k *keptLock) Watch() bool {
	k.begin.Do(func() { k.runs = k.s.Client().GoWork(k.run) })
	return k.runs
}

// arm arms the watches of the kept lock.
func (k *keptLock) arm(ctx context.Context) error {
	dir := k.q.l.dir
	err := k.s.Backend().Arm(ctx, k.Czxid,
		backend.Target{Path: dir, Children: true, Watch: k.dir},
		backend.Target{Path: k.Path, Watch: k.own})
	if err != nil || k.isContended() {
		return err
	}
	// ZooKeeper servers from 3.8.4 on withhold events of a node that the session may not read, see
	// contender.Sees.
	if readable := dir + "/"; !k.s.IsAllowed(readable) {
		if _, _, err := k.s.Backend().Children(ctx, dir, nil); err != nil {
			return err
		}
		k.s.SetAllowed(readable)
	}
	return nil
}

// run ends the kept lock at contention, when Keep has passed since the latest Release, when
// the client has too many idle ones, and with the session.
func (k *keptLock) run() {
	err := k.arm(context.Background()) // the session bounds it
	close(k.armed)
	timer := time.NewTimer(k.keep)
	defer timer.Stop()
	for waits := err == nil; waits; {
		select {
		case <-k.dir.Fired():
			waits = false
		case <-k.own.Fired():
			waits = false
		case <-k.s.Backend().Done():
			waits = false
		case <-k.over:
			waits = false
		case <-k.rested:
			timer.Reset(k.keep)
		case <-k.excess:
			_, idle := k.left()
			waits = !idle
		case <-timer.C:
			if left, idle := k.left(); !idle {
				// The next Release sets the timer.
			} else if left > 0 {
				timer.Reset(left)
			} else {
				waits = false
			}
		}
	}
	was, h := k.finish()
	// A Release that ends the kept lock for another reason is no contention, though the watches fire then.
	contended := (err != nil || k.wasContended()) && k.s.Backend().Err() == nil
	if contended {
		k.noteContention()
	}
	k.dir.Stop()
	if was == keptOver {
		k.own.Stop()
		return
	}
	l := &k.q.l
	if was == keptIdle {
		k.own.Stop()
		core.Emit(context.Background(), l.c, trace.KeepEnded{Subject: l.subject("lock", k.Path), Token: k.Czxid, Asked: contended})
		if err := k.q.removeAndCall(h); err != nil {
			l.c.Log().Debug("coord: cannot release a kept lock", "path", k.Path, "error", err)
		}
		return
	}
	own := k.own
	if err != nil {
		own.Stop()
		own = nil
	}
	if h != nil { // otherwise resume begins the watch
		h.WatchNode(k.Path, own)
	}
}

// wasContended reports whether a watch had fired when the kept lock, which is over, ended.
func (k *keptLock) wasContended() bool {
	k.q.mu.Lock()
	defer k.q.mu.Unlock()
	return k.contended
}

// left returns the time that is left of Keep, and whether the kept lock is idle.
func (k *keptLock) left() (left time.Duration, idle bool) {
	k.q.mu.Lock()
	defer k.q.mu.Unlock()
	return k.keep - time.Since(k.since), k.state == keptIdle
}
