package core

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/nodepath"
)

// Limits of the wait for clean-up while there is contact but no answer.
const (
	GiveUpWait = time.Second     // for the call that leaves nodes behind
	closeWait  = 2 * time.Second // for Close
)

// A CleanUp removes the leftovers of a call: the node of a wait that was given up, an
// item that no handler received, the record of a finished transaction. It is
// independent of the call's ctx.
//
// The call waits for its clean-up (Wait) as long as the service can be expected to
// answer. A clean-up that is not done when the call returns is noted, and the next
// acquisition of this client in the same directory waits for it first
// (Client.AwaitCleanUps): a client never waits for its own leftovers. A service that answers,
// even with a refusal, delays neither call.
//
// Close waits for every clean-up under way before it ends the session, as long as there
// is contact, at most closeWait. Clean-ups can begin until then, also after the call of
// Close.
//
// A nil *CleanUp is one that did not begin: the session is being ended, or is about to
// be, which removes the nodes concerned.
type CleanUp struct {
	c        *Client
	answered chan struct{} // closed when it is done, or refused by the service once
	Done     chan struct{}

	// Guarded by c.mu.
	isAnswered bool
	refusal    error    // the service's answer; nil if the clean-up is done
	dirs       []string // the directories in which it is noted
	of         string   // the prefix of the nodes of its call, or ""
}

// BeginCleanUp registers a clean-up that the end of the session must wait for. A caller
// that gives something back when the client closes calls it first, and then waits for
// c.closing in addition to its own events. When it has given everything back, it calls End.
func (c *Client) BeginCleanUp() *CleanUp {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newCleanUp()
}

// newCleanUp registers a clean-up, or returns nil if the session is being ended. The
// caller holds c.mu.
func (c *Client) newCleanUp() *CleanUp {
	if c.ending {
		return nil
	}
	c.cleanUps++
	return &CleanUp{c: c, answered: make(chan struct{}), Done: make(chan struct{})}
}

// GoCleanUp runs f in a goroutine of the client, as a clean-up. f's ctx never ends;
// calls with it also work after Close has begun, and the end of the session bounds
// them. Once c.closing is closed, f should not repeat a removal that is refused.
func (c *Client) GoCleanUp(f func(ctx context.Context, u *CleanUp)) *CleanUp {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.newCleanUp()
	u.run(f)
	return u
}

// start is the second half of GoCleanUp, for a clean-up that was registered before.
func (u *CleanUp) start(f func(ctx context.Context, u *CleanUp)) {
	if u == nil {
		return
	}
	u.c.mu.Lock()
	ending := u.c.ending
	if !ending {
		u.run(f)
	}
	u.c.mu.Unlock()
	if ending {
		u.End()
	}
}

// run runs f, for a caller that holds c.mu.
func (u *CleanUp) run(f func(ctx context.Context, u *CleanUp)) {
	if u == nil {
		return
	}
	u.c.work.Add(1)
	go func() {
		defer u.c.work.Done()
		defer u.End()
		f(context.WithValue(context.Background(), cleaningUp{}, true), u)
	}()
}

// Beside runs f in a goroutine of its own until the caller calls end, which closes over and waits for f. The
// session does not end before f has returned, so f must return soon when the client closes.
func (c *Client) Beside(f func(over <-chan struct{})) (end func()) {
	u := c.BeginCleanUp()
	over, ended := make(chan struct{}), make(chan struct{})
	if !c.GoWork(func() {
		defer close(ended)
		defer u.End()
		f(over)
	}) {
		close(ended)
		u.End()
	}
	return func() {
		close(over)
		<-ended
	}
}

// cleaningUp is the key of the contexts of clean-ups.
type cleaningUp struct{}

func isCleanUp(ctx context.Context) bool { return ctx.Value(cleaningUp{}) != nil }

