package coord

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/layout"
)

// SetBucketSize makes the buckets of a queue small.
func SetBucketSize[T any](q *Consumer[T], n int) { q.q.size = n }

// SetDeadBucketSize makes the buckets of its dead letters small.
func SetDeadBucketSize[T any](q *Consumer[T], n int) { q.q.dead.size = n }

// SetBucketLimit makes a queue have few buckets.
func SetBucketLimit[T any](q *Consumer[T], n int) { q.q.most = n }

// SetClock makes the clocks of the client of q wrong by d, before it makes any call.
func SetClock[T any](q *Consumer[T], d time.Duration) {
	q.q.c.skew = d
	k := &q.q.c.current.Load().clock
	k.mu.Lock()
	defer k.mu.Unlock()
	k.offset = offset{}
}

// WhenEnded calls f in the goroutine that ends a hold, when Done is closed.
func WhenEnded(h *Hold, f func(error)) { h.whenEnded(f) }

// AcksWaiting returns the number of Acks of a queue that wait for the one under way.
func AcksWaiting[T any](q *Consumer[T]) (n int) {
	q.q.mu.Lock()
	defer q.q.mu.Unlock()
	for _, line := range q.q.acks {
		n += len(line.waiting)
	}
	return n
}

// AckLines returns the number of sessions that have Acks of a queue under way.
func AckLines[T any](q *Consumer[T]) int {
	q.q.mu.Lock()
	defer q.q.mu.Unlock()
	return len(q.q.acks)
}

// StopClaimTimer stops the timer of ClaimTimeout, as if it were late.
func StopClaimTimer[T any](it *Item[T]) {
	it.claim.mu.Lock()
	defer it.claim.mu.Unlock()
	it.claim.timer.Stop()
}

var (
	claimStates = []string{claimHeld: "held", claimEnding: "ending", claimInsisting: "insisting", claimEnded: "ended", claimLost: "lost"}
	claimEvents = []string{claimRelease: "release", claimLose: "lose", claimSettle: "settle", claimInsist: "insist"}
)

// StateOfClaim returns the state of the claim on an item.
func StateOfClaim[T any](it *Item[T]) string {
	it.claim.mu.Lock()
	defer it.claim.mu.Unlock()
	return claimStates[it.claim.state]
}

// MoveClaim returns the state to which an event moves a claim, or "panic".
func MoveClaim(from, event string) (to string) {
	defer func() {
		if recover() != nil {
			to = "panic"
		}
	}()
	cl := &itemClaim{state: claimState(slices.Index(claimStates, from))}
	cl.move(claimEvent(slices.Index(claimEvents, event)))
	return claimStates[cl.state]
}

// DecisionName returns the name of the decision of the transaction with this zxid.
func DecisionName(zxid int64) string { return layout.DecisionName(zxid) }

// A hold that ends is marked first, and then its set is notified. A call of the set in between
// returns the same as afterwards.
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
			s.end(second) // the end of another hold is notified before that of the first
			if err := s.Err(); err != first {
				t.Errorf("%v, want the reason that was reported first, %v", err, first)
			}
		})
	}
}

// Overtaken fills a stock that has given back its items with an item that comes late, and
// returns the item that the stock hands out.
func Overtaken[T any](late *Item[T]) *Item[T] {
	st := &stock[T]{}
	st.giveBack()
	return st.fill([]*Item[T]{late})
}

// Rivals returns how many items further a consumer looks because others take from the head.
func Rivals[T any](q *Consumer[T]) int {
	q.q.mu.Lock()
	defer q.q.mu.Unlock()
	return q.q.rivals
}

// Feeding reports whether a goroutine takes items for the callers.
func Feeding[T any](q *Consumer[T]) bool {
	q.q.mu.Lock()
	defer q.q.mu.Unlock()
	return q.q.feeding
}

// Decoded returns the number of values that a view keeps.
func Decoded[T any](v *CacheView[T]) int {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return len(v.decoded)
}

// Of several refusals of one removal the first is the answer, and what comes after the end of the
// removal is none.
func TestCleanUp_FirstAnswerCounts(t *testing.T) {
	c := &Client{ghosts: make(map[string][]*cleanUp)}
	u := c.beginCleanUp()
	u.refuse(ErrDenied)
	u.refuse(ErrLimit)
	if err := u.outcome(); err != ErrDenied {
		t.Errorf("%v, want the first refusal", err)
	}
	u.end()
	u = c.beginCleanUp()
	u.end()
	u.refuse(ErrDenied)
	if err := u.outcome(); err != nil {
		t.Errorf("%v after the end", err)
	}
}

// The delay after a failed attempt grows up to the longest one, and stays there however many attempts fail.
func TestWork_DelayAfterAFailureNeverShrinks(t *testing.T) {
	before := time.Duration(0)
	for attempt := 1; attempt < 1000; attempt++ {
		d := retryDelay(attempt)
		if d < before || d < firstRetry || d > lastRetry {
			t.Fatalf("%v after attempt %d, %v after the one before", d, attempt, before)
		}
		before = d
	}
	if before != lastRetry || retryDelay(math.MaxInt) != lastRetry {
		t.Errorf("%v after many attempts, want %v", before, lastRetry)
	}
}
