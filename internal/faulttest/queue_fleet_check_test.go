//go:build linux

package faulttest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/itemlog"
	"github.com/go-coord/coord/internal/proc"
	"github.com/go-coord/coord/internal/zklog"
)

// The ids and nodes of made-up items.
const (
	fleetBucket = "/queue/items/b-0-0/"
	fleetDead   = "/queue/dead/items/b-0-0/"
	fleetID     = "01234567-89ab-8def-8123-456789abcdef"
	fleetOther  = "f1234567-89ab-8def-8123-456789abcdef"
)

// at returns a time of the leader, in milliseconds.
func at(ms int64) time.Time { return time.UnixMilli(1_000_000 + ms) }

func creates(path, data string) zklog.Op {
	return zklog.Op{Type: zklog.Create, Path: path, Data: []byte(data)}
}

func deletes(path string) zklog.Op { return zklog.Op{Type: zklog.Delete, Path: path} }

func txnOf(zxid, session, ms int64, ops ...zklog.Op) zklog.Txn {
	return zklog.Txn{Zxid: zxid, Session: session, Time: at(ms), Type: zklog.Multi, Ops: ops}
}

// The made-up operations of one item.
func itemPut(id, value string, due int64) zklog.Op {
	return creates(fmt.Sprintf("%si-%s-%d-0000000000", fleetBucket, id, due), value)
}

func itemGone(id string, due int64) zklog.Op {
	return deletes(fmt.Sprintf("%si-%s-%d-0000000000", fleetBucket, id, due))
}

func claimOf(id, mark string, attempt int) []zklog.Op {
	state := creates(fleetBucket+"s-"+id, fmt.Sprint(attempt))
	if attempt > 1 {
		state.Type = zklog.SetData
	}
	return []zklog.Op{state, creates(fleetBucket+"m-"+id+"-"+mark, "")}
}

func claimEnds(id, mark string) zklog.Op { return deletes(fleetBucket + "m-" + id + "-" + mark) }
func stateGone(id string) zklog.Op       { return deletes(fleetBucket + "s-" + id) }
func delayOf(id string, until int64) zklog.Op {
	return creates(fmt.Sprintf("%sd-%s-%d", fleetBucket, id, at(until).UnixMilli()), "")
}
func delayEnds(id string, until int64) zklog.Op {
	return deletes(fmt.Sprintf("%sd-%s-%d", fleetBucket, id, at(until).UnixMilli()))
}

// said returns a made-up report.
func said(kind string, ms int64, l line) line {
	l.Kind, l.At = kind, time.Duration(ms)*time.Millisecond
	return l
}