// refuse records that the service has answered with a refusal. Only the first one counts.
func (u *CleanUp) refuse(err error) {
	u.c.mu.Lock()
	defer u.c.mu.Unlock()
	if !u.isAnswered {
		u.refusal = err
	}
	u.setAnswered()
}

// Outcome waits, for as long as the session can last, until the clean-up is done or the service has refused
// it. It returns the refusal.
func (u *CleanUp) Outcome() error {
	if u == nil {
		return nil
	}
	<-u.answered
	u.c.mu.Lock()
	defer u.c.mu.Unlock()
	return u.refusal
}

// setAnswered closes answered. The caller holds c.mu.
func (u *CleanUp) setAnswered() {
	if !u.isAnswered {
		u.isAnswered = true
		close(u.answered)
	}
}

// End records that the clean-up is done.
func (u *CleanUp) End() {
	if u == nil {
		return
	}
	c := u.c
	c.mu.Lock()
	defer c.mu.Unlock()
	u.setAnswered()
	close(u.Done)
	for _, dir := range u.dirs {
		list := c.leftBehind[dir]
		if i := slices.Index(list, u); len(list) > 1 {
			c.leftBehind[dir] = slices.Delete(list, i, i+1)
		} else {
			delete(c.leftBehind, dir)
		}
	}
	c.cleanUps--
	if c.cleanUps == 0 && c.clean != nil {
		close(c.clean)
		c.clean = nil
	}
}

// Wait returns when the clean-up, of a call on the session s with leftovers in dir, is
// done or has been refused. It returns earlier without contact, or without an answer
// for GiveUpWait. A clean-up that is not done then is noted.
func (u *CleanUp) Wait(s *Session, dir string) {
	if u != nil {
		s.WaitFor(u.answered, GiveUpWait)
		u.Note(dir) // no effect if it is done
	}
}

// waitForAll is CleanUp.Wait for several clean-ups, all of which the caller has noted. GiveUpWait bounds the
// whole wait.
func (s *Session) waitForAll(list ...*CleanUp) {
	began := time.Now()
	for _, u := range list {
		if u != nil {
			s.WaitFor(u.answered, GiveUpWait-time.Since(began))
		}
	}
}

// WaitFor waits for ch while there is contact, at most for d.
func (s *Session) WaitFor(ch <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		phase, changed := s.b.Status()
		if phase != backend.PhaseConnected {
			return
		}
		select {
		case <-ch:
			return
		case <-changed:
		case <-timer.C:
			return
		}
	}
}

// MadeFor sets the call of the clean-up, see AwaitCleanUps.
func (u *CleanUp) MadeFor(prefix string) *CleanUp {
	if u != nil {
		u.c.mu.Lock()
		defer u.c.mu.Unlock()
		u.of = prefix
	}
	return u
}

// Note makes the next acquisition in dir wait for the clean-up, unless it is done.
func (u *CleanUp) Note(dir string) {
	if u == nil {
		return
	}
	c := u.c
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-u.Done:
		return
	default:
	}
	if !slices.Contains(u.dirs, dir) {
		u.dirs = append(u.dirs, dir)
		c.leftBehind[dir] = append(c.leftBehind[dir], u)
	}
}

// AwaitCleanUps waits until no leftovers of earlier calls of this client are in dir, or
// until the service has refused to remove them. If own is empty, leftovers can only delay the caller, so a
// refusal ends the wait. A caller to which a leftover node does harm gives the prefix of its nodes as own.
// Then a refusal does not end the wait, and AwaitCleanUps does not wait for leftovers that the same call
// has left on a lost session.
func (c *Client) AwaitCleanUps(ctx context.Context, dir, own string) error {
	c.mu.Lock()
	list := slices.Clone(c.leftBehind[dir])
	if own != "" {
		list = slices.DeleteFunc(list, func(u *CleanUp) bool { return u.of == own })
	}
	c.mu.Unlock()
	for _, u := range list {
		over := u.answered
		if own != "" {
			over = u.Done
		}
		select {
		case <-over:
			continue
		default:
		}
		select {
		case <-over:
		case <-ctx.Done():
			return c.ContextError(ctx)
		case <-c.closing:
			return backend.ErrClosed
		}
	}
	return nil
}

