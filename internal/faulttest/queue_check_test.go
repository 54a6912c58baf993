//go:build linux

package faulttest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

// passage collects the reports of all processes about a queue that is empty at the end.
type passage struct {
	puts       map[string]*putting // by value
	deliveries []*delivery
	dead       map[string]string       // by id: the values that are in the dead letters at the end
	ended      map[int64]time.Duration // by session, if that is known
	wrong      []string
	calls      int
	late       int // items that a process got after the session of their claim had ended, and after another process had acknowledged them
}

// putting is one value that is being put.
type putting struct {
	began, ended time.Duration // ended is zero if the outcome is not known
	id           string        // if it is known
	call, at     int           // the call that put it, and its place among the call's values
	delay        time.Duration // before which it must not be delivered
}

// delivery is one item delivered to one consumer.
type delivery struct {
	queued
	consumer string
	attempt  int
	token    int64 // the zxid of the claim, which orders all claims
	session  int64
	ack      string // "", "acking" for ever, "ok", "lost" or "unknown"
	nack     string // "", "nacking" for ever, "ok", "lost" or "unknown"
	hung     bool   // for longer than ClaimTimeout

	began, nacking, acked time.Duration
	delay                 time.Duration // of the Nack
}

func (d *delivery) String() string {
	return fmt.Sprintf("%s (%s), attempt %d, claimed by %s in session %#x with %#x, ack %q, nack %q", d.Value, d.ID, d.attempt, d.consumer, d.session, d.token, d.ack, d.nack)
}

// done reports whether the item may be deleted.
func (d *delivery) done() bool { return d.ack != "" && d.ack != "lost" }

func newPassage() *passage {
	return &passage{puts: make(map[string]*putting), dead: make(map[string]string), ended: make(map[int64]time.Duration)}
}

func (p *passage) errorf(format string, args ...any) {
	p.wrong = append(p.wrong, fmt.Sprintf(format, args...))
}

// add adds the reports of one process, in order.
func (p *passage) add(who string, lines []line) {
	type claim struct {
		id    string
		token int64
	}
	mine := make(map[claim]*delivery)
	for _, l := range lines {
		switch l.Kind {
		case "putting":
			p.calls++
			for i, it := range l.Items {
				if p.puts[it.Value] != nil {
					p.errorf("the test puts %s twice", it.Value)
				}
				p.puts[it.Value] = &putting{began: l.At, call: p.calls, at: i, delay: l.Delay}
			}
		case "put":
			for _, it := range l.Items {
				put := p.puts[it.Value]
				put.ended, put.id = l.At, it.ID
			}
		case "took":
			it := l.Items[0]
			d := &delivery{queued: it, consumer: who, attempt: l.Attempt, token: l.Token, session: l.Session, began: l.At}
			if mine[claim{it.ID, l.Token}] != nil {
				p.errorf("delivered twice under one claim: %v", d)
			}
			mine[claim{it.ID, l.Token}] = d
			p.deliveries = append(p.deliveries, d)
		case "acking", "acked":
			d := mine[claim{l.Items[0].ID, l.Token}]
			d.ack = "acking"
			if l.Kind == "acked" {
				d.ack, d.acked = l.Text, l.At
			}
			if !slices.Contains([]string{"acking", "ok", "lost", "unknown"}, d.ack) {
				p.errorf("%v", d)
			}
		case "nacking", "nacked":
			d := mine[claim{l.Items[0].ID, l.Token}]
			d.delay = l.Delay
			if d.nack = "nacking"; l.Kind == "nacked" {
				d.nack = l.Text
			} else {
				d.nacking = l.At
			}
			if !slices.Contains([]string{"nacking", "ok", "lost", "unknown"}, d.nack) {
				p.errorf("%v", d)
			}
		case "hanging":
			mine[claim{l.Items[0].ID, l.Token}].hung = true
		}
	}
}

