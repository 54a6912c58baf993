package main

import (
	"testing"
	"time"

	"github.com/go-coord/coord/internal/zkproxy"
)

func TestRoundTripsAreCountedByCause(t *testing.T) {
	const oneWay = 20 * time.Millisecond
	y := &tally{oneWay: oneWay}
	y.reset()
	zero := time.Now().Add(-time.Hour)
	at := func(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }
	up := func(ms int, xid int32) {
		y.frame(0, zkproxy.Frame{Conn: 1, Dir: zkproxy.Up, Opcode: zkproxy.OpGetData, Xid: xid, Size: 10}, at(ms))
	}
	down := func(ms int, xid int32) {
		y.frame(0, zkproxy.Frame{Conn: 1, Dir: zkproxy.Down, Opcode: zkproxy.OpGetData, Xid: xid, Size: 20}, at(ms))
	}
	up(0, 1)
	up(15, 2) // concurrent with the first, however slow the client is
	down(21, 1)
	up(39, 3) // the reply has not arrived yet
	down(36, 2)
	down(60, 3)
	if got := y.trips(); got != 1 {
		t.Errorf("%v round trips of three requests beside each other, want 1", got)
	}
	up(900, 4) // much later, and still one after the other
	down(920, 4)
	if got := y.trips(); got != 2 {
		t.Errorf("%v round trips, want 2", got)
	}
	// An event is treated as the reply to another client's request.
	y.beginStep()
	y.frame(0, zkproxy.Frame{Conn: 2, Dir: zkproxy.Up, Opcode: zkproxy.OpDelete, Xid: 1, Size: 10}, at(1000))
	y.frame(0, zkproxy.Frame{Conn: 2, Dir: zkproxy.Down, Opcode: zkproxy.OpEvent, Xid: zkproxy.XidEvent, Size: 10}, at(1021))
	y.frame(0, zkproxy.Frame{Conn: 1, Dir: zkproxy.Down, Opcode: zkproxy.OpEvent, Xid: zkproxy.XidEvent, Size: 10}, at(1022))
	if got := y.trips(); got != 1 {
		t.Errorf("%v round trips until the event, want 1", got)
	}
	y.frame(0, zkproxy.Frame{Conn: 1, Dir: zkproxy.Up, Opcode: zkproxy.OpPing, Xid: zkproxy.XidPing, Size: 8}, at(1100))
	got := y.get()
	want := tallied{requests: 5, events: 2, up: 50, down: 100, frames: 11, woken: 1, wakeUps: 1}
	if got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}
