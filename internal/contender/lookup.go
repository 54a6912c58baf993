package contender

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"

	"github.com/go-coord/coord/internal/layout"
)

// mostOfID is the number of characters of a holder's ID that an error shows.
const mostOfID = 100

// A Lookup finds out which client holds the lock that a call did not get, for the
// message of the call's error. Only a caller with an ID makes one, so other callers pay
// no request for the message: their lookup is nil. The message never contains Data.
type Lookup struct {
	holders []string // the nodes of the holders, as listed by a try that fails
	answer  string
}

// NewLookup returns the lookup of a call. It is not a part of the request: a request
// that a goroutine could keep would cost each call an allocation.
func NewLookup(hasID bool) *Lookup {
	if !hasID {
		return nil
	}
	return &Lookup{}
}

// Locked returns ErrLocked. holders returns the names of the holders' nodes, in the
// order of the queue; the first is the one to name.
func (q *Lookup) Locked(holders func() []string) error {
	if q != nil {
		q.holders = holders()
	}
	return errs.ErrLocked
}

// Begin starts the lookup if the call failed with err because of other contenders. The
// caller removes its node meanwhile, and then calls end, which waits for the answer: as
// long as there is contact, and not longer than core.GiveUpWait after begin. list returns
// the names of the holders' nodes among the children of dir; it is used unless the try
// that failed has listed them.
func (q *Lookup) Begin(ctx context.Context, s *core.Session, dir string, err error, list func(names []string) []string) (end func()) {
	if q == nil || s == nil || !errs.OfContext(err) && !(errs.Answers(err, errs.ErrLocked) && len(q.holders) > 0) {
		return func() {}
	}
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, core.GiveUpWait)
	done := make(chan struct{})
	if !s.Client().GoWork(func() {
		defer close(done)
		q.lookUp(ctx, s, dir, list)
	}) {
		close(done)
	}
	return func() {
		s.WaitFor(done, core.GiveUpWait) // ctx ends the lookup earlier
		cancel()
		<-done
	}
}

// lookUp sets the answer, if there is one.
func (q *Lookup) lookUp(ctx context.Context, s *core.Session, dir string, list func(names []string) []string) {
	if len(q.holders) == 0 {
		names, _, err := s.Backend().Children(ctx, dir, nil)
		if err != nil {
			return
		}
		if q.holders = list(names); len(q.holders) == 0 {
			return
		}
	}
	data, stat, err := s.Backend().Get(ctx, dir+"/"+q.holders[0], nil)
	if err != nil {
		return // released since the listing, or no answer
	}
	_, own := layout.OpenEnvelope(data)
	who := fmt.Sprintf("session 0x%x", uint64(stat.EphemeralOwner))
	if id, _ := layout.OpenContender(own); id != "" {
		who = fmt.Sprintf("%.*q", mostOfID, id)
	}
	age := max(time.Since(time.UnixMilli(stat.Ctime)), 0).Truncate(time.Second) // the clocks can differ
	q.answer = fmt.Sprintf("held by %s, which requested it %v ago", who, age)
	if more := len(q.holders) - 1; more > 0 {
		q.answer += fmt.Sprintf(", and %d more", more)
	}
}

// Explain adds the answer to the error of a call that failed because of other
// contenders.
func (q *Lookup) Explain(err error) error {
	if q == nil || q.answer == "" || !errors.Is(err, errs.ErrLocked) && !errs.OfContext(err) {
		return err
	}
	return fmt.Errorf("%w (%s)", err, q.answer)
}
