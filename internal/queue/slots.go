package queue

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-coord/coord/internal/contender"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/internal/parallel"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// slotLine is a directory in which any number of clients wait for the same things, while
// only a few of them watch these things. No dead client becomes one of the few, and the number of
// clients that a change wakes does not grow with the number of waiting clients.
//
//	<dir>/slot-<i>               a slot, one of k; ephemeral
//	<dir>/_c_<guid>-<infix><seq> a waiter; ephemeral
//
// A client that waits has one of the two. These are the rules; internal/model explores them,
// and for each rule what happens without it.
//
// S1. Only the holder of a slot watches the things. A client becomes a holder only by its own
// commit, which creates the node of the slot. So no dead client becomes a holder.
//
// S2. A holder reads the things with watches before it waits.
//
// S3. A client that sees no free slot creates a waiter, and then lists the directory. Whatever
// its place in the line is, it takes a free slot, by the commit {create slot, delete waiter}.
// (While it fills a slot itself, S6, it takes none, unless it is the first of the line, and lists
// again when the fill is done.)
//
// S4. A client that was woken arms its watches again, no later than it reads.
//
// S5. A holder that gets what it waits for deletes its slot, in the same commit.
//
// S6. A client that has vacated a slot lists the directory until no slot is free or no waiter
// is left (fill). In between it evicts waiters: it deletes the first of the line. How many it evicts,
// and how soon, does not matter for the guarantee. A waiter watches its own node, and begins again
// when it was evicted. If the service refuses the eviction, the client tries again later.
//
// S7. The first waiter watches the slots. Each other waiter watches its predecessor.
//
// S8. A client whose commit is refused calls Sync before it lists again.
//
// The guarantee is that no change stays unseen while a live client waits, unless k clients have died
// that held slots, or that had vacated one and not finished S6. If all holders are dead, the first
// waiter takes over when the session of one of them expires, unless that waiter is dead as well.
// A session that its client has lost counts as a dead client until the service has ended it, also
// while the client waits on its next session.
type slotLine struct {
	c     *core.Client
	g     kinds.RecipeDir // of the directory
	infix string          // of the waiters, such as "take-"
	k     int

	mu    sync.Mutex
	last  int           // the slot that this client took last
	queue bool          // the last list showed waiters
	wants int           // the number of slots vacated since fill was idle
	s     *core.Session // the latest that has vacated one
	done  chan struct{} // closed when fill is idle again; nil while it is
	fails int           // how often in a row the service has refused a fill
	retry *core.Session // of the fill that is repeated after a pause; nil: none
}

// slotPlace is the place of a client in a slotLine: a slot, a waiter, or none. It belongs to one
// goroutine and one session.
type slotPlace struct {
	l    *slotLine
	s    *core.Session
	path string // of the node; "": none
	slot bool   // the node is a slot

	// Close waits until a slot was given up, and until it was taken by another client.
	closes *core.CleanUp
}

// slotView is what a list of the directory shows.
type slotView struct {
	free []int    // slots
	line []string // names of the waiters, in order
	asOf int64
	took time.Duration // by the list
}

func newSlotLine(c *core.Client, g kinds.RecipeDir, infix string, k int) *slotLine {
	return &slotLine{c: c, g: g, infix: infix, k: k, last: -1}
}

func (l *slotLine) slot(i int) string { return l.g.Dir + "/" + layout.SlotName(i) }

