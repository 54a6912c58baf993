//go:build linux

package chaos

import (
	"fmt"
	"slices"
	"strings"
)

// settle determines from the servers' logs the outcome of every call whose caller does not
// know it, and checks the outcomes that callers reported.
func settle(all []*process, l *ledger) (wrong []string) {
	errorf := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	additions, err := l.additions()
	if err != nil {
		errorf("%v", err)
	}
	// once handles calls that leave a unique mark in the log.
	once := func(c *call, marks []change) {
		switch {
		case len(marks) > 1:
			errorf("applied %d times: %v", len(marks), c)
		case c.outcome == "ok" && len(marks) == 0:
			errorf("reported but not applied: %v", c)
		case c.outcome == "no" && len(marks) > 0:
			errorf("refused but applied, with %#x: %v", marks[0].zxid, c)
		}
		if len(marks) > 0 {
			c.zxid = marks[0].zxid
		}
		c.verdict(len(marks) > 0)
	}
	held := make(map[string]bool) // nodes of holds that calls have returned
	for _, p := range all {
		for _, c := range p.calls {
			if c.outcome == "ok" && (c.Op == "acquire" || c.Op == "take") {
				held[holdPath(c)] = true
			}
		}
	}
	for _, p := range all {
		sessions := p.sessions()
		for _, c := range p.calls {
			switch c.Work + " " + c.Op {
			case "value set", "value cas", "cache create", "cache set":
				once(c, l.written[c.Value])
				if c.Work == "value" && c.outcome == "ok" && c.Token != c.zxid {
					errorf("reported as the change %#x, and it was %#x: %v", c.Token, c.zxid, c)
				}
			case "counter add":
				once(c, additions[c.Token])
				if c.outcome == "ok" && len(additions[c.Token]) == 1 && additions[c.Token][0].data != fmt.Sprint(c.Num) {
					errorf("the counter became %s: %v", additions[c.Token][0].data, c)
				}
			case "cache delete":
				l.settleDelete(c, p)
			case "queue put", "priority put", "priority tryput", "delay put":
				applied := 0
				for i, v := range strings.Fields(c.Value) {
					n := len(l.written[v])
					known := i < len(strings.Fields(c.ID)) && c.outcome != "unknown" // PutAll returns the items that were put for certain
					switch {
					case n > 1:
						errorf("put %d times: %s by %v", n, v, c)
					case n == 0 && (c.outcome == "ok" || known):
						errorf("reported but not put: %s by %v", v, c)
					case n == 1 && c.outcome == "no" && !known:
						errorf("refused but put: %s by %v", v, c)
					}
					applied += n
				}
				c.verdict(applied > 0)
			case "schedule runnow", "overlap runnow":
				n := l.books[c.Work].asked[c.Num]
				if n > 1 || n == 0 && c.outcome == "ok" {
					errorf("asked for %d times: %v", n, c)
				}
				c.verdict(n > 0)
			case "txn propose":
				c.verdict(len(l.proposed[c.ID]) > 0)
			case "mutex acquire", "rwmutex acquire", "semaphore acquire", "election acquire", "keep acquire", "lockall acquire", "shards acquire", "schedule acquire", "overlap acquire",
				"queue take", "priority take", "delay take":
				if c.outcome != "ok" {
					c.verdict(l.unreturned(c, sessions, held))
					break
				}
				made := l.created[holdPath(c)]
				if len(made) != 1 || made[0].session != c.Session || c.Token != 0 && c.Token != made[0].zxid {
					errorf("a hold with another creation of its node: %+v: %v", made, c)
				}
			case "rwmutex downgrade":
				c.verdict(l.deletes(c.ID) != nil)
			case "mutex release", "rwmutex release", "semaphore release", "election release", "keep release", "lockall release", "shards release", "schedule release", "overlap release":
				// The session's end can delete the node too, if the session ends meanwhile.
				if gone := l.deletes(c.Value); gone != nil {
					c.zxid = gone.zxid
				}
				c.verdict(c.zxid != 0)
				if c.outcome == "ok" && len(l.deleted[c.Value]) == 0 {
					errorf("released, but the node was never deleted: %v", c)
				}
			case "queue ack", "queue nack", "queue giveback", "priority ack", "priority nack", "priority giveback", "delay ack", "delay nack", "delay giveback":
				gone := l.deletes(c.Old)
				dead := gone != nil && gone.alsoCreates("/i-"+c.ID)
				acked := gone != nil && !dead && gone.alsoDeletes("/i-"+c.ID)
				applied := gone != nil && acked == (c.Op == "ack")
				if c.Op == "nack" && c.Num > 0 { // a claim that timed out ends without a delay
					applied = applied && gone.alsoCreates("/d-"+c.ID)
				}
				c.verdict(applied)
				// The session's end can also return the item, if the session ends meanwhile.
				if c.outcome == "ok" && !applied && (c.Op != "giveback" || len(l.deleted[c.Old]) == 0) {
					errorf("reported but not applied: %v", c)
				}
				if c.outcome == "no" && applied && c.Op == "ack" {
					errorf("reported as lost, but applied: %v", c)
				}
			}
		}
	}
	return wrong
}

