package queue

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/internal/usercode"
	"github.com/go-coord/coord/trace"
)

// deadReason is why an item is moved to the dead letters.
type deadReason struct {
	reason trace.Reason
	text   string // for people
}

var (
	timedOut         = deadReason{trace.ReasonTimeout, errs.ErrClaimTimeout.Error()}
	abandoned        = deadReason{trace.ReasonAbandoned, "its consumer died, or lost its session"}
	decodingPanicked = deadReason{trace.ReasonFailed, "the codec panicked"}
)

// failedFor is the reason for an item whose processing failed. It waits for foreign code, the method of the
// error, which can panic or end its goroutine.
func failedFor(cause error) deadReason {
	why := deadReason{reason: trace.ReasonFailed}
	if cause == nil {
		return why
	}
	err := usercode.Call(func() error {
		why.text = fmt.Sprint(cause) // survives a panic
		return nil
	})
	if err != nil {
		why.text = err.Error()
	}
	return why
}

func undecodable(err error) deadReason { return deadReason{trace.ReasonUndecodable, err.Error()} }

// word returns the reason as a word.
func (why deadReason) word() trace.Reason {
	if why.reason == "" {
		return trace.ReasonFailed
	}
	return why.reason
}

// reasonOf returns the data of the node that says why e, which has the options o, is a dead letter. s is the session of
// the last consumer, nil if it is not known.
func (q *Queue) reasonOf(e *layout.QueueEntry, o itemOptions, attempts int, s *core.Session, why deadReason) []byte {
	r := layout.DeadReason{Reason: string(why.word()), Error: why.text, Attempts: attempts, Queue: q.path.Full(), Due: e.Due, Options: o.data,
		Key: e.Tag.Hash, KeyUntil: e.Tag.Until, Trace: e.Trace}
	if s != nil {
		r.Session = layout.SessionText(s.Backend().ID())
	}
	if q.kind == layout.KindPriorityQueue {
		r.Priority = e.Key()
	}
	return r.Encode()
}

// withoutKey returns the reason of a dead letter for a commit without the operation on the note at path. If the note is the tag of the
// item, the item has no key any more (K3), and the reason names none.
func withoutKey(reason []byte, path string) []byte {
	r, ok := layout.ParseDeadReason(reason)
	if _, _, tag := layout.ParseTag(nodepath.Base(path)); !tag || !ok {
		return reason
	}
	r.Key, r.KeyUntil = "", 0
	return r.Encode()
}

// withReasons appends the operations that create the reasons of dead letters, unless the
// commit would be too large with them.
func withReasons(s *core.Session, ops []backend.Op, bucket string, batch []newItem) []backend.Op {
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
func withoutReasons(batch []newItem) []newItem {
	plain := make([]newItem, len(batch))
	for i, p := range batch {
		plain[i] = p
		plain[i].reason = nil
	}
	return plain
}

// letter is an item that was read in a queue of dead letters.
type letter struct {
	e     layout.QueueEntry
	data  []byte
	stat  backend.Stat
	why   layout.DeadReason
	known bool // why was read
}

// ours reports whether l came from q. If its origin is not known, it counts as an item of q; known is true
// then only if q has its dead letters at the default path, which no other queue uses by default.
func (q *Queue) ours(l *letter) (ours, known bool) {
	if l.known {
		return l.why.Queue == q.path.Full(), true
	}
	return true, q.dead.path.Full() == deadPath(q.path.Full())
}

// lettersAtOnce is the number of dead letters that are read at once, and moved in one commit.
// It bounds the memory, since each can have a megabyte.
const lettersAtOnce = 16

// A Letter is a dead letter of a queue. The fields from Queue on are zero if its reason is not known.
type Letter struct {
	ID      string
	Data    []byte
	Since   time.Time // when it was moved, by the clock of the service
	Claimed bool

	Queue    string // the path of the queue that it was in, with the namespace
	Reason   trace.Reason
	Error    string
	Attempts int
	Session  int64 // of the last consumer
	Priority int64
}

// EachLetter calls f with the dead letters of q until f returns false. No session is needed while f runs.
func (q *Queue) EachLetter(ctx context.Context, f func(Letter) bool) error {
	if err := q.path.Check("dead"); err != nil {
		return err
	}
	return errs.Op("dead", q.path.Full(), q.eachLetter(ctx, func(l *letter) bool {
		return f(Letter{
			ID: l.e.ID, Data: l.data, Since: time.UnixMilli(l.stat.Ctime), Claimed: l.e.Marked,
			Queue: l.why.Queue, Reason: trace.Reason(l.why.Reason), Error: l.why.Error,
			Attempts: l.why.Attempts, Session: l.why.SessionID(), Priority: l.why.Priority,
		})
	}))
}

func (q *Queue) eachLetter(ctx context.Context, f func(l *letter) bool) error {
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
func (q *Queue) deadBuckets(ctx context.Context, s *core.Session) ([]layout.Bucket, error) {
	if err := s.CheckKind(ctx, q.dead.recipeDir()); err != nil {
		return nil, err
	}
	names, err := s.List(ctx, q.dead.items)
	return layout.Buckets(q.dead.items, names), err
}

// listBucket lists a bucket. One that is gone is empty.
func listBucket(ctx context.Context, s *core.Session, b layout.Bucket) (layout.BucketContents, error) {
	names, stat, err := s.Backend().Children(ctx, b.Path, nil)
	if err != nil && !errs.IsNotFound(err) {
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
		case !errs.IsNotFound(itemErr):
			return nil, itemErr
		}
	}
	return letters, nil
}