// view lists the directory. A directory that is missing has no nodes.
func (l *slotLine) view(ctx context.Context, s *core.Session) (v slotView, err error) {
	began := time.Now()
	names, stat, err := s.Backend().Children(ctx, l.g.Dir, nil)
	if err != nil && !errs.IsNotFound(err) {
		return slotView{}, err
	}
	v.asOf, v.took = stat.AsOf, time.Since(began)
	type waiter struct {
		name string
		seq  int64
	}
	var line []waiter
	taken := make([]bool, l.k)
	for _, name := range names {
		if i, ok := layout.ParseSlot(name); ok {
			if i < l.k {
				taken[i] = true
			}
		} else if seq, ok := layout.ParseSeq(name, "-"+l.infix); ok && layout.IsOurs(name) {
			line = append(line, waiter{name, seq})
		}
	}
	for i, t := range taken {
		if !t {
			v.free = append(v.free, i)
		}
	}
	slices.SortFunc(line, func(a, b waiter) int { return layout.BySeq(a.seq, a.name, b.seq, b.name) })
	for _, w := range line {
		v.line = append(v.line, w.name)
	}
	l.mu.Lock()
	l.queue = len(line) > 0
	l.mu.Unlock()
	return v, nil
}

// enter takes a free slot for a client that has no place, or makes its waiter. It makes a waiter
// also if there is a free slot and a line: otherwise a client that has just vacated a slot would
// take it again, before the first of the line can.
func (p *slotPlace) enter(ctx context.Context) error {
	l := p.l
	l.mu.Lock()
	try, queue := l.last, l.queue || l.wants > 0
	l.mu.Unlock()
	if try < 0 {
		try = int(l.c.Random("slot") % uint64(l.k))
	}
	for free := []int{try}; ; {
		if !queue {
			if took, err := p.take(ctx, free); took || err != nil {
				return err
			}
		}
		v, err := l.view(ctx, p.s)
		if err != nil {
			return err
		}
		free, queue = v.free, false
		if len(v.line) > 0 || len(free) == 0 {
			break
		}
	}
	// The node of a creation that fails is removed before Close ends the session.
	u := l.c.BeginCleanUp()
	defer u.End()
	sp := core.NewSpec(l.c, l.g, l.infix, nil)
	n, err := p.s.Create(ctx, &sp)
	if err == nil {
		p.path = n.Path
	}
	return err
}

// take takes one of the free slots, in the commit that deletes the waiter, if there is one. It
// reports false if the commit is refused, which is known after a Sync: another client has taken
// the slot, or the waiter was evicted.
func (p *slotPlace) take(ctx context.Context, free []int) (bool, error) {
	l, s := p.l, p.s
	i := free[0]
	if len(free) > 1 {
		i = free[l.c.Random("slot")%uint64(len(free))] // other clients have the same list
	}
	u := l.c.BeginCleanUp()
	defer u.End()
	for {
		ops := []backend.Op{backend.Create(l.slot(i), nil, backend.Ephemeral)}
		if p.path != "" {
			ops = append(ops, backend.Delete(p.path, backend.AnyVersion))
		}
		// Not cancellable, so that the client always learns whether it has the slot.
		_, _, err := s.CommitOnce(context.WithoutCancel(ctx), ops...)
		switch errs.Blamed(err) {
		case 0:
			if errs.IsNotFound(err) {
				l.c.Kinds().Forget(l.g.Dir)
				if err := s.MakeDir(ctx, l.g); err != nil {
					return false, err
				}
				continue
			}
		case 1:
			p.path = ""
		default:
			if err == nil {
				p.path, p.slot, p.closes = l.slot(i), true, l.c.BeginCleanUp()
				l.mu.Lock()
				l.last = i
				l.mu.Unlock()
			} else if backend.IsUncertain(err) && !errs.IsOver(err) {
				// An outsider deleted the node that proves the commit. No slot may stay taken.
				(&slotPlace{l: l, s: s, path: l.slot(i), slot: true}).leave()
			}
			return err == nil, err
		}
		return false, s.Backend().Sync(ctx, l.g.Dir)
	}
}

