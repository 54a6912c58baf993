package coord

import "time"

const (
	firstPause = 10 * time.Millisecond
	mostPause  = time.Second
)

// pauses generates growing, jittered pauses between attempts that fail repeatedly for a
// reason that no event signals: a permission that an operator revoked, or a server that
// drops the connection at each attempt of one request. The first repetition is
// immediate, since a single lost reply is the usual case.
type pauses struct {
	c *Client
	n int
}

// wait makes the next pause. It reports false if one of the channels is closed first.
func (p *pauses) wait(a, b <-chan struct{}) bool {
	d := time.Duration(0)
	if p.n > 0 {
		d = min(firstPause<<min(p.n-1, 16), mostPause)
		d = d/2 + time.Duration(p.c.random("pause")%uint64(d/2))
	}
	p.n++
	if d == 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-a:
	case <-b:
	}
	return false
}

func (p *pauses) reset() { p.n = 0 }
