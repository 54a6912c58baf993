package coord

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
)

// Limits of the wait for clean-up while there is contact but no answer.
const (
	giveUpWait = time.Second     // for the call that leaves nodes behind
	closeWait  = 2 * time.Second // for Close
)

// A cleanUp removes the leftovers of a call: the node of a wait that was given up, an
// item that no handler received, the record of a finished transaction. It is
// independent of the call's ctx.
//
// The call waits for its clean-up (wait) as long as the service can be expected to
// answer. A clean-up that is not done when the call returns is noted, and the next
// acquisition of this client in the same directory waits for it first
// (Client.awaitCleanUps): a client never waits for its own leftovers. A service that answers,
// even with a refusal, delays neither call.
//
// Close waits for every clean-up under way before it ends the session, as long as there
// is contact, at most closeWait. Clean-ups can begin until then, also after the call of
// Close.
//
// A nil *cleanUp is one that did not begin: the session is being ended, or is about to
// be, which removes the nodes concerned.
type cleanUp struct {
	c        *Client
	answered chan struct{} // closed when it is done, or refused by the service once
	done     chan struct{}

	// Guarded by c.mu.
	isAnswered bool
	refusal    error    // with which the service has answered; nil if it is done
	dirs       []string // the directories in which it is noted
	of         string   // the prefix of the nodes of its call, or ""
}

// beginCleanUp registers a clean-up that the end of the session must wait for. A caller
// that has something to give back when the client closes calls it first, then waits for
// c.closing in addition to its own events, gives back and calls end.
func (c *Client) beginCleanUp() *cleanUp {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newCleanUp()
}

// newCleanUp registers a clean-up, or returns nil if the session is being ended. The
// caller holds c.mu.
func (c *Client) newCleanUp() *cleanUp {
	if c.ending {
		return nil
	}
	c.cleanUps++
	return &cleanUp{c: c, answered: make(chan struct{}), done: make(chan struct{})}
}

// goCleanUp runs f in a goroutine of the client, as a clean-up. f's ctx never ends;
// calls with it also work after Close has begun, and the end of the session bounds
// them. Once c.closing is closed, f should not repeat a removal that is refused.
func (c *Client) goCleanUp(f func(ctx context.Context, u *cleanUp)) *cleanUp {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.newCleanUp()
	u.run(f)
	return u
}

// start is the second half of goCleanUp, for a clean-up that was registered before.
func (u *cleanUp) start(f func(ctx context.Context, u *cleanUp)) {
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
		u.end()
	}
}

// run runs f, for a caller that holds c.mu.
func (u *cleanUp) run(f func(ctx context.Context, u *cleanUp)) {
	if u == nil {
		return
	}
	u.c.work.Add(1)
	go func() {
		defer u.c.work.Done()
		defer u.end()
		f(context.WithValue(context.Background(), cleaningUp{}, true), u)
	}()
}

