package shards

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/assign"
	"github.com/go-coord/coord/internal/contender"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/group"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/line"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/trace"
)

// run is one member of a Shards, from the beginning of an All to the end of the last shard that
// it has handed out. Its loop runs on one goroutine, which owns all of its state but the reports.
//
// Whatever the assignment says, the line of a shard excludes a second owner. So the following rules
// are about progress. Model checking (internal/model/shards_test.go) found, for each rule left out,
// a shard that has no owner for ever, or that moves for nothing.
//   - An owner gives up a shard that is assigned to another member. If it does not, and the options
//     say so, the hold ends by force, and its node is deleted.
//   - If the hold of a shard has ended, for whatever reason, the member acquires the shard again
//     while it is assigned to the member.
//   - An acquisition that is not wanted any more is given up, and a grant that comes all the same
//     is released.
//   - A member that leaves gives up all of its shards.
//   - A member that takes over the id of a former process deletes the nodes of that process in the
//     lines of its own shards.
//   - A member goes by the latest list that it is in itself. If it is missing, it does nothing: its
//     membership joins again by itself, or ends.
type run struct {
	s          *Shards
	op         string
	id         string
	data       []byte // of the nodes in the lines
	m          *group.Membership
	out        chan grant    // closed when the member leaves
	gone       chan struct{} // closed when the member has left, and has only shards that were handed out
	acquireCtx context.Context
	leave      context.CancelFunc // ends acquireCtx, and begins the leaving
	former     int64              // the session of the former process of the member; 0: there is none

	members  []assign.Member
	assign   []int32 // the index of the owner of each shard; nil before the first list, and after the leaving has begun
	assigned int     // shards that are assigned to the member
	shards   map[int]*shard
	ready    []*shard           // in stateReady, in the order of the grants
	moving   []*shard           // in stateMoving, with a time at which they end by force, in the order of time
	left     bool               // the membership has ended
	count    [stateOver + 1]int // of shards, by their state
	reported trace.ShardsOwned  // the latest such event

	mu      sync.Mutex
	reports []*shard      // whose acquisition or hold has ended
	wake    chan struct{} // has an element if reports is not empty
	err     error         // why the member leaves
}

// grant is a shard that a member hands out.
type grant struct {
	hold  *core.Hold
	index int
}

// shard is a shard that a member acquires or owns. It is the owner of its hold.
type shard struct {
	r      *run
	index  int
	l      *line.Line
	former int64
	cancel context.CancelFunc // of the acquisition

	// Owned by the loop.
	hold  *core.Hold // nil in stateAcquiring
	state state
	until time.Time // of moving

	// Guarded by r.mu.
	granted *core.Hold
	failed  error // of the acquisition
	ended   bool  // the hold has ended, and its Release is complete
}

// state is the state of a shard.
//
//	acquiring: the lock is granted        -> ready
//	           it is not wanted any more  -> ending; the acquisition is given up
//	ready:     a caller receives it       -> owned
//	           it is not wanted any more  -> ending; the hold is released
//	owned:     it is not wanted any more  -> moving; the owner is asked to release it
//	moving:    ForceAfter has passed      -> ending; the hold is lost
//	any:       the acquisition has failed, or the hold has ended -> over
type state int8

const (
	stateAcquiring state = iota
	stateReady
	stateOwned
	stateMoving
	stateEnding
	stateOver
)

// to moves x to another state.
func (x *shard) to(next state) {
	x.r.count[x.state]--
	x.r.count[next]++
	x.state = next
}

// All makes the caller a member and yields each shard that it acquires, in the form of as, until ctx ends
// or the body breaks off. Then the member leaves and gives back the shards that were not yielded. The
// owners of the other shards are asked to release them. If the member leaves for another reason, the last
// pair has the error.
func All[E any](ctx context.Context, s *Shards, op string, as func(h *core.Hold, index int) E) iter.Seq2[E, error] {
	core.NeedContext(ctx)
	return func(yield func(E, error) bool) {
		var none E
		r, err := s.join(ctx, op)
		if err != nil {
			if ctx.Err() == nil || !errs.OfContext(err) {
				yield(none, err)
			}
			return
		}
		leave := func() {
			r.leave()
			<-r.gone
		}
		defer leave()
		for g := range r.out {
			if !yield(as(g.hold, g.index), nil) {
				return
			}
		}
		leave()
		if err := r.failure(); err != nil {
			yield(none, err)
		}
	}
}