// HasLeftovers reports whether AwaitCleanUps without own would wait in dir.
func (c *Client) HasLeftovers(dir string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.leftBehind[dir], func(u *CleanUp) bool { return !u.isAnswered })
}

// IsClosing reports whether Close was called.
func (c *Client) IsClosing() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

// finishCleanUps is the part of Close that waits for clean-ups. Without contact it does
// not wait, since no clean-up can succeed.
func (c *Client) finishCleanUps() {
	c.mu.Lock()
	if c.cleanUps > 0 {
		clean := make(chan struct{})
		c.clean = clean
		c.mu.Unlock()
		c.current.Load().WaitFor(clean, closeWait)
		c.mu.Lock()
	}
	c.ending = true
	c.mu.Unlock()
}

// CleanUp repeats do in the background until it succeeds or the session is over, or, if
// the client closes, until it is refused.
func (s *Session) CleanUp(what, path string, do func(context.Context) error) *CleanUp {
	return s.c.GoCleanUp(func(ctx context.Context, u *CleanUp) { s.Retry(ctx, u, what, path, do) })
}

// Retry repeats do until it succeeds or the session is over, or, if the client closes,
// until it is refused. It does so on behalf of the clean-up u, which may be nil. It
// reports whether do has succeeded.
func (s *Session) Retry(ctx context.Context, u *CleanUp, what, path string, do func(context.Context) error) bool {
	// The pauses are for errors that only an operator can mend, such as a revoked
	// permission. The session itself waits while there is no contact.
	for pause := NewPauses(s.c).From(1); ; {
		err := do(ctx)
		if err == nil || errs.IsOver(err) {
			return err == nil
		}
		if u != nil {
			u.refuse(err)
		}
		s.c.log.Warn("coord: background operation failed, retrying", "operation", what, "path", path, "error", err)
		if !pause.Wait(s.c.closing, s.b.Done()) {
			return false
		}
	}
}

// goRemove removes a node of this client in the background, for as long as the session
// lives. When the client closes, the node goes with the session.
func (s *Session) goRemove(path string) *CleanUp {
	if s.c.IsClosing() {
		return nil
	}
	return s.CleanUp("remove", path, func(ctx context.Context) error { return s.Remove(ctx, path) })
}

// RemoveLater removes a node in the background: the end of the caller's ctx must not
// leave a node that blocks all contenders behind it.
func (s *Session) RemoveLater(path string) *CleanUp {
	u := s.goRemove(path)
	u.Note(nodepath.Parent(path))
	return u
}

// RemoveAndWait removes a node that is not needed any more, and waits for that, see
// CleanUp.Wait. It returns the removal, or nil if the node goes with its session.
func (s *Session) RemoveAndWait(path string) *CleanUp {
	if s.b.Err() != nil {
		return nil
	}
	u := s.goRemove(path)
	u.Wait(s, nodepath.Parent(path))
	return u
}

// RemoveAllAndWait is RemoveAndWait for several nodes, with one commit.
func (s *Session) RemoveAllAndWait(paths []string) {
	if len(paths) == 0 || s.b.Err() != nil || s.c.IsClosing() {
		return
	}
	u := s.CleanUp("remove", paths[0], func(ctx context.Context) error {
		ops := make([]backend.Op, len(paths))
		for i, p := range paths {
			ops[i] = backend.Delete(p, backend.AnyVersion)
		}
		if _, err := s.b.Commit(ctx, ops...); err == nil {
			return nil
		}
		// One of them is gone, or denied, or the outcome is unknown.
		var all error
		for _, p := range paths {
			all = errors.Join(all, s.Remove(ctx, p))
		}
		return all
	})
	for _, p := range paths {
		u.Note(nodepath.Parent(p))
	}
	s.waitForAll(u)
}
