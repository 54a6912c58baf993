package zookeeper

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
)

// The servers count from the moment in which they got the request, which is before its answer. So a
// lease that began with the answer would last longer than the session on the servers. The server takes
// half a second for the answer, and is silent then.
func TestLease_BeginsWithTheRequest(t *testing.T) {
	t.Parallel()
	const slow, lease = time.Second / 2, 6 * time.Second
	for name, test := range map[string]struct {
		last int  // the connection whose answer is the last one
		call bool // the answer to a call on it is
	}{"the first connection": {1, false}, "a later one": {2, false}, "a call": {1, true}} {
		last := test.last
		asked := make(chan time.Time, 10)
		serve := func(conn net.Conn, n int) {
			if n > last {
				return // no further connection renews the lease
			}
			if _, err := nextRequest(conn); err != nil {
				return
			}
			asked <- time.Now()
			time.Sleep(slow)
			b := be.AppendUint32(be.AppendUint32(nil, 0), 9000)
			if _, err := conn.Write(framed(str(be.AppendUint64(b, 0x77), "pppppppppppppppp"))); err != nil || n < last {
				return
			}
			for r := range requests(conn) {
				if !test.call || len(asked) > 1 || int32At(r, 0) == xidPing {
					continue
				}
				asked <- time.Now()
				time.Sleep(slow)
				conn.Write(framed(reply(int32At(r, 0), 0, str(nil, "/")...)))
			}
		}
		inBubble(t, Options{SessionTimeout: 9 * time.Second}, serve, func(t *testing.T, b backend.Backend) {
			s, err := b.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if test.call {
				time.Sleep(slow)
				if err := s.Sync(t.Context(), "/"); err != nil {
					t.Error(err)
				}
			}
			<-s.Done()
			var from time.Time
			for from = <-asked; len(asked) > 0; {
				from = <-asked
			}
			if took := time.Since(from); took < lease || took > lease+slow/2 || !errors.Is(s.Err(), errUnheard) {
				t.Errorf("%s: the session was lost %v after its request, want %v: %v", name, took, lease, s.Err())
			}
		})
	}
}
