package coord

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// deadReason is why an item is moved to the dead letters.
type deadReason struct {
	reason trace.Reason
	text   string // for people
}

var (
	timedOut         = deadReason{trace.ReasonTimeout, ErrClaimTimeout.Error()}
	abandoned        = deadReason{trace.ReasonAbandoned, "its consumer died, or lost its session"}
	decodingPanicked = deadReason{trace.ReasonFailed, "the codec panicked"}
)

// failedFor is the reason for an item whose processing failed. It runs foreign code, the
// method of the error, in the goroutine of the caller.
func failedFor(cause error) deadReason {
	if cause == nil {
		return deadReason{reason: trace.ReasonFailed}
	}
	return deadReason{trace.ReasonFailed, fmt.Sprint(cause)} // survives a panic of the method
}

func undecodable(err error) deadReason { return deadReason{trace.ReasonUndecodable, err.Error()} }

// word returns the reason as a word.
func (why deadReason) word() trace.Reason {
	if why.reason == "" {
		return trace.ReasonFailed
	}
	return why.reason
}

// core.ReasonOf returns the data of the node that says why e is a dead letter. s is the session of
// the last consumer, nil if it is not known.
func (q *queue) reasonOf(e *layout.QueueEntry, attempts int, s *core.Session, why deadReason) []byte {
	r := layout.DeadReason{Reason: string(why.word()), Error: why.text, Attempts: attempts, Queue: q.path.Full(), Due: e.Due}
	if s != nil {
		r.Session = core.SessionID(s.Backend().ID())
	}
	if q.kind == priorityQueue {
		r.Priority = e.Key()
	}
	return r.Encode()
}

// withReasons appends the operations that create the reasons of dead letters, unless the
// commit would be too large with them.
func withReasons(s *core.Session, ops []backend.Op, bucket string, batch []parcel) []backend.Op {
	all := ops[:len(ops):len(ops)]
	for _, p := range batch {
		if p.reason != nil {
			all = append(all, backend.Create(bucket+"/"+layout.ReasonPrefix+p.id, p.reason, backend.Persistent))
		}
	}
	if len(all) > len(ops) && s.Backend().Limits().Refuse(append(all, s.Client().Proof())) != nil {
		return ops
	}
	return all
}

// withoutReasons returns batch without the reasons.
func withoutReasons(batch []parcel) []parcel {
	plain := make([]parcel, len(batch))
	for i, p := range batch {
		plain[i] = parcel{id: p.id, data: p.data}
	}
	return plain
}

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
		err := q.q.path.Check("dead")
		if err == nil {
			err = q.q.eachLetter(ctx, func(l *letter) bool {
				d := &DeadLetter[T]{
					ID: l.e.ID, Data: l.data, Claimed: l.e.Marked, Since: time.UnixMilli(l.stat.Ctime),
					Queue: l.why.Queue, Reason: trace.Reason(l.why.Reason), Error: l.why.Error,
					Attempts: l.why.Attempts, Session: l.why.SessionID(), Priority: l.why.Priority,
				}
				d.Value, d.Err = q.codec.decode(l.data)
				return yield(d, nil)
			})
		}
		if err != nil {
			yield(nil, core.OpError("dead", q.q.path.Full(), err))
		}
	}
}

// letter is an item that was read in a queue of dead letters.
type letter struct {
	e     layout.QueueEntry
	data  []byte
	stat  backend.Stat
	why   layout.DeadReason
	known bool // why was read
}

// ours reports whether l came from q, as far as is known. An item of unknown origin in the
// default place of q's dead letters did.
func (q *queue) ours(l *letter) (ours, known bool) {
	if l.known {
		return l.why.Queue == q.path.Full(), true
	}
	return true, q.dead.path.Full() == deadPath(q.path.Full())
}

// lettersAtOnce is the number of dead letters that are read at once, and moved in one commit.
// It bounds the memory, since each can have a megabyte.
const lettersAtOnce = 16

// eachLetter calls f with the dead letters of q until f returns false. No session is needed
// while f runs.
func (q *queue) eachLetter(ctx context.Context, f func(l *letter) bool) error {
	buckets, err := core.OnSession(ctx, q.c, func(s *core.Session) ([]layout.Bucket, error) { return q.deadBuckets(ctx, s) })
	if err != nil {
		return err
	}
	for _, b := range buckets {
		c, err := core.OnSession(ctx, q.c, func(s *core.Session) (layout.BucketContents, error) { return listBucket(ctx, s, b) })
		if err != nil {
			return err
		}
		for some := range slices.Chunk(c.Items, lettersAtOnce) {
			letters, err := core.OnSession(ctx, q.c, func(s *core.Session) ([]*letter, error) { return readLetters(ctx, s, some) })
			if err != nil {
				return err
			}
			for _, l := range letters {
				if ours, _ := q.ours(l); ours && !f(l) {
					return nil
				}
			}
		}
	}
	return nil
}

// deadBuckets lists the buckets of the dead letters.
func (q *queue) deadBuckets(ctx context.Context, s *core.Session) ([]layout.Bucket, error) {
	if err := s.CheckKind(ctx, q.dead.recipeDir()); err != nil {
		return nil, err
	}
	names, err := s.List(ctx, q.dead.items)
	return layout.Buckets(q.dead.items, names), err
}

// listBucket lists a bucket. One that is gone is empty.
func listBucket(ctx context.Context, s *core.Session, b layout.Bucket) (layout.BucketContents, error) {
	names, stat, err := s.Backend().Children(ctx, b.Path, nil)
	if err != nil && !core.IsNotFound(err) {
		return layout.BucketContents{}, err
	}
	return layout.ParseBucket(b.Path, names, stat.AsOf), nil
}

// readLetters reads items and their reasons. It leaves out the items that are gone.
func readLetters(ctx context.Context, s *core.Session, items []layout.QueueEntry) ([]*letter, error) {
	var paths []string
	for i := range items {
		e := &items[i]
		if paths = append(paths, e.Path()); e.Reason {
			paths = append(paths, e.ReasonAt())
		}
	}
	if len(paths) == 0 {
		return nil, nil
	}
	read, err := s.GetAll(ctx, paths)
	if err != nil {
		return nil, err
	}
	var letters []*letter
	for _, e := range items {
		l := &letter{e: e, data: read[0].Data, stat: read[0].Stat}
		itemErr := read[0].Err
		if read = read[1:]; e.Reason {
			if read[0].Err == nil {
				l.why, l.known = layout.ParseDeadReason(read[0].Data)
			}
			read = read[1:]
		}
		switch {
		case itemErr == nil:
			letters = append(letters, l)
		case !core.IsNotFound(itemErr):
			return nil, itemErr
		}
	}
	return letters, nil
}