// join makes the caller a member, and starts its loop.
func (s *Shards) join(ctx context.Context, op string) (*run, error) {
	if err := s.check(ctx, op); err != nil {
		return nil, err
	}
	r := &run{
		s: s, op: op, id: s.o.ID,
		out:    make(chan grant),
		gone:   make(chan struct{}),
		shards: make(map[int]*shard),
		wake:   make(chan struct{}, 1),
	}
	if r.id == "" {
		r.id = s.c.NewGUID("member")
	}
	err := r.enter(ctx)
	if err != nil {
		return nil, errs.Op(op, s.path.Full(), err)
	}
	r.acquireCtx, r.leave = context.WithCancel(ctx)
	if !s.c.GoWork(r.loop) {
		r.leave()
		r.m.Leave()
		return nil, errs.Op(op, s.path.Full(), backend.ErrClosed)
	}
	return r, nil
}

// enter makes the directories, and the node of the member.
func (r *run) enter(ctx context.Context) (err error) {
	s := r.s
	if r.data, err = contender.Encode(r.id, 0, s.o.Data); err != nil {
		return err
	}
	_, err = core.OnSession(ctx, s.c, func(ss *core.Session) (struct{}, error) {
		err := ss.ClaimKind(ctx, s.recipeDir())
		if err == nil {
			err = ss.MakePart(ctx, s.path.Full()+"/"+layout.ShardsName, s.recipeDir())
		}
		return struct{}{}, err
	})
	if err != nil {
		return err
	}
	if s.o.ID != "" {
		former, err := s.group.Member(ctx, r.id)
		if err != nil && !errs.IsNotFound(err) {
			return err
		}
		r.former = former.Session
	}
	data, err := layout.ShardMember{Shards: s.n, Weight: s.o.Weight, Data: s.o.Data}.Encode()
	if err != nil {
		return err
	}
	r.m, err = s.group.Join(ctx, r.id, data)
	return err
}

// loop ends when the member has left and the last of its shards has ended.
func (r *run) loop() {
	defer r.leave()
	watching, unwatch := context.WithCancel(context.WithoutCancel(r.acquireCtx))
	defer unwatch()
	lists := group.Watch(watching, r.s.group, func(u group.Update) group.Update { return u })
	leaving, ended, closing := r.acquireCtx.Done(), r.m.Done(), r.s.c.Closing()
	var groupLeft chan struct{}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for closed := false; !r.left || len(r.shards) > 0; {
		r.emitOwned()
		if r.left && !closed && !r.hasUnyielded() {
			closed = true
			close(r.gone)
		}
		var out chan grant
		var next grant
		if len(r.ready) > 0 {
			out, next = r.out, grant{r.ready[0].hold, r.ready[0].index}
		}
		if len(r.moving) > 0 {
			timer.Reset(time.Until(r.moving[0].until))
		}
		select {
		case list, ok := <-lists:
			switch {
			case !ok:
				lists = nil
			case list.Err != nil:
				r.fail(list.Err)
			default:
				r.reassign(list.Members)
			}
		case out <- next:
			r.ready[0].to(stateOwned)
			r.ready = r.ready[1:]
		case <-r.wake:
			r.handleReports()
		case now := <-timer.C:
			r.force(now)
		case <-ended:
			ended = nil
			r.fail(r.m.Err())
		case <-closing:
			closing = nil
			r.fail(backend.ErrClosed)
		case <-leaving:
			leaving, lists, ended = nil, nil, nil
			unwatch()
			r.beginLeaving()
			// First the member leaves the group, so that its shards are assigned to others
			// when their owners release them.
			groupLeft = make(chan struct{})
			done := groupLeft
			if !r.s.c.GoWork(func() {
				defer close(done)
				r.m.Leave()
			}) {
				close(done)
			}
		case <-groupLeft:
			groupLeft, r.left = nil, true
		}
	}
	r.emitOwned()
	select {
	case <-r.gone:
	default:
		close(r.gone)
	}
}

