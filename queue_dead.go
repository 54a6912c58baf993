package coord

import (
	"context"
	"iter"
	"time"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/queue"
	"github.com/go-coord/coord/trace"
)

// A DeadLetter is an item in the dead letters of a queue, with the reason of the move. The
// reason is stored in a node beside the item. If that node is missing (a client of an earlier
// version moved the item, or an outsider changed the node), Queue, Reason, Error, Attempts,
// Session and Priority have their zero values.
type DeadLetter[T any] struct {
	ID    string // of the item, which keeps it
	Value T      // zero if Err is not nil
	Err   error  // matches ErrDecode if the codec of this queue cannot decode Data; else nil
	Data  []byte // the bytes of the item

	Queue    string       // the path of the queue that it was in, the namespace included
	Reason   trace.Reason // failed, undecodable, timeout or abandoned; see package trace
	Error    string       // the text of the error, up to a kilobyte; it can quote the item
	Attempts int          // how often it was taken
	Session  int64        // of the last consumer; 0 if that is not known, as for abandoned items
	Priority int64        // of an item of a PriorityQueue
	Since    time.Time    // when it was moved, by the clock of the service, if it has one

	// Claimed: a consumer of the dead-letter queue has claimed the item. Redrive and Remove
	// leave it alone.
	Claimed bool
}

// Dead returns the dead letters of this queue, in the order in which they were moved, as they
// are when the loop reaches them. It takes and changes nothing. Where several queues share a
// DeadLetterPath, it leaves out the items that came from the others, and returns those whose
// origin is not known.
//
// Dead returns an item that the codec cannot decode with its bytes. It costs two requests, one
// list for some hundred items, and one read for 16 items (without batches of the service, up to
// two for each item). No list or read is larger than that. Dead sends no request while the body
// of the loop runs, and the body may call any method, also Redrive and Remove.
//
// If the loop cannot continue, also because ctx has ended, the last pair is nil and the
// error. So a loop without an error has seen everything. Errors: the context's; ErrClosed;
// ErrDenied; ErrBadPath; ErrKind.
func (q *Consumer[T]) Dead(ctx context.Context) iter.Seq2[*DeadLetter[T], error] {
	core.NeedContext(ctx)
	return func(yield func(*DeadLetter[T], error) bool) {
		err := q.q.EachLetter(ctx, func(l queue.Letter) bool {
			d := &DeadLetter[T]{
				ID: l.ID, Data: l.Data, Queue: l.Queue, Reason: l.Reason, Error: l.Error, Attempts: l.Attempts,
				Session: l.Session, Priority: l.Priority, Since: l.Since, Claimed: l.Claimed,
			}
			d.Value, d.Err = q.codec.decode(l.Data)
			return yield(d, nil)
		})
		if err != nil {
			yield(nil, err)
		}
	}
}

// Redrive puts dead letters of this queue back into it, and returns their number. It moves the
// dead letters with the given ids. Without ids it moves all dead letters that no consumer has
// claimed, as they were when Redrive began: so never pass an empty selection.
//
// An item keeps its id and bytes, and its attempts are counted anew. It goes to the end of a
// Queue. In a PriorityQueue it has its old priority, or 0, ahead of up to some hundred items; in
// a DelayQueue it is due at once. Each move is one atomic commit. If its outcome is unknown when
// the session or ctx ends, the error matches ErrUncertain, and up to 16 more items may have been
// moved: call Redrive again.
//
// An item whose Key another item has, or had until its KeyFor has passed, stays where it is: the others are moved, and the error
// matches ErrExists. Redrive stops with ErrFull when MaxLen is reached. With ids it moves the items that it can
// move: ErrLocked means that a consumer has claimed an item, ErrNotFound that an item does not
// exist or came from another queue. An item of unknown origin is moved only by its id. Other
// errors: the context's, ErrLimit, ErrConflict, ErrNotEmpty, ErrDenied, ErrClosed, ErrBadPath,
// ErrKind.
func (q *Consumer[T]) Redrive(ctx context.Context, ids ...string) (n int, err error) {
	return q.q.Redrive(ctx, ids)
}

// Remove deletes the item with this id, wherever it is: in the queue, also if it is put off or
// not due, or in the dead letters of the queue. Where several queues share a DeadLetterPath,
// it deletes a dead letter of any of them. An item that a consumer has claimed is left alone,
// and the error matches ErrLocked. If there is no such item, the error matches ErrNotFound.
//
// The item is deleted by one atomic commit, exactly once, even if replies are lost. If the
// session is lost, or ctx ends, while the outcome is unknown, the error matches ErrUncertain.
//
// Remove searches the queue and then the dead letters, which costs one list for some hundred
// items; then the deletion, and one request more for an item that was taken before. If it
// finds no item, it has listed the queue twice.
//
// Errors: the context's; ErrLocked; ErrNotFound; ErrUncertain; ErrConflict if the item has
// changed ten times while Remove tried to delete it; backend.ErrNotEmpty, if another program
// made a node below the item; ErrDenied, ErrClosed, ErrBadPath, ErrKind.
func (q *Consumer[T]) Remove(ctx context.Context, id string) error { return q.q.RemoveItem(ctx, id) }