// A check that has never found a violation is untested.
func TestTheCheckOfAFleetFindsViolations(t *testing.T) {
	a := []queued{{Value: "a"}}
	aPut := []queued{{"a", fleetID}}
	first := line{Items: aPut, Attempt: 1, Token: 2, Session: 7}
	second := line{Items: aPut, Attempt: 2, Token: 4, Session: 8}
	with := func(l line, text string, delay time.Duration) line {
		l.Text, l.Delay = text, delay
		return l
	}
	type scene struct {
		log   []zklog.Txn
		lines map[string][]line
		dead  map[string]string
	}
	// An item is put, claimed, put off for 480 ms, claimed when it is due and acknowledged.
	sound := func() *scene {
		return &scene{
			log: []zklog.Txn{
				txnOf(1, 6, 0, itemPut(fleetID, "a", 0)),
				txnOf(2, 7, 10, claimOf(fleetID, "x", 1)...),
				txnOf(3, 7, 20, claimEnds(fleetID, "x"), delayOf(fleetID, 500)),
				txnOf(4, 8, 500, append(claimOf(fleetID, "y", 2), delayEnds(fleetID, 500))...),
				txnOf(5, 8, 510, claimEnds(fleetID, "y"), stateGone(fleetID), itemGone(fleetID, 0)),
			},
			lines: map[string][]line{
				"p": {said("putting", -5, line{Items: a}), said("put", 2, line{Items: aPut, Text: "ok"})},
				"b": {
					said("took", 15, first), said("nacking", 18, with(first, "", 480*time.Millisecond)),
					said("nacked", 22, with(first, "ok", 480*time.Millisecond)),
				},
				"c": {said("took", 505, second), said("acking", 508, second), said("acked", 512, with(second, "ok", 0))},
			},
			dead: make(map[string]string),
		}
	}
	// The item fails for good.
	buried := func(s *scene) {
		s.log[3] = txnOf(4, 8, 500, append(claimOf(fleetID, "y", 2), delayEnds(fleetID, 500))...)
		s.log[4] = txnOf(5, 8, 510, claimEnds(fleetID, "y"), stateGone(fleetID), itemGone(fleetID, 0), creates(fleetDead+"i-"+fleetID+"-0-0000000000", "a"), creates(fleetDead+"r-"+fleetID, "{}"))
		s.lines["c"] = []line{said("took", 505, second), said("nacking", 508, second), said("nacked", 512, with(second, "ok", 0))}
		s.dead[fleetID] = "a"
	}
	expired := zklog.Txn{Zxid: 3, Session: 7, Time: at(20), Type: zklog.CloseSession, Ops: []zklog.Op{claimEnds(fleetID, "x")}}
	for _, tc := range []struct {
		name  string
		spoil func(s *scene)
		want  string // "": nothing is wrong
		late  int
	}{
		{"all well", func(*scene) {}, "", 0},
		{"moved to the dead letters", buried, "", 0},
		{"lost before its claim", func(s *scene) {
			s.log = append(s.log[:1], txnOf(9, 9, 30, itemGone(fleetID, 0)))
			s.lines["b"], s.lines["c"] = nil, nil
		}, "deleted without a claim", 0},
		{"lost, and never delivered", func(s *scene) { s.log, s.lines["b"], s.lines["c"] = s.log[:1], nil, nil }, "never delivered", 0},
		{"left", func(s *scene) { s.log, s.lines["c"] = s.log[:3], nil }, "is left", 0},
		{"acknowledged and not in the log", func(s *scene) { s.log = s.log[:4] }, `the log says ""`, 0},
		{"put and not in the log", func(s *scene) { s.log = nil }, "is not in the log", 0},
		{"put by nobody", func(s *scene) { s.log = append(s.log, txnOf(6, 6, 600, itemPut(fleetOther, "b", 0))) }, "put by no process", 0},
		{"put twice", func(s *scene) { s.log = append(s.log, txnOf(6, 6, 600, itemPut(fleetOther, "a", 0))) }, "was put as " + fleetID, 0},
		{"put off and claimed early", func(s *scene) { s.log[3].Time = at(499) }, "1ms early", 0},
		{"due and claimed early", func(s *scene) { s.log[0].Ops[0] = itemPut(fleetID, "a", at(11).UnixMilli()) }, "1ms early", 0},
		{"claimed while claimed", func(s *scene) { s.log[2].Ops = nil }, "claimed twice at a time", 0},
		{"claimed when it was gone", func(s *scene) { s.log = append(s.log, txnOf(6, 9, 600, claimOf(fleetID, "z", 1)...)) }, "claimed, and it is deleted", 0},
		{"an attempt that is not counted", func(s *scene) { s.log[3].Ops[0].Data = []byte("1") }, "claimed as attempt 1 after 1", 0},
		{"an attempt that counts twice", func(s *scene) { s.log[3].Ops[0].Data = []byte("3") }, "claimed as attempt 3 after 1", 0},
		{"given back", func(s *scene) {
			s.log[2] = txnOf(3, 7, 20, claimEnds(fleetID, "x"), stateGone(fleetID))
			s.log[3] = txnOf(4, 8, 500, claimOf(fleetID, "y", 1)...)
			s.lines["b"] = nil
		}, "", 0},
		{"a delay that stays", func(s *scene) { s.log[3].Ops = s.log[3].Ops[:2] }, "its delay stays", 0},
		{"a claim that another commit ends", func(s *scene) { s.log[4].Ops[0] = claimEnds(fleetID, "x") }, "lost the claim", 0},
		{"buried too soon", func(s *scene) {
			buried(s)
			s.log[2] = txnOf(3, 7, 20, claimEnds(fleetID, "x"), stateGone(fleetID))
			s.log[3] = txnOf(4, 8, 500, claimOf(fleetID, "y", 1)...)
		}, "after 1 attempts of 2", 0},
		{"buried with another value", func(s *scene) {
			buried(s)
			s.log[4].Ops[3].Data = []byte("b")
		}, `moved to the dead letters as "b"`, 0},
		{"buried and not in the dead letters", func(s *scene) {
			buried(s)
			delete(s.dead, fleetID)
		}, "is not there", 0},
		{"in the dead letters and in the queue", func(s *scene) {
			buried(s)
			s.log[4].Ops = slices.Delete(s.log[4].Ops, 2, 3)
		}, "not deleted in the queue", 0},
		{"in the dead letters and acknowledged", func(s *scene) {
			buried(s)
			s.lines["c"] = sound().lines["c"]
		}, "and acknowledged", 0},
		{"in the dead letters and not in the log", func(s *scene) { s.dead[fleetID] = "a" }, "in the dead letters, and not in the log", 0},
		{"in the dead letters and never put", func(s *scene) { s.dead[fleetOther] = "b" }, "never put, and in the dead letters", 0},
		{"an ack that is reported as lost", func(s *scene) { s.lines["c"][2].Text = "lost" }, `the log says "acked"`, 0},
		{"an ack that only gives the item back", func(s *scene) { s.log[4].Ops = s.log[4].Ops[:1] }, `the log says "failed"`, 0},
		{"an ack that nobody sent", func(s *scene) { s.lines["c"] = s.lines["c"][:1] }, "acknowledged by no handler", 0},
		{"a nack that did not end the claim", func(s *scene) { s.log[2] = expired }, `the log says "session"`, 0},
		{"a claim of another session", func(s *scene) { s.log[3].Session = 9 }, "no such claim", 0},
		{"delivered again after its ack", func(s *scene) {
			third := line{Items: aPut, Attempt: 3, Token: 6, Session: 9}
			s.lines["d"] = []line{said("took", 600, third), said("acking", 601, third), said("acked", 602, with(third, "ok", 0))}
		}, "delivered again after it was acknowledged", 0},
		{"an earlier claim delivered after the ack", func(s *scene) {
			for i := range s.lines["b"] {
				s.lines["b"][i].At += time.Second
			}
		}, "after its Ack had returned", 0},
		{"an earlier claim delivered after the ack by a paused process", func(s *scene) {
			s.log[2] = expired
			s.log[3] = txnOf(4, 8, 500, claimOf(fleetID, "y", 2)...)
			s.lines["b"] = []line{said("took", 1000, first), said("acking", 1001, first), said("acked", 1002, with(first, "lost", 0))}
		}, "", 1},
		{"delivered before the delay of a nack", func(s *scene) { s.lines["c"][0].At = 497 * time.Millisecond }, "before the end of its delay", 0},
		{"delivered before the delay of a put", func(s *scene) { s.lines["p"][0].Delay = 25 * time.Millisecond }, "5ms early", 0},
		{"delivered after the delay of a put", func(s *scene) { s.lines["p"][0].Delay = 20 * time.Millisecond }, "", 0},
		{"acknowledged after ClaimTimeout", func(s *scene) {
			s.lines["c"] = slices.Insert(s.lines["c"], 1, said("hanging", 506, second))
		}, "acknowledged after ClaimTimeout", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := sound()
			tc.spoil(s)
			h := itemlog.New(map[string]itemlog.Queue{"/queue": {Name: "q", Most: 2}})
			for _, x := range s.log {
				h.Apply(x)
			}
			p := newPassage()
			for _, who := range []string{"p", "b", "c", "d"} {
				p.add(who, s.lines[who])
			}
			p.dead = s.dead
			for session, ended := range h.Ended {
				p.ended[session] = time.Duration(ended.Sub(at(0)))
			}
			p.check()
			compareItems(h, p)
			wrong := append(p.wrong, h.Wrong...)
			found := slices.ContainsFunc(wrong, func(text string) bool { return strings.Contains(text, tc.want) })
			if tc.want == "" && len(wrong) > 0 || tc.want != "" && !found || p.late != tc.late {
				t.Errorf("found %q and %d late, want %q and %d", wrong, p.late, tc.want, tc.late)
			}
		})
	}
}

