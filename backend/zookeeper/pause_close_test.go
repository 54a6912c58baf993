package zookeeper

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord/backend"
)

// The function that is told of a pause uses the session, also if a call notices the loss before the
// timer of the lease fires.
func TestPause_IsToldWithoutALock(t *testing.T) {
	t.Parallel()
	serve := func(conn net.Conn, _ int) {
		welcome(conn, 10_000)
		for r := range requests(conn) {
			answerPing(conn, r)
		}
	}
	inBubble(t, Options{}, serve, func(t *testing.T, b backend.Backend) {
		bs, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s := bs.(*session)
		told := make(chan int64, 1)
		s.pauses.Tell(func(time.Duration, bool) { told <- s.ID() })
		synctest.Wait()
		// As after a pause: the look at the lease was due long ago.
		now := s.now()
		now.Mono, now.Wall = now.Mono-time.Minute, now.Wall-time.Minute
		s.pauses.Next(now, time.Second, s.Timeout())
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		select {
		case err = <-closed:
		case <-time.After(time.Minute):
			t.Fatal("Close does not return")
		}
		if id := <-told; id != s.ID() || err != nil {
			t.Errorf("told of session %x, %v", id, err)
		}
	})
}