// check finds violations that no fault excuses. The queue must be empty, so an item that no
// consumer has is lost.
func (p *passage) check() {
	byID := make(map[string][]*delivery)
	for _, d := range p.deliveries {
		byID[d.ID] = append(byID[d.ID], d)
		put := p.puts[d.Value]
		switch {
		case put == nil:
			p.errorf("never put: %v", d)
		case put.id == "":
			put.id = d.ID // the first delivery tells its id
		case put.id != d.ID:
			p.errorf("put once, but there is another with the id %s: %v", put.id, d)
		}
	}
	for id, value := range p.dead {
		switch put := p.puts[value]; {
		case put == nil || put.id != "" && put.id != id:
			p.errorf("never put, and in the dead letters: %s (%s)", value, id)
		case put.id == "":
			put.id = id
		}
	}
	for value, put := range p.puts {
		if _, dead := p.dead[put.id]; put.ended != 0 && len(byID[put.id]) == 0 && !dead {
			p.errorf("never delivered: %s (%s)", value, put.id)
		}
	}
	for id, all := range byID {
		slices.SortFunc(all, func(a, b *delivery) int { return cmp.Compare(a.token, b.token) })
		for i, d := range all {
			if i > 0 {
				before := all[i-1]
				if d.token == before.token || d.attempt <= before.attempt {
					p.errorf("the attempts do not grow: %v, and then %v", before, d)
				}
				if before.ack == "ok" {
					p.errorf("delivered again after it was acknowledged: %v, and then %v", before, d)
				}
				if early := before.nacking + before.delay - d.began; before.nack == "ok" && early > 0 {
					p.errorf("delivered %v before the end of its delay: %v, and then %v", early, before, d)
				}
			}
			if put := p.puts[d.Value]; put != nil && put.delay > 0 && d.began < put.began+put.delay {
				p.errorf("delivered %v early: %v", put.began+put.delay-d.began, d)
			}
			if d.hung && d.ack == "ok" {
				p.errorf("acknowledged after ClaimTimeout: %v", d)
			}
			p.afterAck(d, all)
			if d.attempt < i+1 {
				p.errorf("delivery %d: %v", i+1, d)
			}
		}
		last := all[len(all)-1]
		if _, dead := p.dead[id]; dead {
			if i := slices.IndexFunc(all, func(d *delivery) bool { return d.ack == "ok" }); i >= 0 {
				p.errorf("in the dead letters, and acknowledged: %v", all[i])
			}
		} else if !last.done() {
			p.errorf("removed without an acknowledgement: %v", last)
		}
	}
}

// afterAck finds deliveries of the same item that began when the Ack of d had returned nil, by the
// clock that all processes share. One with an earlier claim whose session had ended by then is
// not a violation: its process was paused between the claim and the delivery.
func (p *passage) afterAck(d *delivery, all []*delivery) {
	if d.ack != "ok" || d.acked == 0 {
		return
	}
	for _, o := range all {
		ended, known := p.ended[o.session]
		switch {
		case o == d || o.began <= d.acked:
		case o.token < d.token && known && ended < d.acked:
			p.late++
		default:
			p.errorf("delivered %v after its Ack had returned: %v, and then %v", o.began-d.acked, d, o)
		}
	}
}

// once finds violations of exactly-once in a run without faults.
func (p *passage) once() {
	for _, d := range p.deliveries {
		if d.attempt != 1 || d.ack != "ok" {
			p.errorf("without a fault: %v", d)
		}
	}
	if len(p.deliveries) != len(p.puts) {
		p.errorf("%d deliveries of %d values without any fault", len(p.deliveries), len(p.puts))
	}
	for value, put := range p.puts {
		if put.ended == 0 {
			p.errorf("unknown outcome without a fault: the put of %s", value)
		}
	}
}

// inOrder finds items that one consumer got out of order: an item before another one that was
// in the queue before the first was put, or was put before it by the same call. Each session
// of the consumer starts from the beginning.
func (p *passage) inOrder() {
	sessions := make(map[int64][]*delivery)
	for _, d := range p.deliveries {
		sessions[d.session] = append(sessions[d.session], d)
	}
	for _, all := range sessions {
		earliest, first := time.Duration(math.MaxInt64), (*delivery)(nil)
		lowest := make(map[int]int) // by call: the lowest place of the values after this one
		for _, d := range slices.Backward(all) {
			put := p.puts[d.Value]
			if earliest < put.began {
				p.errorf("out of order: %v, and later %v, which was put %v before", d, first, put.began-earliest)
			}
			if at, ok := lowest[put.call]; ok && at < put.at {
				p.errorf("out of order: %v before value %d of the same call", d, at)
			}
			lowest[put.call] = put.at
			if put.ended != 0 && put.ended < earliest {
				earliest, first = put.ended, d
			}
		}
	}
}

// passageCounts are the figures of a history.
type passageCounts struct {
	values, unknown, deliveries, again, acked, lostAcks, unknownAcks, highest int
	nacked, delayed, hung                                                     int
}

func (c passageCounts) String() string {
	return fmt.Sprintf("%d values put (%d with an unknown outcome), %d deliveries, %d of them again, highest attempt %d; %d acks ok, %d lost, %d unknown",
		c.values, c.unknown, c.deliveries, c.again, c.highest, c.acked, c.lostAcks, c.unknownAcks)
}

func (p *passage) counts() (c passageCounts) {
	c.values, c.deliveries = len(p.puts), len(p.deliveries)
	for _, put := range p.puts {
		if put.ended == 0 {
			c.unknown++
		}
	}
	seen := make(map[string]bool)
	for _, d := range p.deliveries {
		if seen[d.ID] {
			c.again++
		}
		seen[d.ID] = true
		c.highest = max(c.highest, d.attempt)
		if d.nack == "ok" {
			c.nacked++
			if d.delay > 0 {
				c.delayed++
			}
		}
		if d.hung {
			c.hung++
		}
		switch d.ack {
		case "ok":
			c.acked++
		case "lost":
			c.lostAcks++
		case "unknown", "acking":
			c.unknownAcks++
		}
	}
	return c
}