// emitOwned reports how many shards the member owns, if that has changed. Grants that come together
// are one event.
func (r *run) emitOwned() {
	e := trace.ShardsOwned{
		Subject: trace.Subject{Recipe: "shards", Path: r.s.path.Full(), Op: r.op}, Member: r.id, Ought: r.assigned,
		Owned: r.count[stateReady] + r.count[stateOwned] + r.count[stateMoving], Moving: r.count[stateMoving],
	}
	if e != r.reported && (r.assign != nil || r.reported.Member != "") {
		r.reported = e
		core.Emit(context.Background(), r.s.c, e)
	}
}

// fail makes the member leave because of err.
func (r *run) fail(err error) {
	r.mu.Lock()
	if r.err == nil && r.acquireCtx.Err() == nil {
		r.err = errs.Op(r.op, r.s.path.Full(), err)
	}
	r.mu.Unlock()
	r.leave()
}

// failure returns why the member has left, or nil if its caller or the end of ctx has made it leave.
func (r *run) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// beginLeaving begins the leaving: no further shard is handed out, and all are to end.
func (r *run) beginLeaving() {
	close(r.out)
	r.assign, r.assigned = nil, 0
	for _, i := range slices.Sorted(maps.Keys(r.shards)) { // a simulation repeats itself exactly
		r.shards[i].unassign(r.id, "the member leaves")
	}
}

// hasUnyielded reports whether the member has shards that it has not handed out.
func (r *run) hasUnyielded() bool {
	for _, x := range r.shards {
		if x.state != stateOwned && x.state != stateMoving {
			return true
		}
	}
	return false
}

// reassign computes the assignment for a list of members, and acts on it.
func (r *run) reassign(list []group.Member) {
	own := slices.IndexFunc(list, func(m group.Member) bool { return m.ID == r.id })
	if own < 0 || r.acquireCtx.Err() != nil {
		return
	}
	members := make([]assign.Member, 0, len(list))
	for _, m := range list {
		v, _ := m.Value.(layout.ShardMember)
		if m.Err == nil && v.Shards == r.s.n {
			members = append(members, assign.Member{ID: m.ID, Weight: v.Weight})
			continue
		}
		if m.Token > list[own].Token {
			continue // it leaves when it sees this member
		}
		err := m.Err
		if err == nil {
			err = fmt.Errorf("%w: this member uses %d shards, but member %q uses %d", backend.ErrInvalid, r.s.n, layout.Clip(m.ID), v.Shards)
		}
		r.fail(err)
		return
	}
	if r.assign != nil && slices.Equal(members, r.members) {
		return // another incarnation of a member
	}
	before := make(map[int]bool)
	for i, m := range r.assign {
		if r.members[m].ID == r.id {
			before[i] = true
		}
	}
	r.members, r.assign = members, assign.Shards(r.s.n, members)
	e := trace.ShardsAssigned{
		Subject: trace.Subject{Recipe: "shards", Path: r.s.path.Full(), Op: r.op}, Member: r.id, Members: len(members),
	}
	for i, m := range r.assign {
		x := r.shards[i]
		switch mine := members[m].ID == r.id; {
		case mine:
			e.Shards++
			if !before[i] {
				e.Gained++
			}
			if x == nil {
				r.startAcquire(i)
			}
		case before[i]:
			e.Lost++
			fallthrough
		default:
			if x != nil {
				x.unassign(members[m].ID, "the shard moves to another member")
			}
		}
	}
	r.former, r.assigned = 0, e.Shards
	core.Emit(context.Background(), r.s.c, e)
}

// wants reports whether the member ought to own a shard.
func (r *run) wants(i int) bool {
	return r.assign != nil && r.members[r.assign[i]].ID == r.id
}