// The ready times of an item go from when it can be taken to its next claim.
func TestTheHistoryOfAQueueKnowsWhenAnItemIsReady(t *testing.T) {
	h := itemlog.New(map[string]itemlog.Queue{"/queue": {Name: "q", Most: 2}})
	for _, x := range []zklog.Txn{
		txnOf(1, 6, 0, itemPut(fleetID, "a", at(50).UnixMilli())),
		txnOf(2, 7, 60, claimOf(fleetID, "x", 1)...),
		txnOf(3, 7, 70, claimEnds(fleetID, "x"), delayOf(fleetID, 500)),
		txnOf(4, 8, 510, append(claimOf(fleetID, "y", 2), delayEnds(fleetID, 500))...),
		{Zxid: 5, Session: 8, Time: at(600), Type: zklog.CloseSession, Ops: []zklog.Op{claimEnds(fleetID, "y")}},
		// No consumer claims it again: it was taken too often.
		txnOf(6, 9, 620, stateGone(fleetID), itemGone(fleetID, at(50).UnixMilli()), creates(fleetDead+"i-"+fleetID+"-0-0000000000", "a"), creates(fleetDead+"r-"+fleetID, "{}")),
	} {
		h.Apply(x)
	}
	if len(h.Wrong) > 0 {
		t.Error(h.Wrong)
	}
	want := []itemlog.Window{{From: at(50), To: at(60)}, {From: at(500), To: at(510)}, {From: at(600), To: at(620)}}
	if got := h.Items[fleetID].Ready; !slices.Equal(got, want) {
		t.Errorf("ready %v, want %v", got, want)
	}
	if got := len(h.Taken["q"]); got != 3 || h.Due != 1 || h.Off != 1 || h.Items[fleetID].Moves != 1 {
		t.Errorf("taken %d times, %d due, %d put off, %+v", got, h.Due, h.Off, h.Items[fleetID])
	}
}

