//go:build linux

package chaos

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/zklog"
)

// An itemLog is a log of what happens to one item of the queue with priorities.
type itemLog []zklog.Txn

const (
	itemID = "00000000-0000-8000-8000-000000000001"
	markID = "00000000-0000-8000-8000-00000000000"
)

var (
	itemBucket = queuePaths["priority"] + "/items/b-0-0/"
	itemAt     = itemBucket + "i-" + itemID + "-0-0000000000"
	stateAt    = itemBucket + "s-" + itemID
	reasonAt   = queuePaths["priority"] + "/dead/items/b-0-0/r-" + itemID
	letterAt   = queuePaths["priority"] + "/dead/items/b-0-0/i-" + itemID + "-0-0000000000"
)

func markAt(n int) string { return fmt.Sprint(itemBucket, "m-", itemID, "-", markID, n) }

func opCreate(path, data string) zklog.Op {
	return zklog.Op{Type: zklog.Create, Path: path, Data: []byte(data)}
}
func opDelete(path string) zklog.Op { return zklog.Op{Type: zklog.Delete, Path: path} }
func opState(n int) zklog.Op {
	return zklog.Op{Type: zklog.SetData, Path: stateAt, Data: fmt.Append(nil, n)}
}

func (l itemLog) and(ops ...zklog.Op) itemLog {
	return append(slices.Clip(l), zklog.Txn{Zxid: int64(len(l) + 1), Type: zklog.Multi, Ops: ops})
}
func (l itemLog) put() itemLog { return l.and(opCreate(itemAt, "v")) }

// claim makes mark n as this attempt.
func (l itemLog) claim(n, attempt int) itemLog {
	return l.and(opState(attempt), opCreate(markAt(n), ""))
}
func (l itemLog) nack(n int) itemLog { return l.and(opDelete(markAt(n))) }

// signed ends a mark with the sign of a Nack at the number of attempts that count.
func (l itemLog) signed(n, attempt int) itemLog {
	return l.and(opDelete(markAt(n)), zklog.Op{Type: zklog.SetData, Path: stateAt, Data: layout.Attempts(attempt, true)})
}

func (l itemLog) giveBack(n, left int) itemLog { return l.and(opDelete(markAt(n)), opState(left)) }
func (l itemLog) ack(n int) itemLog {
	return l.and(opDelete(markAt(n)), opDelete(stateAt), opDelete(itemAt))
}
func (l itemLog) bury(n int) itemLog {
	return l.and(opDelete(markAt(n)), opDelete(stateAt), opDelete(itemAt), opCreate(letterAt, "v"), opCreate(reasonAt, "{}"))
}
func (l itemLog) redrive() itemLog { return l.and(opDelete(letterAt), opCreate(itemAt, "v")) }
func (l itemLog) expire(n int) itemLog {
	l = l.and(opDelete(markAt(n)))
	l[len(l)-1].Type = zklog.CloseSession
	return l
}

