package twophase

import (
	"context"
	"fmt"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
)

// A Handler is the behaviour of a site. Prepare, Commit and Abort are required. They and InDoubt
// are functions of the program: each call runs on a goroutine of its own, which recovers a panic.
type Handler struct {
	// Decode decodes a payload for the other functions. path is that of the record. Decode runs
	// on a goroutine of the site, so it must neither panic nor end its goroutine.
	Decode func(path string, payload []byte) (any, error)

	Prepare func(ctx context.Context, tx *Branch) error
	Commit  func(ctx context.Context, tx *Branch) error
	Abort   func(ctx context.Context, tx *Branch) error
	InDoubt func(ctx context.Context, tx *Branch, err error) // may be nil

	Concurrent int // calls of Prepare at a time, and of Commit and Abort together; 0 means 32
}

// defaultConcurrent is the default of Handler.Concurrent.
const defaultConcurrent = 32

// A Branch is a transaction at a call of a function of the Handler. The methods of a nil
// Branch are those of a Branch that no Serve has made.
type Branch struct {
	ID        string
	Zxid      int64
	Site      string
	Deadline  time.Time
	Payload   any  // the result of Decode
	NoPayload bool // the record is gone or unreadable, or Decode has failed

	hold    *core.Hold // of the site's lock
	path    string
	version int32
	d       *transaction // at a call of Prepare, else nil
}

// Token returns the token of the process that serves the site.
func (b *Branch) Token() int64 {
	if b == nil {
		return 0
	}
	return b.hold.Token()
}

// Guard returns the condition that this process still serves the site, and that the branch has
// not changed since the call. In Prepare, the transaction must also be open.
func (b *Branch) Guard() core.Guard {
	if b == nil {
		return core.Guard{}
	}
	g := b.hold.Guard().And(backend.Check(b.path, b.version))
	if b.d != nil {
		g = g.And(backend.Check(b.d.open(), backend.AnyVersion))
	}
	return g
}

// Verify asks the service whether the condition of the Guard is true, and in Prepare also
// whether the transaction is undecided.
func (b *Branch) Verify(ctx context.Context) error {
	const op = "verify"
	if b == nil {
		return errs.Op(op, "", fmt.Errorf("%w: the Branch is not from Serve", backend.ErrInvalid))
	}
	if err := b.hold.Verify(ctx); err != nil { // the reads below are not older than its Sync
		return err
	}
	s := b.hold.On()
	stat, err := s.Backend().Exists(ctx, b.path, nil)
	further := errs.IsNotFound(err) || err == nil && stat.Version != b.version
	if d := b.d; d != nil && err == nil && !further {
		if _, err = s.Backend().Exists(ctx, d.decision(), nil); errs.IsNotFound(err) {
			_, err = s.Backend().Exists(ctx, d.open(), nil)
			further = errs.IsNotFound(err)
		} else {
			further = err == nil
		}
	}
	if further {
		err = fmt.Errorf("%w: the transaction has advanced beyond this call", errs.ErrConflict)
	}
	if err == nil {
		err = b.hold.Err()
	}
	return errs.Op(op, b.path, err)
}