// sec returns a window between two seconds.
func sec(from, to float64) window[time.Duration] {
	return window[time.Duration]{time.Duration(from * float64(time.Second)), time.Duration(to * float64(time.Second))}
}

func TestSpans(t *testing.T) {
	a := union(spans{sec(5, 6), sec(1, 3)}, spans{sec(2, 4), sec(8, 8), sec(6, 7)})
	if want := (spans{sec(1, 4), sec(5, 7)}); !slices.Equal(a, want) {
		t.Errorf("%v, want %v", a, want)
	}
	b := spans{sec(0, 2), sec(3, 6), sec(6.5, 9)}
	if got, want := a.and(b), (spans{sec(1, 2), sec(3, 4), sec(5, 6), sec(6.5, 7)}); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := a.minus(b), (spans{sec(2, 3), sec(6, 6.5)}); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := a.total(); got != 5*time.Second {
		t.Errorf("%v, want 5s", got)
	}
	if got := longestWithout(a, []time.Duration{0, sec(1.5, 0).from, sec(4.5, 0).from, sec(5, 0).from, sec(6.9, 0).from}); got != 2500*time.Millisecond {
		t.Errorf("%v, want 2.5s", got)
	}
}

// An item that waits while a consumer is idle is found, with the parts of the wait that faults explain.
func TestWaitsForIdleConsumersAreFound(t *testing.T) {
	six := []spans{{sec(5, 8)}, {sec(5, 7)}, {sec(4, 9)}, {sec(3, 10)}, {sec(4, 10)}, {sec(6, 9)}}
	idle := func(s ...window[time.Duration]) []idler { return []idler{{name: "c", lane: "q", idle: s}} }
	for _, tc := range []struct {
		name    string
		idlers  []idler
		ready   spans
		h       hindrances
		longest wait
	}{
		{"a stall", idle(sec(0, 10)), spans{sec(2, 8)}, hindrances{}, wait{at: sec(2, 8), rest: 6 * time.Second, still: 6 * time.Second}},
		{"all consumers busy", idle(sec(0, 2), sec(8, 9)), spans{sec(2, 8)}, hindrances{}, wait{}},
		{"idle again and again", idle(sec(0, 3), sec(3.5, 7), sec(7.5, 9)), spans{sec(2, 8)}, hindrances{}, wait{at: sec(3.5, 7), rest: 3500 * time.Millisecond, still: 3500 * time.Millisecond}},
		{"ready again and again", idle(sec(0, 10)), spans{sec(2, 3), sec(4, 6)}, hindrances{}, wait{at: sec(4, 6), rest: 2 * time.Second, still: 2 * time.Second}},
		{"idle in another queue", []idler{{name: "c", lane: "d", idle: spans{sec(0, 10)}}}, spans{sec(2, 8)}, hindrances{}, wait{}},
		{"races lost", idle(sec(0, 10)), spans{sec(2, 8)}, hindrances{claims: map[string][]time.Duration{"q": {sec(1, 0).from, sec(3, 0).from, sec(4.5, 0).from, sec(9, 0).from}}},
			wait{at: sec(2, 8), rest: 6 * time.Second, still: 3500 * time.Millisecond}},
		{"an election", idle(sec(0, 10)), spans{sec(2, 8)}, hindrances{outages: spans{sec(3, 5)}}, wait{at: sec(2, 8), outage: 2 * time.Second, rest: 4 * time.Second, still: 3 * time.Second}},
		{"a starved consumer", []idler{{"c", "q", spans{sec(0, 10)}, spans{sec(1, 3)}}}, spans{sec(2, 8)}, hindrances{starved: spans{sec(7, 9)}}, wait{at: sec(2, 8), starved: 2 * time.Second, rest: 4 * time.Second, still: 4 * time.Second}},
		{"five silent sessions", idle(sec(0, 10)), spans{sec(2, 8)}, hindrances{silent: six[:5]}, wait{at: sec(2, 8), silent: 5, silence: 7 * time.Second, rest: 6 * time.Second, still: 6 * time.Second}},
		{"six silent sessions", idle(sec(0, 10)), spans{sec(2, 8)}, hindrances{silent: six}, wait{at: sec(2, 8), silent: 6, silence: 7 * time.Second, behind: 2 * time.Second, rest: 4 * time.Second, still: 4 * time.Second}},
		{"five silent sessions, and a holder that starves", idle(sec(0, 10)), spans{sec(2, 8)}, hindrances{silent: six[:5], absent: append(slices.Clone(six[:5]), spans{sec(1, 7.5)})},
			wait{at: sec(2, 8), silent: 5, silence: 7 * time.Second, starved: 2 * time.Second, rest: 4 * time.Second, still: 3 * time.Second}},
		{"four that are left of six", idle(sec(0, 20)), spans{sec(8, 14)}, hindrances{silent: six}, wait{at: sec(8, 14), silent: 4, silence: 7 * time.Second, behind: 2 * time.Second, rest: 4 * time.Second, still: 4 * time.Second}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			waits := longestWaits(tc.idlers, []available{{"a", "q", tc.ready}}, tc.h, time.Second/2)
			var longest wait
			for _, w := range waits {
				if w.length() > longest.length() {
					longest = w
				}
			}
			if tc.longest.length() > 0 {
				tc.longest.item, tc.longest.consumer, tc.longest.lane = "a", "c", "q"
			}
			if longest != tc.longest {
				t.Errorf("%+v, want %+v", longest, tc.longest)
			}
		})
	}
}