func TestTheCheckOfTheLivesOfItemsCountsTheirAttempts(t *testing.T) {
	const most = 2
	take := func(n, attempt int64) call {
		return call{event: event{Op: "take", Value: "v", Old: markAt(int(n)), Num: attempt}}
	}
	giveBack := func(n int) call { return call{event: event{Op: "giveback", Value: "v", Old: markAt(n)}} }
	put := itemLog{}.put()
	failed := put.claim(1, 1).nack(1).claim(2, 2)
	twice := []call{take(1, 1), take(2, 2)}
	for _, tc := range []struct {
		name  string
		log   itemLog
		takes []call
		want  string
	}{
		{"an ack", put.claim(1, 1).ack(1), []call{take(1, 1)}, ""},
		{"an ack after a nack", failed.ack(2), twice, ""},
		{"a dead letter", failed.bury(2), twice, ""},
		{"a dead letter whose consumers died", put.claim(1, 1).expire(1).claim(2, 2).expire(2).and(opDelete(stateAt), opDelete(itemAt), opCreate(letterAt, "v"), opCreate(reasonAt, "{}")), nil, ""},
		{"a dead letter that was put back and died again", failed.bury(2).redrive().claim(3, 1).nack(3).claim(4, 2).bury(4), []call{take(1, 1), take(2, 2), take(3, 1), take(4, 2)}, ""},
		{"given back, and never received", put.claim(1, 1).and(opDelete(markAt(1)), opDelete(stateAt)).claim(2, 1).ack(2), []call{take(2, 1)}, ""},
		{"given back at the second attempt", failed.giveBack(2, 1).claim(3, 2).ack(3), []call{take(1, 1), take(2, 2), giveBack(2), take(3, 2)}, ""},
		{"given back at the second attempt, after a Nack", put.claim(1, 1).signed(1, 1).claim(2, 2).signed(2, 1).claim(3, 2).ack(3), []call{take(1, 1), take(2, 2), giveBack(2), take(3, 2)}, ""},
		{"given back, and lost with its session", put.claim(1, 1).expire(1).claim(2, 2).ack(2), []call{take(1, 1), giveBack(1), take(2, 2)}, ""},

		{"an attempt that no consumer received", put.claim(1, 1).nack(1).claim(2, 2).ack(2), []call{take(2, 2)}, "attempt 1 counts, and no consumer received the item"},
		{"a later attempt that no consumer received", failed.bury(2), []call{take(1, 1)}, "attempt 2 counts, and no consumer received the item"},
		{"a signed attempt that a consumer gave back", put.claim(1, 1).signed(1, 1).claim(2, 2).ack(2), []call{take(1, 1), giveBack(1), take(2, 2)}, "attempt 1 counts, and the consumer gave the item back"},
		{"an attempt that a consumer gave back", put.claim(1, 1).nack(1).claim(2, 2).ack(2), []call{take(1, 1), giveBack(1), take(2, 2)}, "attempt 1 counts, and the consumer gave the item back"},
		{"an attempt that does not count", put.claim(1, 1).nack(1).claim(2, 1).ack(2), []call{take(1, 1), take(2, 1)}, "claimed as attempt 1 after 1 attempts"},
		{"an attempt that counts twice", put.claim(1, 1).nack(1).claim(2, 3).ack(2), twice, "claimed as attempt 3 after 1 attempts"},
		{"an attempt number that differs from the delivered one", put.claim(1, 1).nack(1).claim(2, 2).ack(2), []call{take(1, 1), take(2, 1)}, "delivered as attempt 1, and it was 2"},
		{"the last attempt has failed", failed.nack(2), twice, "attempt 2 has failed, and the item is not moved to the dead letters"},
		{"once more after the last attempt", failed.expire(2).claim(3, 3).ack(3), append(twice, take(3, 3)), "claimed again after 2 attempts of 2"},
		{"dead too early", put.claim(1, 1).bury(1), []call{take(1, 1)}, "moved to the dead letters after 1 attempts of 2"},
		{"an attempt that nobody gave back and that does not count", put.claim(1, 1).and(opDelete(markAt(1)), opDelete(stateAt)).claim(2, 1).ack(2), []call{take(1, 1), take(2, 1)}, "attempt 1 does not count, and its consumer did not give the item back"},
		{"dead too early after a giveback", failed.giveBack(2, 1).and(opDelete(itemAt), opCreate(letterAt, "v")), append(twice[:2:2], giveBack(2)), "moved to the dead letters after 1 attempts of 2"},
		{"dead under a claim", failed.and(opDelete(itemAt), opCreate(letterAt, "v")), twice, "from under a claim"},
		{"dead and in the queue", failed.and(opDelete(markAt(2)), opCreate(letterAt, "v")), twice, "not deleted in the queue"},
		{"dead without a reason", failed.and(opDelete(markAt(2)), opDelete(itemAt), opCreate(letterAt, "v")), twice, "without its reason"},
		{"dead twice", failed.bury(2).and(opDelete(itemAt), opCreate(letterAt+"1", "v")), twice, "moved to the dead letters, and it is in the dead letters"},
		{"another value is dead", failed.and(opDelete(markAt(2)), opDelete(itemAt), opCreate(letterAt, "w")), twice, `moved to the dead letters as "w"`},
		{"dead after an ack", failed.ack(2).and(opCreate(letterAt, "v")), twice, "moved to the dead letters, and it is deleted"},
		{"delivered again after it was dead", failed.bury(2).claim(3, 3), append(twice, take(3, 3)), "claimed, and it is in the dead letters"},
		{"in both places after a redrive", failed.bury(2).and(opCreate(itemAt+"1", "v")), twice, "put, and it is in the dead letters"},
		{"put back twice", failed.bury(2).redrive().redrive(), twice, "put back from the dead letters, and it is in the queue"},
		{"put back as another value", failed.bury(2).and(opDelete(letterAt), opCreate(itemAt, "w")), twice, `put back as "w"`},
		{"put back with its attempts", failed.bury(2).redrive().claim(3, 3), append(twice, take(3, 3)), "claimed as attempt 3 after 0 attempts"},
		{"removed, with the proof that it was never claimed", put.and(opDelete(itemAt), opCreate(stateAt, ""), opDelete(stateAt)), nil, ""},
		{"a proof that stays", put.and(opDelete(itemAt), opCreate(stateAt, "")), nil, "the state without a count stays"},
		{"a state that is no number", put.and(opCreate(stateAt, "one"), opCreate(markAt(1), "")), []call{take(1, 1)}, `counts "one" attempts`},
		{"two claims", put.claim(1, 1).claim(2, 2), twice, "claimed twice at a time"},
		{"deleted under a claim", put.claim(1, 1).and(opDelete(itemAt)), []call{take(1, 1)}, "deleted from under a claim"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			verdict(t, livesOf(tc.log, "priority", most, made(tc.takes...), nil).Wrong, tc.want)
		})
	}
	verdict(t, livesOf(failed.bury(2), "priority", 0, made(twice...), nil).Wrong, "moved to the dead letters after 2 attempts of 0")
	verdict(t, livesOf(failed.expire(2).claim(3, 3).ack(3), "priority", 0, made(append(twice, take(3, 3))...), nil).Wrong, "")
}