// stand waits until the waiter is evicted, has taken a slot, or must look again. wait returns when one
// of its channels is ready, or earlier.
//
// While this client still fills a slot that it has vacated, its new waiter takes a free slot only if it
// is the first in the line: fill evicts the dead waiters ahead of it.
func (p *slotPlace) stand(ctx context.Context, wait func(changed, filled <-chan struct{}) error) error {
	l, s := p.l, p.s
	l.mu.Lock()
	filled := l.done
	l.mu.Unlock()
	v, err := l.view(ctx, s)
	if err != nil {
		return err
	}
	i := slices.Index(v.line, nodepath.Base(p.path))
	switch {
	case i < 0:
		// It was evicted, or an outsider deleted it.
		p.path = ""
		return s.Backend().Sync(ctx, l.g.Dir)
	case len(v.free) > 0 && (i == 0 || filled == nil):
		_, err := p.take(ctx, v.free)
		return err
	}
	ws := backend.NewWatchSet()
	defer ws.Stop()
	targets := []backend.Target{{Path: p.path, Children: true, Watch: ws.New()}}
	if i > 0 {
		targets = append(targets, backend.Target{Path: l.g.Dir + "/" + v.line[i-1], Children: true, Watch: ws.New()})
	} else {
		for i := range l.k {
			targets = append(targets, backend.Target{Path: l.slot(i), Children: true, Watch: ws.New()})
		}
	}
	// If one of the nodes is gone already, or was made anew, its watch fires at once.
	if err := s.Backend().Arm(ctx, v.asOf, targets...); err != nil {
		return err
	}
	var ok bool
	if i > 0 {
		ok, err = contender.Sees(ctx, s, l.g.Dir, v.line[i-1])
	} else {
		ok, err = p.seesSlots(ctx)
	}
	if !ok {
		return err
	}
	return wait(ws.Ready(), filled)
}

// seesSlots is contender.Sees for the first waiter, which watches the slots. It returns an error if
// all slots are persistent nodes, which another program has made: then no client would ever get
// one, and all would wait for ever.
func (p *slotPlace) seesSlots(ctx context.Context) (bool, error) {
	for i := range p.l.k {
		_, stat, err := p.s.Backend().Children(ctx, p.l.slot(i), nil)
		switch {
		case errs.IsNotFound(err):
			return false, nil // deleted just now; the event may have been withheld
		case err != nil:
			return false, err
		case stat.EphemeralOwner != 0:
			return true, nil
		}
	}
	return false, &backend.Error{Op: "wait", Path: p.l.slot(0), Index: -1, Err: fmt.Errorf("%w: all slots are persistent nodes of another program, delete them", backend.ErrExists)}
}

// leave gives the place up, in the background. A waiter goes with the session if the client
// closes. A slot is vacated before that.
func (p *slotPlace) leave() {
	l, s, path, slot := p.l, p.s, p.path, p.slot
	defer p.none()
	switch {
	case path == "" || s.Backend().Err() != nil:
	case !slot:
		if !l.c.IsClosing() {
			s.RemoveLater(path)
		}
	default:
		s.CleanUp("release a slot", path, func(ctx context.Context) error {
			// Exactly once, since the slot can be another client's at once.
			_, _, err := s.CommitOnce(ctx, backend.Delete(path, backend.AnyVersion))
			if err != nil && !errs.IsNotFound(err) {
				return err
			}
			l.fill(s)
			return nil
		})
	}
}

// vacated records that the commit that deletes the slot of the place, or its waiter, was applied.
func (p *slotPlace) vacated() {
	if p.slot {
		p.l.fill(p.s)
	}
	p.none()
}

// none makes the place empty, after it was given up.
func (p *slotPlace) none() {
	p.closes.End()
	p.path, p.slot, p.closes = "", false, nil
}

// The pause before waiters are evicted is some round trips, within these limits. It saves
// evictions, since the first waiter sees that a slot is free, and takes it. It can be further
// from the service than this client.
const (
	fillTrips    = 8
	shortestFill = 100 * time.Millisecond
	longestFill  = time.Second
)