// report fails the test if there are violations.
func (p *passage) report(t *testing.T) {
	t.Helper()
	for _, what := range p.wrong[:min(len(p.wrong), 20)] {
		t.Error(what)
	}
	if len(p.wrong) > 20 {
		t.Errorf("and %d more", len(p.wrong)-20)
	}
}

// A check that has never found a violation is untested.
func TestTheCheckOfAPassageFindsViolations(t *testing.T) {
	put := func(at int, value, id string) []line {
		return []line{
			{At: time.Duration(at), Kind: "putting", Items: []queued{{Value: value}}},
			{At: time.Duration(at + 1), Kind: "put", Items: []queued{{value, id}}, Text: "ok"},
		}
	}
	take := func(value, id string, attempt int, token, session int64, acks ...string) []line {
		l := line{Kind: "took", Items: []queued{{value, id}}, Attempt: attempt, Token: token, Session: session}
		all := []line{l}
		for _, ack := range acks {
			l.Kind, l.Text = "acked", ack
			if ack == "acking" {
				l.Kind = "acking"
			}
			all = append(all, l)
		}
		return all
	}
	both := []line{
		{At: 40, Kind: "putting", Items: []queued{{Value: "e"}, {Value: "f"}}},
		{At: 41, Kind: "put", Items: []queued{{"e", "5"}, {"f", "6"}}, Text: "ok"},
	}
	in := slices.Concat(put(10, "a", "1"), put(20, "b", "2"))
	b := take("b", "2", 1, 101, 7, "acking", "ok")
	unknown := []line{{At: 30, Kind: "putting", Items: []queued{{Value: "c"}}}}
	for _, tc := range []struct {
		name         string
		out          []line
		wrong, order bool
		faultless    bool
	}{
		{"all well", slices.Concat(take("a", "1", 1, 100, 7, "ok"), b), false, false, true},
		{"redelivered", slices.Concat(take("a", "1", 1, 100, 7), b, take("a", "1", 2, 102, 8, "ok")), false, false, false},
		{"redelivered after an unknown ack", slices.Concat(take("a", "1", 1, 100, 7, "acking"), b, take("a", "1", 2, 102, 8, "ok")), false, false, false},
		{"lost", b, true, false, false},
		{"removed without an ack", slices.Concat(take("a", "1", 1, 100, 7), b), true, false, false},
		{"removed after a lost ack", slices.Concat(take("a", "1", 1, 100, 7, "acking", "lost"), b), true, false, false},
		{"again after an ack", slices.Concat(take("a", "1", 1, 100, 7, "ok"), b, take("a", "1", 2, 102, 8, "ok")), true, false, false},
		{"the same attempt again", slices.Concat(take("a", "1", 1, 100, 7, "lost"), b, take("a", "1", 1, 102, 8, "ok")), true, false, false},
		{"one claim twice", slices.Concat(take("a", "1", 1, 100, 7), b, take("a", "1", 1, 100, 7, "ok")), true, false, false},
		{"put twice", slices.Concat(take("a", "1", 1, 100, 7, "ok"), b, take("a", "3", 1, 102, 8, "ok")), true, false, false},
		{"an unknown put twice", slices.Concat(unknown, take("a", "1", 1, 100, 7, "ok"), b, take("c", "3", 1, 102, 8, "ok"), take("c", "4", 1, 103, 8, "ok")), true, false, false},
		{"an unknown put", slices.Concat(unknown, take("a", "1", 1, 100, 7, "ok"), b), false, false, false},
		{"from nowhere", slices.Concat(take("a", "1", 1, 100, 7, "ok"), b, take("d", "3", 1, 102, 8, "ok")), true, false, false},
		{"another error", slices.Concat(take("a", "1", 1, 100, 7, "bad version"), b), true, false, false},
		{"out of order", slices.Concat(b, take("a", "1", 1, 102, 7, "ok")), false, true, true},
		{"out of order in another session", slices.Concat(b, take("a", "1", 1, 102, 8, "ok")), false, false, true},
		{"one call out of order", slices.Concat(both, take("a", "1", 1, 100, 7, "ok"), b, take("f", "6", 1, 102, 7, "ok"), take("e", "5", 1, 103, 7, "ok")), false, true, true},
		{"one call in order", slices.Concat(both, take("a", "1", 1, 100, 7, "ok"), b, take("e", "5", 1, 102, 7, "ok"), take("f", "6", 1, 103, 7, "ok")), false, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPassage()
			p.add("c", slices.Concat(in, tc.out))
			p.check()
			if got := len(p.wrong) > 0; got != tc.wrong {
				t.Errorf("found %q", p.wrong)
			}
			if tc.wrong {
				return
			}
			p.inOrder()
			if got := len(p.wrong) > 0; got != tc.order {
				t.Errorf("found %q in the order", p.wrong)
			}
			p.wrong = nil
			p.once()
			if got := len(p.wrong) == 0; got != tc.faultless {
				t.Errorf("found %q for a run without faults", p.wrong)
			}
		})
	}
}