func TestTheCheckOfTheQueueKnowsDeadLetters(t *testing.T) {
	log := itemLog{}.put().claim(1, 1).bury(1).redrive().claim(2, 1)
	puts := made(call{event: event{Op: "put", Value: "v"}})
	takes := made(
		call{event: event{Op: "take", Value: "v", Old: markAt(1), Token: 2, Num: 2}},
		call{event: event{Op: "take", Value: "v", Old: markAt(2), Token: 5, Num: 1}})
	ends := made(
		call{event: event{Op: "nack", Value: "v", Old: markAt(1)}},
		call{event: event{Op: "ack", Value: "v", Old: markAt(2)}})
	check := func(log itemLog, ends []*call) []string {
		takes := takes[:len(ends)]
		return checkQueue(puts, takes, ends, livesOf(log, "priority", 1, takes, nil).byValue())
	}
	verdict(t, check(log.ack(2), ends), "")
	verdict(t, check(log.ack(2), append(slices.Clip(ends[:1]), ends[0])), "removed without an acknowledgement")
	verdict(t, check(log, ends), "still in the queue")
	verdict(t, check(log[:3], ends[:1]), "still in the queue")
	verdict(t, check(log[:3].and(opDelete(letterAt)), ends[:1]), "")
	// Without the Redrive the attempts would have to grow.
	verdict(t, check(itemLog{}.put().claim(1, 1).nack(1).claim(2, 1).ack(2), ends), "the attempts do not grow")
}

func TestTheCheckOfDeadLettersComparesThemWithTheCalls(t *testing.T) {
	dead := itemLog{}.put().claim(1, 1).bury(1)
	back := dead.redrive()
	did := func(op, outcome string) call {
		return call{event: event{Op: op, ID: itemID}, outcome: outcome}
	}
	took := made(call{event: event{Op: "take", Value: "v", Old: markAt(1), Num: 1}})
	for _, tc := range []struct {
		name  string
		log   itemLog
		calls []*call
		want  string
	}{
		{"put back", back, made(did("redrive", "ok")), ""},
		{"put back, and refused the second time", back, made(did("redrive", "ok"), did("redrive", "no")), ""},
		{"put back by an uncertain call", back, made(did("redrive", "unknown")), ""},
		{"not put back by an uncertain call", dead, made(did("redrive", "unknown")), ""},
		{"removed", dead.and(opDelete(letterAt)), made(did("remove", "ok")), ""},
		{"removed in the queue", back.and(opDelete(itemAt)), made(did("redrive", "ok"), did("remove", "ok")), ""},
		{"put back without a call", back, nil, "1 times redrive"},
		{"put back by a call that was refused", back, made(did("redrive", "no")), "1 times redrive"},
		{"reported as put back", dead, made(did("redrive", "ok")), "0 times redrive"},
		{"two calls report it", back, made(did("redrive", "ok"), did("redrive", "ok")), "1 times redrive"},
		{"removed without a call that succeeded", dead.and(opDelete(letterAt)), made(did("remove", "no")), "1 times remove"},
		{"reported as removed", dead, made(did("remove", "ok")), "0 times remove"},
		{"lost in the queue", itemLog{}.put().and(opDelete(itemAt)), nil, "1 times remove"},
		{"no such item", nil, made(did("remove", "ok")), "of an item that was never put"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			verdict(t, checkLetters(tc.calls, livesOf(tc.log, "priority", 1, took, nil)), tc.want)
		})
	}
}