// fill sees to it, in the background, that no slot is free while a waiter is left: S6.
func (l *slotLine) fill(s *core.Session) {
	l.mu.Lock()
	l.wants++
	l.s = s // the slots of an earlier session that is over are seen by the first waiter, or here
	busy := l.wants > 1
	if !busy {
		l.done = make(chan struct{})
	}
	l.mu.Unlock()
	if busy {
		return
	}
	if l.c.GoCleanUp(func(ctx context.Context, _ *core.CleanUp) {
		for n, s := 1, s; n > 0; n, s = l.filled(n) {
			if err := l.fillOnce(ctx, s); err != nil && !errs.IsOver(err) {
				s.Client().Log().Warn("coord: cannot list the waiters of a queue, retrying", "path", l.g.Dir, "error", err)
				l.fillLater(s)
				continue
			}
			l.mu.Lock()
			l.fails = 0
			l.mu.Unlock()
		}
	}) == nil {
		l.filled(1) // the session is about to end
	}
}

// fillLater repeats a fill after a pause. The service has refused it, as when a permission was
// revoked. Meanwhile the waiters of this client take free slots wherever they stand.
func (l *slotLine) fillLater(s *core.Session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pending := l.retry != nil
	l.retry = s
	l.fails++
	if pending {
		return
	}
	pause := core.NewPauses(l.c).From(l.fails)
	l.c.GoCleanUp(func(context.Context, *core.CleanUp) {
		pause.Wait(l.c.Closing(), s.Backend().Done())
		l.mu.Lock()
		s := l.retry // a later session, if that one is over
		l.retry = nil
		l.mu.Unlock()
		if !l.c.IsClosing() && s.Backend().Err() == nil {
			l.fill(s)
		}
	})
}

// filled records that fill is done with the first n slots vacated. It returns 0 if there are no
// others, and the new number and the session if there are.
func (l *slotLine) filled(n int) (int, *core.Session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wants == n {
		l.wants, l.s = 0, nil
		close(l.done)
		l.done = nil
	}
	return l.wants, l.s
}

// fillOnce ends after mostGone rounds in which the service had none of the waiters of its list. Such
// waiters look for a slot themselves, or the server lists nodes that the service does not have.
const mostGone = 3

// fillOnce returns when it has seen that no slot is free, or that no waiter is left.
func (l *slotLine) fillOnce(ctx context.Context, s *core.Session) error {
	for most, gone := 1, 0; gone < mostGone; most *= 2 {
		v, err := l.view(ctx, s)
		if err != nil || len(v.free) == 0 || len(v.line) == 0 {
			return err
		}
		took, err := l.isTaken(ctx, s, v)
		if err != nil {
			return err
		}
		if took {
			if len(v.free) == 1 {
				return nil
			}
			most = 1
			continue
		}
		line := v.line[:min(most, len(v.line), parallel.MostReads)]
		failed := make([]error, len(line))
		parallel.Do(len(line), func(i int) {
			_, failed[i] = s.Backend().Commit(ctx, backend.Delete(l.g.Dir+"/"+line[i], backend.AnyVersion))
		})
		gone++
		for _, err := range failed {
			switch {
			case err == nil, backend.IsUncertain(err):
				gone = 0
			case !errs.Raced(err):
				return err
			}
		}
	}
	return s.Backend().Sync(ctx, l.g.Dir)
}

// isTaken waits some round trips for a client that takes the first free slot. A watch that fires is
// no proof: it does so after a reconnect as well.
func (l *slotLine) isTaken(ctx context.Context, s *core.Session, v slotView) (bool, error) {
	timer := time.NewTimer(min(max(fillTrips*v.took, shortestFill), longestFill))
	defer timer.Stop()
	for {
		w := backend.NewWatch()
		_, err := s.Backend().Exists(ctx, l.slot(v.free[0]), w)
		if !errs.IsNotFound(err) {
			w.Stop()
			return err == nil, err
		}
		select {
		case <-w.Fired():
			continue
		case <-timer.C:
		case <-l.c.Closing():
		case <-s.Backend().Done():
		}
		w.Stop()
		return false, s.Backend().Err()
	}
}
