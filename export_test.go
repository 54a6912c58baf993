package coord

import (
	"context"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// SetBucketSize makes the buckets of a queue small.
func SetBucketSize[T any](q *Consumer[T], n int) { q.q.size = n }

// SetBucketLimit makes a queue have few buckets.
func SetBucketLimit[T any](q *Consumer[T], n int) { q.q.most = n }

// SetClock makes the clock of a consumer go wrong by d.
func SetClock[T any](q *Consumer[T], d time.Duration) { q.q.skew = d }

// AcksWaiting is how many Acks of a queue wait for the one under way.
func AcksWaiting[T any](q *Consumer[T]) (n int) {
	q.q.mu.Lock()
	defer q.q.mu.Unlock()
	for _, line := range q.q.acks {
		n += len(line.waiting)
	}
	return n
}

// AckLines is how many sessions have Acks of a queue under way.
func AckLines[T any](q *Consumer[T]) int {
	q.q.mu.Lock()
	defer q.q.mu.Unlock()
	return len(q.q.acks)
}

// OpenDrawing opens a client that takes its random numbers from draw. What they
// are for is told, so that goroutines that draw at the same moment do not shift
// each other's.
func OpenDrawing(ctx context.Context, b backend.Backend, o *Options, draw func(what string) uint64) (*Client, error) {
	return open(ctx, b, o, draw)
}

// DecisionName is what the decision of the transaction with this zxid is called.
func DecisionName(zxid int64) string { return layout.DecisionName(zxid) }

// Whoever ends a hold marks it first, and then tells the set. Who asks the set in
// between gets the same answers as afterwards.
func TestASetThatKnowsOfALossHasEnded(t *testing.T) {
	for name, ask := range map[string]func(*HoldSet){
		"Err":  func(s *HoldSet) { s.Err() },
		"Done": func(s *HoldSet) { s.Done() },
	} {
		t.Run(name, func(t *testing.T) {
			first, second := &loss{"/x", ErrDeleted}, &loss{"/y", ErrSessionLost}
			s := &HoldSet{holds: []*Hold{{err: first}, {}}, done: make(chan struct{})}
			ask(s)
			select {
			case <-s.Done():
			default:
				t.Error("Done is open")
			}
			s.end(second) // another hold's end is told before the first one's
			if err := s.Err(); err != first {
				t.Errorf("%v, want the reason that was told first, %v", err, first)
			}
		})
	}
}

// Overtaken fills a stock that has given back what it had with an item that comes late,
// and returns what it hands out.
func Overtaken[T any](late *Item[T]) *Item[T] {
	st := &stock[T]{}
	st.giveBack()
	return st.fill([]*Item[T]{late})
}