// beside runs f in a goroutine of its own until the returned function is called, which
// closes over and waits for f. The session does not end before f has returned, so f returns
// soon when the client closes.
func (c *Client) beside(f func(over <-chan struct{})) (end func()) {
	u := c.beginCleanUp()
	over, ended := make(chan struct{}), make(chan struct{})
	if !c.goWork(func() {
		defer close(ended)
		defer u.end()
		f(over)
	}) {
		close(ended)
		u.end()
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
func (u *cleanUp) refuse(err error) {
	u.c.mu.Lock()
	defer u.c.mu.Unlock()
	if !u.isAnswered {
		u.refusal = err
	}
	u.setAnswered()
}

// outcome waits, for as long as the session can last, until the clean-up is done or has been
// refused. It returns the refusal.
func (u *cleanUp) outcome() error {
	if u == nil {
		return nil
	}
	<-u.answered
	u.c.mu.Lock()
	defer u.c.mu.Unlock()
	return u.refusal
}

// setAnswered closes answered. The caller holds c.mu.
func (u *cleanUp) setAnswered() {
	if !u.isAnswered {
		u.isAnswered = true
		close(u.answered)
	}
}

// end records that the clean-up is done.
func (u *cleanUp) end() {
	if u == nil {
		return
	}
	c := u.c
	c.mu.Lock()
	defer c.mu.Unlock()
	u.setAnswered()
	close(u.done)
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

// wait returns when the clean-up, of a call on the session s with leftovers in dir, is
// done or has been refused. It returns earlier without contact, or without an answer
// for giveUpWait. A clean-up that is not done then is noted.
func (u *cleanUp) wait(s *session, dir string) {
	if u != nil {
		s.waitFor(u.answered, giveUpWait)
		u.note(dir) // no effect if it is done
	}
}

// waitForAll is cleanUp.wait for several clean-ups that are noted, together.
func (s *session) waitForAll(list ...*cleanUp) {
	began := time.Now()
	for _, u := range list {
		if u != nil {
			s.waitFor(u.answered, giveUpWait-time.Since(began))
		}
	}
}

// waitFor waits for ch while there is contact, at most for d.
func (s *session) waitFor(ch <-chan struct{}, d time.Duration) {
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

// madeFor sets the call of the clean-up, see awaitCleanUps.
func (u *cleanUp) madeFor(prefix string) *cleanUp {
	if u != nil {
		u.c.mu.Lock()
		defer u.c.mu.Unlock()
		u.of = prefix
	}
	return u
}

// note makes the next acquisition in dir wait for the clean-up, unless it is done.
func (u *cleanUp) note(dir string) {
	if u == nil {
		return
	}
	c := u.c
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-u.done:
		return
	default:
	}
	if !slices.Contains(u.dirs, dir) {
		u.dirs = append(u.dirs, dir)
		c.leftBehind[dir] = append(c.leftBehind[dir], u)
	}
}

// awaitCleanUps waits until no leftovers of earlier calls of this client are in dir, or
// until the service has refused to remove them: leftovers only delay the caller then. If
// a leftover node would do harm, own is the prefix of the caller's nodes. Then a refusal does
// not end the wait, and awaitCleanUps does not wait for leftovers that the same call has
// left on a lost session.
func (c *Client) awaitCleanUps(ctx context.Context, dir, own string) error {
	c.mu.Lock()
	list := slices.Clone(c.leftBehind[dir])
	if own != "" {
		list = slices.DeleteFunc(list, func(u *cleanUp) bool { return u.of == own })
	}
	c.mu.Unlock()
	for _, u := range list {
		over := u.answered
		if own != "" {
			over = u.done
		}
		select {
		case <-over:
			continue
		default:
		}
		select {
		case <-over:
		case <-ctx.Done():
			return c.contextError(ctx)
		case <-c.closing:
			return ErrClosed
		}
	}
	return nil
}

// hasLeftovers reports whether awaitCleanUps would wait in dir.
func (c *Client) hasLeftovers(dir string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.leftBehind[dir], func(u *cleanUp) bool { return !u.isAnswered })
}

// isClosing reports whether Close was called.
func (c *Client) isClosing() bool {
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
		c.current.Load().waitFor(clean, closeWait)
		c.mu.Lock()
	}
	c.ending = true
	c.mu.Unlock()
}

// cleanUp repeats do in the background until it succeeds or the session is over, or, if
// the client closes, until it is refused.
func (s *session) cleanUp(what, path string, do func(context.Context) error) *cleanUp {
	return s.c.goCleanUp(func(ctx context.Context, u *cleanUp) { s.retry(ctx, u, what, path, do) })
}

// retry repeats do until it succeeds or the session is over, or, if the client closes,
// until it is refused. It does so on behalf of the clean-up u, which may be nil. It
// reports whether do has succeeded.
func (s *session) retry(ctx context.Context, u *cleanUp, what, path string, do func(context.Context) error) bool {
	// The pauses are for errors that only an operator can mend, such as a revoked
	// permission. The session itself waits while there is no contact.
	for pause := (pauses{c: s.c, n: 1}); ; {
		err := do(ctx)
		if err == nil || isOver(err) {
			return err == nil
		}
		if u != nil {
			u.refuse(err)
		}
		s.c.log.Warn("coord: background operation failed, retrying", "operation", what, "path", path, "error", err)
		if !pause.wait(s.c.closing, s.b.Done()) {
			return false
		}
	}
}

// goRemove removes a node of this client in the background, for as long as the session
// lives. When the client closes, the node goes with the session.
func (s *session) goRemove(path string) *cleanUp {
	if s.c.isClosing() {
		return nil
	}
	return s.cleanUp("remove", path, func(ctx context.Context) error { return s.remove(ctx, path) })
}

// removeLater removes a node in the background: the end of the caller's ctx must not
// leave a node that blocks all contenders behind it.
func (s *session) removeLater(path string) { s.goRemove(path).note(parent(path)) }

// removeAndWait removes a node that is not needed any more, and waits for that, see
// cleanUp.wait. It returns the removal, or nil if the node goes with its session.
func (s *session) removeAndWait(path string) *cleanUp {
	if s.b.Err() != nil {
		return nil
	}
	u := s.goRemove(path)
	u.wait(s, parent(path))
	return u
}

// removeAllAndWait is giveUp for several nodes, with one commit.
func (s *session) removeAllAndWait(paths []string) {
	if len(paths) == 0 || s.b.Err() != nil || s.c.isClosing() {
		return
	}
	u := s.cleanUp("remove", paths[0], func(ctx context.Context) error {
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
			all = errors.Join(all, s.remove(ctx, p))
		}
		return all
	})
	for _, p := range paths {
		u.note(parent(p))
	}
	s.waitForAll(u)
}