// A consumer counts as idle while it asks, has contact, lives, and is neither paused nor cut off.
// Each of its sessions is silent while it lives and the consumer is dead, paused or without contact,
// or has another session.
func TestTheCareerOfAConsumer(t *testing.T) {
	phase := func(at float64, text string, session int64) line {
		return line{At: sec(at, 0).from, Kind: "phase", Text: text, Session: session}
	}
	a := &actor{Worker: proc.Reported(
		phase(1, "connected", 7),
		line{At: sec(2, 0).from, Kind: "asking", Text: "q"},
		line{At: sec(2, 0).from, Kind: "asking", Text: "d"},
		line{At: sec(3, 0).from, Kind: "took", Text: "q"},
		line{At: sec(4, 0).from, Kind: "asking", Text: "q"},
		phase(6, "suspended", 7),
		phase(7, "connected", 7),
		// It is paused from 8 to 12, and its session ends at 10.
		line{At: sec(12, 0).from, Kind: "gap", Delay: 4 * time.Second},
		phase(12.5, "lost", 7),
		phase(13, "connected", 8),
		line{At: sec(14.5, 0).from, Kind: "gap", Delay: time.Second / 2},
		// It is cut off from 15 to 16, and connects again at 16.5. It is killed at 18.
		phase(16.5, "connected", 8),
	)}
	f := &fleet{
		finished: sec(30, 0).from, died: map[*actor]time.Duration{a: sec(18, 0).from},
		stopped: map[*actor]spans{a: {sec(8, 12)}}, cutOff: map[*actor]spans{a: {sec(15, 16)}},
	}
	h := itemlog.New(nil)
	h.Ended = map[int64]time.Time{7: time.Unix(10, 0), 8: time.Unix(22, 0)}
	c := f.careerOf(a, h)
	// It loses a session that the service ends only after the next one has begun, and is killed at 5.
	a2 := &actor{Worker: proc.Reported(phase(1, "connected", 7), phase(2, "suspended", 7), phase(3, "lost", 7), phase(3.5, "connected", 8))}
	f.died[a2] = sec(5, 0).from
	late := f.careerOf(a2, h)
	silent := func(c career) (all spans) {
		for _, s := range c.sessions {
			all = append(all, s.silent...)
		}
		return all
	}
	for what, got := range map[string][2]spans{
		"connected":                              {c.connected, {sec(1, 6), sec(7, 8), sec(13, 15), sec(16.5, 18)}},
		"silent":                                 {silent(c), {sec(6, 7), sec(8, 10), sec(15, 16.5), sec(18, 22)}},
		"silent, with a lost session that lives": {silent(late), {sec(2, 10), sec(5, 22)}},
		"asked of q":                             {c.asked["q"], {sec(2, 3), sec(4, 18)}},
		"asked of d":                             {c.asked["d"], {sec(2, 18)}},
		"gaps":                                   {c.gaps, {sec(14, 14.5)}},
	} {
		if !slices.Equal(got[0], got[1]) {
			t.Errorf("%s: %v, want %v", what, got[0], got[1])
		}
	}
}

// A transaction that servers dropped is nothing, unless they had acknowledged it.
func TestServersThatTakeWritesBackAreNotJudged(t *testing.T) {
	p := newPassage()
	p.deliveries = []*delivery{{token: 2}, {token: 4}}
	for _, tc := range []struct {
		name    string
		dropped []int64
		broken  bool
	}{
		{"none", nil, false},
		{"a proposal that nobody saw", []int64{3}, false},
		{"the claim of a delivery", []int64{3, 4}, true},
		{"a write of the control", []int64{9}, true},
	} {
		dropped := make(map[int64]bool)
		for _, zxid := range tc.dropped {
			dropped[zxid] = true
		}
		if err := takenBack(p, []int64{8, 9}, dropped); (err != nil) != tc.broken {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
