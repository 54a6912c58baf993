//go:build linux

package chaos

import (
	"context"
	"fmt"
	"time"

	"github.com/go-coord/coord"
)

// The paths.
const (
	mutexPath     = "/locks/mutex"
	rwPath        = "/locks/rw"
	semaphorePath = "/locks/semaphore"
	electionPath  = "/election"
	queuePath     = "/queue"
	valuePath     = "/values/value"
	counterPath   = "/values/counter"
	treePath      = "/tree"
	txnPath       = "/txn"
)

const semaphoreLimit = 5

// acquire acquires a hold and records it. One acquisition in eight gives up soon.
func (w *worker) acquire(ctx context.Context, e event, get func(ctx context.Context) (*coord.Hold, error)) (h *coord.Hold, id string) {
	e.Op = "acquire"
	_, _ = w.one(ctx, e, w.patience(), func(ctx context.Context, e *event) (err error) {
		if h, err = get(ctx); err == nil {
			id = w.grant(e, h)
		}
		return err
	})
	if h == nil {
		return nil, ""
	}
	w.x.watch(e.Work, h, id)
	return h, id
}

// patience is the time for an acquisition.
func (w *worker) patience() time.Duration {
	if w.rand.IntN(8) == 0 {
		return 50 * time.Millisecond
	}
	return 20 * time.Second
}

// grant completes the event of an acquisition, and returns the ID of the hold.
func (w *worker) grant(e *event, h *coord.Hold) (id string) {
	id = h.Path()
	if e.Value == keeps {
		// The holds on one kept node have one path.
		id += fmt.Sprint(keptID, w.x.kept.Add(1))
	}
	e.ID, e.Token, e.Session = id, h.Token(), h.Session()
	return id
}

// release releases a hold. It is fine if the hold is lost or the service refuses.
func (w *worker) release(ctx context.Context, work string, h *coord.Hold, id string) bool {
	e := event{Work: work, Op: "release", ID: id, Token: h.Token(), Session: h.Session(), Value: h.Path()}
	kind, _ := w.one(ctx, e, limit, func(context.Context, *event) error { return h.Release() })
	return kind == "ok"
}

// The Value of an acquisition with MutexOptions.Keep, and what precedes the number in the ID of
// its hold.
const (
	keeps  = "keep"
	keptID = "#"
)

// mutex locks with MutexOptions.Keep in half of the processes.
func (x *client) mutex(ctx context.Context, w *worker) {
	var o coord.MutexOptions
	e := event{Work: "mutex"}
	if w.rand.IntN(2) == 0 {
		o.Keep, e.Value = time.Second, keeps
	}
	m := coord.NewMutex(x.c, mutexPath, &o)
	w.loop(ctx, 40*time.Millisecond, func(ctx context.Context) bool {
		h, id := w.acquire(ctx, e, m.Lock)
		if h == nil {
			return false
		}
		w.write("mutex", h)
		w.linger(ctx, "mutex")
		w.pause(ctx, 5*time.Millisecond)
		w.write("mutex", h)
		return w.release(ctx, "mutex", h, id)
	})
}

func (x *client) rwmutex(ctx context.Context, w *worker) {
	const work = "rwmutex"
	rw := coord.NewRWMutex(x.c, rwPath, nil)
	w.loop(ctx, 40*time.Millisecond, func(ctx context.Context) bool {
		if w.rand.IntN(5) < 3 {
			h, id := w.acquire(ctx, event{Work: work, Value: "read"}, rw.RLock)
			if h == nil {
				return false
			}
			w.pause(ctx, 10*time.Millisecond)
			return w.release(ctx, work, h, id)
		}
		h, id := w.acquire(ctx, event{Work: work, Value: "write"}, rw.Lock)
		if h == nil {
			return false
		}
		w.write("rwmutex", h)
		w.pause(ctx, 5*time.Millisecond)
		w.write("rwmutex", h)
		if w.rand.IntN(2) == 0 {
			e := event{Work: work, Op: "downgrade", ID: id, Token: h.Token(), Session: h.Session()}
			_, _ = w.one(ctx, e, 10*time.Second, func(ctx context.Context, e *event) error {
				defer func() { e.Value = h.Path() }()
				return rw.Downgrade(ctx, h)
			})
			w.pause(ctx, 10*time.Millisecond)
		}
		return w.release(ctx, work, h, id)
	})
}

func (x *client) semaphore(ctx context.Context, w *worker) {
	s := coord.NewSemaphore(x.c, semaphorePath, semaphoreLimit, nil)
	w.loop(ctx, 40*time.Millisecond, func(ctx context.Context) bool {
		n := 1 + w.rand.IntN(4)
		h, id := w.acquire(ctx, event{Work: "semaphore", Num: int64(n)}, func(ctx context.Context) (*coord.Hold, error) {
			return s.Acquire(ctx, n)
		})
		if h == nil {
			return false
		}
		w.pause(ctx, 20*time.Millisecond)
		return w.release(ctx, "semaphore", h, id)
	})
}

func (x *client) election(ctx context.Context, w *worker) {
	e := coord.NewElection(x.c, electionPath, &coord.ElectionOptions{ID: x.spec.Name})
	w.loop(ctx, 40*time.Millisecond, func(ctx context.Context) bool {
		var term *coord.Term
		h, id := w.acquire(ctx, event{Work: "election"}, func(ctx context.Context) (h *coord.Hold, err error) {
			if term, err = e.Campaign(ctx); err != nil {
				return nil, err
			}
			return term.Hold, nil
		})
		if h == nil {
			return false
		}
		w.write("election", h)
		announcing, cancel := context.WithTimeout(h.Context(ctx), limit)
		_ = term.Announce(announcing, fmt.Append(nil, h.Token())) // it ends with the term
		cancel()
		w.linger(ctx, "election")
		w.pause(ctx, 40*time.Millisecond)
		w.write("election", h)
		return w.release(ctx, "election", h, id)
	})
}