// holdPath returns the first node of a hold.
func holdPath(c *call) string {
	if c.Op == "take" {
		return c.Old
	}
	path, _, _ := strings.Cut(c.ID, keptID)
	return path
}

// verdict records the outcome of a call whose outcome is unknown.
func (c *call) verdict(applied bool) {
	if c.outcome != "unknown" {
		return
	}
	c.settled = "not applied"
	if applied {
		c.settled = "applied"
	}
}

// sessions returns the sessions of a process.
func (p *process) sessions() (ids []int64) {
	for _, e := range p.events {
		if e.Kind == "state" && e.Op == "connected" && !slices.Contains(ids, e.Session) {
			ids = append(ids, e.Session)
		}
	}
	return ids
}

// unreturned reports whether an acquisition that never returned has left a node that was
// deleted only with its session. Had the acquisition returned, or been given up, its caller
// would have deleted the node.
func (l *ledger) unreturned(c *call, sessions []int64, held map[string]bool) bool {
	prefix := map[string]string{
		"mutex": mutexPath + "/", "rwmutex": rwPath + "/", "semaphore": semaphorePath + "/requests/", "election": electionPath + "/",
		"keep": homePath + "/", "lockall": togetherPath + "/",
	}[c.Work]
	if len(sessions) == 0 {
		return false
	}
	for _, made := range l.owned[sessions[len(sessions)-1]] {
		mine := prefix != "" && strings.HasPrefix(made.path, prefix)
		if at := queuePaths[c.Work]; at != "" {
			mine = strings.HasPrefix(made.path, at+"/items/") && strings.Contains(made.path, "/m-")
		}
		if mine && !strings.Contains(made.path, "ready-") && !held[made.path] && l.deletes(made.path) == nil {
			return true
		}
	}
	return false
}

// settleDelete handles plain deletes, which leave no mark of their own: if the session
// deleted the path once more than the known deletes, that was this call.
func (l *ledger) settleDelete(c *call, p *process) {
	if c.outcome != "unknown" {
		return
	}
	known, open := 0, 0
	for _, o := range p.calls {
		if o.Work == c.Work && o.Op == c.Op && o.ID == c.ID && o.Session == c.Session {
			switch o.outcome {
			case "ok":
				known++
			case "unknown":
				open++
			}
		}
	}
	logged := 0
	for _, d := range l.deleted[c.ID] {
		if d.session == 0 && !d.end {
			return // the log does not show whose it was
		}
		if d.session == c.Session && !d.end {
			logged++
		}
	}
	switch logged - known {
	case 0:
		c.verdict(false)
	case open:
		c.verdict(true)
	}
}