func TestTheCheckOfRetriesFindsAnEarlyDelivery(t *testing.T) {
	delay := int64(retryDelay(2))
	if delay != int64(200*time.Millisecond) {
		t.Fatalf("the second delay is %v", time.Duration(delay))
	}
	take := func(mark string, token, to int64) call {
		return call{event: event{Op: "take", Value: "v", Old: mark, Token: token}, from: to - 1, to: to}
	}
	nack := func(outcome, settled string) []*call {
		return made(call{event: event{Op: "nack", Value: "v", Old: "m1", Num: delay}, from: 10, to: 11, outcome: outcome, settled: settled})
	}
	early := made(take("m2", 6, 9+delay-int64(clockError)), take("m1", 5, 5))
	verdict(t, checkRetries(made(take("m1", 5, 5), take("m2", 6, 10+delay)), nack("ok", ""), nil), "")
	verdict(t, checkRetries(early, nack("ok", ""), nil), "before its time")
	verdict(t, checkRetries(early, nack("unknown", "applied"), nil), "before its time")
	verdict(t, checkRetries(early, nack("unknown", "not applied"), nil), "") // its session has ended
	verdict(t, checkRetries(early, nack("no", ""), nil), "")
}

func TestTheCheckOfTheLimitFindsARefusalWithoutNeed(t *testing.T) {
	l := new(ledger)
	for i := range priorityLimit {
		l.lengths = append(l.lengths, lengthAt{int64(i + 1), i + 1})
	}
	l.lengths = append(l.lengths, lengthAt{30, priorityLimit - 1}, lengthAt{40, priorityLimit - 2})
	known := func(zxid, from, to int64) call {
		return call{event: event{Op: "set"}, zxid: zxid, from: from, to: to}
	}
	full := made(call{event: event{Op: "tryput", Err: "coord: put: " + coord.ErrFull.Error()}, outcome: "no", from: 100, to: 200})
	if !foundFull(full[0]) || foundFull(made(call{event: event{Op: "tryput"}})[0]) {
		t.Error("a refusal is not known as one")
	}
	for _, tc := range []struct {
		name  string
		calls []call
		n     int
	}{
		{"nothing is known", nil, 0},
		{"it was full at the begin", []call{known(25, 80, 90), known(50, 210, 220)}, 0},
		{"it was full later", []call{known(3, 80, 90), known(35, 210, 220)}, 0},
		{"it was full before", []call{known(35, 80, 90)}, 1},
		{"it was full after", []call{known(2, 80, 90), known(3, 210, 220)}, 1},
		{"a call beside it bounds nothing", []call{known(35, 80, 110)}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if list := l.roomy(full, made(tc.calls...)); len(list) != tc.n {
				t.Errorf("%d refusals without need, want %d", len(list), tc.n)
			}
		})
	}
}

