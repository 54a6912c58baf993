package coord

import (
	"context"
	"iter"
	"time"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/queue"
)

// A Retry is an item that was given back with a delay, by Nack or by Work, and that no consumer has taken since.
type Retry struct {
	ID       string    // of the item
	Attempts int       // how often it was taken
	Next     time.Time // from when on it can be taken, by the clock of the service; it can be past
	Error    string    // why the latest attempt failed, as NackCause has stored it; empty if that is not known
}

// Retries returns the items that wait for another attempt, the next one first, as they are when the loop reaches
// them. It takes and changes nothing, and its text is as protected as the items. It leaves out items that are
// claimed, items that a consumer has given back without a delay, and items that were lost with their consumer:
// no cause of these is stored.
//
// Before the first pair it lists the whole queue, in one request for some 16 to 64 nodes of some hundred items
// each. Then each 16 items cost one read, so a loop that breaks off early is cheap. (A service without batches
// takes one request for each node that is listed, and two reads for each item.) Retries keeps some 200 bytes for each item that
// is put off. It sends no request while the body of the loop runs, and the body may call any method, such as Remove.
//
// If the loop cannot continue, also because ctx has ended, the last pair is nil and the
// error. Errors: the context's; ErrClosed; ErrDenied; ErrBadPath; ErrKind.
func (q *Consumer[T]) Retries(ctx context.Context) iter.Seq2[*Retry, error] {
	core.NeedContext(ctx)
	return func(yield func(*Retry, error) bool) {
		err := q.q.EachRetry(ctx, func(r queue.Retry) bool { return yield((*Retry)(&r), nil) })
		if err != nil {
			yield(nil, err)
		}
	}
}