// handleReports acts on the reports of shards.
func (r *run) handleReports() {
	r.mu.Lock()
	reports := r.reports
	r.reports = nil
	r.mu.Unlock()
	for _, x := range reports {
		r.mu.Lock()
		granted, failed, ended := x.granted, x.failed, x.ended
		x.granted = nil
		r.mu.Unlock()
		if x.state == stateOver {
			continue
		}
		if granted != nil && !ended {
			x.hold = granted
			if x.state == stateAcquiring {
				x.to(stateReady)
				r.ready = append(r.ready, x)
			} else {
				x.giveBack()
			}
		}
		if failed != nil && x.state == stateAcquiring {
			r.fail(failed) // of no effect if the member leaves already
		}
		if failed == nil && !ended {
			continue
		}
		switch is := func(y *shard) bool { return x == y }; x.state {
		case stateReady:
			r.ready = slices.DeleteFunc(r.ready, is)
		case stateMoving:
			r.moving = slices.DeleteFunc(r.moving, is)
		}
		x.to(stateOver)
		delete(r.shards, x.index)
		if r.wants(x.index) && r.acquireCtx.Err() == nil {
			r.startAcquire(x.index)
		}
	}
}

// force ends the shards whose time to move has passed.
func (r *run) force(now time.Time) {
	for len(r.moving) > 0 && !r.moving[0].until.After(now) {
		x := r.moving[0]
		r.moving = r.moving[1:]
		x.to(stateEnding)
		x.hold.Revoke()
	}
}

// startAcquire begins the acquisition of a shard.
func (r *run) startAcquire(i int) {
	ctx, cancel := context.WithCancel(r.acquireCtx)
	x := &shard{r: r, index: i, l: r.s.line(i), former: r.former, cancel: cancel}
	r.shards[i] = x
	r.count[x.state]++
	if !r.s.c.GoWork(func() {
		defer cancel()
		short := core.NewShortage(r.s.c, "acquire a shard", r.s.path.Full())
		h, err := x.acquire(ctx)
		for short.Waited(ctx, err) {
			h, err = x.acquire(ctx)
		}
		x.report(func() { x.granted, x.failed = h, err })
	}) {
		cancel()
		x.report(func() { x.failed = backend.ErrClosed })
	}
}

// acquire acquires the lock of the shard. It first removes the nodes of the former process of the member
// there: the member has taken the id over, so that process is not a member any more.
func (x *shard) acquire(ctx context.Context) (*core.Hold, error) {
	r := x.r
	if x.former != 0 {
		if err := x.l.RemoveFormer(ctx, r.op, x.former, r.id); err != nil {
			return nil, err
		}
	}
	return x.l.Acquire(ctx, r.op, r.data, x, r.s.c.NewSpan("shards", r.s.path.Full(), r.op))
}

// report changes the reported fields of x, and wakes the loop.
func (x *shard) report(change func()) {
	r := x.r
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
	r.reports = append(r.reports, x)
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// unassign ends what the member does with a shard that it ought not to own any more.
func (x *shard) unassign(by, why string) {
	r := x.r
	switch x.state {
	case stateAcquiring:
		x.to(stateEnding)
		x.cancel()
	case stateReady:
		r.ready = slices.DeleteFunc(r.ready, func(y *shard) bool { return x == y })
		x.to(stateEnding)
		x.giveBack()
	case stateOwned:
		x.to(stateMoving)
		after := r.s.o.ForceAfter
		x.hold.Ask(by, why, after > 0)
		if after > 0 {
			x.until = time.Now().Add(after)
			r.moving = append(r.moving, x)
		}
	}
}

// giveBack releases a shard that was not handed out. If the client is closed, the hold ends with
// its session.
func (x *shard) giveBack() { x.r.s.c.GoWork(func() { x.hold.Release() }) }

// RemoveNode, Leftovers and Lost make a shard the owner of its hold. RemoveNode deletes the node, and reports that
// the shard has ended.
func (x *shard) RemoveNode(h *core.Hold) error {
	err := x.l.RemoveNode(h)
	x.report(func() { x.ended = true })
	return err
}

// Lost reports that the shard has ended.
func (x *shard) Lost(*core.Hold) { x.report(func() { x.ended = true }) }

// Leftovers is the node of a shard that ended by force.
func (x *shard) Leftovers(h *core.Hold, cause error) (dir string, paths []string, remove func(ctx context.Context, path string) error) {
	if errors.Is(cause, errs.ErrRevoked) {
		paths = []string{h.Path()}
	}
	return nodepath.Parent(h.Path()), paths, h.On().Remove
}