func TestSettlingKnowsHowAClaimOfAnItemEnds(t *testing.T) {
	claimed := itemLog{}.put().claim(1, 1)
	putOff := claimed.and(opDelete(markAt(1)), opCreate(itemBucket+"d-"+itemID+"-1234", ""))
	do := func(op, kind string, delay int64) []event {
		e := event{Work: "priority", Op: op, N: 1, ID: itemID, Value: "v", Old: markAt(1), Num: delay}
		b := e
		b.Kind = "begin"
		if kind == "" {
			return []event{b}
		}
		e.Kind = kind
		return []event{b, e}
	}
	for _, tc := range []struct {
		name    string
		events  []event
		log     itemLog
		want    string
		settled string
	}{
		{"a nack that put it off", do("nack", "ok", 5), putOff, "", ""},
		{"a nack without its delay", do("nack", "ok", 5), claimed.nack(1), "reported but not applied", ""},
		{"a nack that never returned", do("nack", "", 5), putOff, "", "applied"},
		{"a nack that never returned, of a claim that timed out", do("nack", "", 5), claimed.nack(1), "", "not applied"},
		{"the last nack", do("nack", "ok", 0), claimed.bury(1), "", ""},
		{"an ack that moved it to the dead letters", do("ack", "ok", 0), claimed.bury(1), "reported but not applied", ""},
		{"an ack of a claim that timed out at the last attempt", do("ack", "no", 0), claimed.bury(1), "", ""},
		{"a nack that deleted it", do("nack", "ok", 0), claimed.ack(1), "reported but not applied", ""},
		{"a put that was refused", []event{{Kind: "begin", Work: "priority", Op: "tryput", Value: "v", N: 1}, {Kind: "no", Work: "priority", Op: "tryput", Value: "v", N: 1}}, nil, "", ""},
		{"a put that was refused, and put", []event{{Kind: "begin", Work: "priority", Op: "tryput", Value: "v", N: 1}, {Kind: "no", Work: "priority", Op: "tryput", Value: "v", N: 1}}, claimed, "refused but put", ""},
		{"a put of two that was refused after the first", []event{{Kind: "begin", Work: "priority", Op: "tryput", Value: "v w", N: 1}, {Kind: "no", Work: "priority", Op: "tryput", Value: "v w", ID: "x", N: 1}}, claimed, "", ""},
		{"a put of two that was refused, and one of them put", []event{{Kind: "begin", Work: "priority", Op: "tryput", Value: "v w", N: 1}, {Kind: "no", Work: "priority", Op: "tryput", Value: "v w", N: 1}}, claimed, "refused but put: v", ""},
		{"a put of two that was refused after the first, which is not there", []event{{Kind: "begin", Work: "priority", Op: "tryput", Value: "w v", N: 1}, {Kind: "no", Work: "priority", Op: "tryput", Value: "w v", ID: "x", N: 1}}, nil, "reported but not put: w", ""},
		{"a put that was put back later", []event{{Kind: "begin", Work: "priority", Op: "put", Value: "v", N: 1}, {Kind: "ok", Work: "priority", Op: "put", Value: "v", N: 1}}, claimed.bury(1).redrive(), "", ""},
		{"a put that was put again", []event{{Kind: "begin", Work: "priority", Op: "put", Value: "v", N: 1}, {Kind: "ok", Work: "priority", Op: "put", Value: "v", N: 1}}, claimed.and(opCreate(strings.TrimSuffix(itemAt, "0")+"1", "v")), "put 2 times", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := history(t, "p", tc.events...)
			verdict(t, settle([]*process{p}, newLedger(tc.log)), tc.want)
			if got := p.calls[0].settled; got != tc.settled {
				t.Errorf("settled as %q, want %q", got, tc.settled)
			}
		})
	}
}

// After a step of the service's clock a claim can be early, but no consumer receives it.
func TestTheCheckOfTheLivesOfItemsKnowsEarlyClaims(t *testing.T) {
	delay := itemBucket + "d-" + itemID + "-1000"
	log := itemLog{}.put().claim(1, 1).and(opDelete(markAt(1)), opCreate(delay, "")).
		and(opState(2), opDelete(delay), opCreate(markAt(2), "")).
		and(opDelete(markAt(2)), opState(1), opCreate(delay, ""))
	log[3].Time = time.UnixMilli(400)
	take := func(n, attempt int64) call {
		return call{event: event{Op: "take", Value: "v", Old: markAt(int(n)), Num: attempt}}
	}
	set := made(call{event: event{Work: "fault", Op: "clock set"}, from: 5, to: 6})
	first, both := made(take(1, 1)), made(take(1, 1), take(2, 2), call{event: event{Op: "giveback", Old: markAt(2)}})
	verdict(t, livesOf(log, "priority", 3, first, nil).Wrong, "claimed 600ms early")
	verdict(t, livesOf(log, "priority", 3, first, set).Wrong, "")
	verdict(t, livesOf(log, "priority", 3, both, set).Wrong, "delivered although it was claimed 600ms early")
}

func TestTheCheckOfSpaceWantsAFault(t *testing.T) {
	refused := made(call{event: event{Work: "mutex", Op: "release", At: 20, Err: "coord: release /l: no space: could not extend file"}, from: 10, to: forever, outcome: "unknown"})
	all := []*process{{name: "p", calls: refused}}
	full := func(from, to int64) []*call {
		return made(call{event: event{Work: "fault", Op: "no space for data"}, from: from, to: to})
	}
	for _, tc := range []struct {
		faults []*call
		want   string
	}{{full(1, 10), ""}, {full(15, forever), ""}, {full(1, 9), "without a fault"}, {full(21, 30), "without a fault"}, {nil, "without a fault"}} {
		wrong, n := checkSpace(all, tc.faults)
		if verdict(t, wrong, tc.want); n != 1 {
			t.Errorf("%d calls, want 1", n)
		}
	}
}
