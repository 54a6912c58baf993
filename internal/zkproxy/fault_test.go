package zkproxy

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/go-zookeeper/zk"
)

func TestADroppedRequestIsNotApplied(t *testing.T) {
	t.Parallel()
	path := unique("/dropped-request")
	otherPath := unique("/not-the-dropped-request")
	p := newProxy(t)
	conn := connect(t, p.Addr())
	fault := p.Drop(isRequest(OpCreate, path), DropRequest)
	mustCreate(t, conn, otherPath)
	if err := create(conn, path); !errors.Is(err, zk.ErrConnectionClosed) {
		t.Errorf("create: %v, want %v", err, zk.ErrConnectionClosed)
	}
	await(t, fault.Hit(), "the fault")
	if exists(t, direct(t), path) {
		t.Error("it was applied")
	}
	mustCreate(t, conn, path) // once only, and the session continues
}

func TestADroppedReplyIsApplied(t *testing.T) {
	t.Parallel()
	path := unique("/dropped-reply")
	p := newProxy(t)
	conn := connect(t, p.Addr())
	fault := p.Drop(isRequest(OpCreate, path), DropReply)
	if err := create(conn, path); !errors.Is(err, zk.ErrConnectionClosed) {
		t.Errorf("create: %v, want %v", err, zk.ErrConnectionClosed)
	}
	await(t, fault.Hit(), "the fault")
	if !exists(t, direct(t), path) {
		t.Error("it was not applied")
	}
	if err := create(conn, path); !errors.Is(err, zk.ErrNodeExists) {
		t.Errorf("second create: %v, want %v", err, zk.ErrNodeExists)
	}
}

func TestAHeldReplyIsDeliveredOnRelease(t *testing.T) {
	t.Parallel()
	path := unique("/held-reply")
	otherPath := unique("/behind-held-reply")
	p := newProxy(t)
	conn := connect(t, p.Addr())
	fault := p.Drop(isRequest(OpCreate, path), HoldReply)
	first := startCall(func() error { return create(conn, path) })
	await(t, fault.Hit(), "the fault")
	if !exists(t, direct(t), path) {
		t.Error("it was not applied")
	}
	second := startCall(func() error { return create(conn, otherPath) })
	waitFor(t, "the reply behind the held one", func() bool { return p.Count().Replies == 2 })
	select {
	case err := <-first:
		t.Errorf("create returned before the release: %v", err)
	case err := <-second:
		t.Errorf("the create behind it returned before the release: %v", err)
	default:
	}
	fault.Release()
	if err := await(t, first, "create"); err != nil {
		t.Errorf("create: %v", err)
	}
	if err := await(t, second, "create behind"); err != nil {
		t.Errorf("create behind: %v", err)
	}
	if n := p.Count().Connections; n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

func TestAHeldRequestIsAppliedOnRelease(t *testing.T) {
	t.Parallel()
	path := unique("/held-request")
	p := newProxy(t)
	conn := connect(t, p.Addr())
	fault := p.Drop(isRequest(OpCreate, path), HoldRequest)
	result := startCall(func() error { return create(conn, path) })
	await(t, fault.Hit(), "the fault")
	if exists(t, direct(t), path) {
		t.Error("it was applied before the release")
	}
	fault.Cancel() // lets go as well
	if err := await(t, result, "create"); err != nil {
		t.Errorf("create: %v", err)
	}
}

func TestEventsAreHeldAndDropped(t *testing.T) {
	t.Parallel()
	path := unique("/eventful")
	p := newProxy(t)
	conn, other := connect(t, p.Addr()), direct(t)
	mustCreate(t, conn, path)
	isEvent := func(f Frame) bool { return f.Path == path && f.Event == int32(zk.EventNodeDataChanged) }
	change := func() {
		if _, err := other.Set(path, nil, -1); err != nil {
			t.Fatal(err)
		}
	}
	_, _, events, err := conn.GetW(path)
	if err != nil {
		t.Fatal(err)
	}
	held := p.Drop(isEvent, HoldEvent)
	change()
	await(t, held.Hit(), "the held event")
	select {
	case e := <-events:
		t.Errorf("event before the release: %v", e)
	default:
	}
	held.Release()
	if e := await(t, events, "the event"); e.Type != zk.EventNodeDataChanged {
		t.Errorf("event %v, want a change", e)
	}

	_, _, events, err = conn.GetW(path)
	if err != nil {
		t.Fatal(err)
	}
	dropped := p.Drop(isEvent, DropEvent)
	p.Refuse(true) // the zk client has a data race when it reconnects with watches
	change()
	await(t, dropped.Hit(), "the dropped event")
	waitFor(t, "the cut", func() bool { return conn.State() != zk.StateHasSession })
	select {
	case e := <-events:
		t.Errorf("the dropped event arrived: %v", e)
	default:
	}
}

func TestAMultiIsMatchedByItsOperations(t *testing.T) {
	t.Parallel()
	path := unique("/multi")
	p := newProxy(t)
	conn := connect(t, p.Addr())
	mustCreate(t, conn, path)
	fault := p.Drop(func(f Frame) bool {
		want := []SubOp{{OpCheck, path}, {OpCreate, path + "/a"}, {OpSetData, path}, {OpDelete, path + "/a"}, {OpCheck, path}}
		if f.Opcode != OpMulti || f.Path != path || len(f.Ops) != len(want) {
			return false
		}
		for i := range want {
			if f.Ops[i] != want[i] {
				t.Errorf("operation %d is %v, want %v", i, f.Ops[i], want[i])
			}
		}
		return true
	}, DropReply)
	_, err := conn.Multi(
		&zk.CheckVersionRequest{Path: path, Version: -1},
		&zk.CreateRequest{Path: path + "/a", Data: []byte("x"), Acl: append(zk.WorldACL(zk.PermAll), zk.AuthACL(zk.PermAll)...)[:1]},
		&zk.SetDataRequest{Path: path, Data: []byte("y"), Version: 0},
		&zk.DeleteRequest{Path: path + "/a", Version: 0},
		&zk.CheckVersionRequest{Path: path, Version: 1},
	)
	if !errors.Is(err, zk.ErrConnectionClosed) {
		t.Errorf("multi: %v, want %v", err, zk.ErrConnectionClosed)
	}
	await(t, fault.Hit(), "the fault")
	if data, _, err := direct(t).Get(path); string(data) != "y" || err != nil {
		t.Errorf("%q, %v, want the multi applied", data, err)
	}
}

func TestOnlyTheFirstOfTwoFaultsTakesAFrame(t *testing.T) {
	t.Parallel()
	path := unique("/two-faults")
	p := newProxy(t)
	conn := connect(t, p.Addr())
	canceled := p.Drop(is(OpCreate), DropRequest)
	first := p.Drop(is(OpCreate), DropRequest)
	second := p.Drop(is(OpCreate), DropReply)
	canceled.Cancel()
	if err := create(conn, path); err == nil {
		t.Error("create succeeded")
	}
	await(t, first.Hit(), "the first fault")
	select {
	case <-second.Hit():
		t.Error("the second fault happened too")
	case <-canceled.Hit():
		t.Error("a canceled fault happened")
	default:
	}
	if err := create(conn, path); err == nil {
		t.Error("second create succeeded")
	}
	await(t, second.Hit(), "the second fault")
	if err := create(conn, path); !errors.Is(err, zk.ErrNodeExists) {
		t.Errorf("third create: %v, want %v", err, zk.ErrNodeExists)
	}
}

func TestAFaultWhoseReplyNeverArrivesIsArmedAgain(t *testing.T) {
	t.Parallel()
	path := unique("/armed-again")
	p := newProxy(t)
	conn := connect(t, p.Addr())
	fault := p.Drop(is(OpCreate), DropReply)
	p.HoldUp(true)
	result := startCall(func() error { return create(conn, path) })
	waitFor(t, "the request", func() bool { return p.Count().Ops[OpCreate] == 1 })
	p.Cut()
	p.HoldUp(false)
	if err := await(t, result, "create"); err == nil {
		t.Error("create succeeded")
	}
	select {
	case <-fault.Hit():
		t.Fatal("the fault happened without a reply")
	default:
	}
	if err := create(conn, path); err == nil {
		t.Error("second create succeeded")
	}
	await(t, fault.Hit(), "the fault")
	if !exists(t, direct(t), path) {
		t.Error("the second create was not applied")
	}
}

func TestTheConnectReplyCanBeDropped(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	var sessions [2]atomic.Int64 // of the replies to the first two connects
	p.OnFrame(func(f Frame) {
		if f.Dir == Down && f.Opcode == OpConnect && f.Conn <= 2 {
			sessions[f.Conn-1].Store(f.Session)
		}
	})
	fault := p.Drop(is(OpConnect), DropReply)
	conn := connect(t, p.Addr())
	await(t, fault.Hit(), "the fault")
	if n := p.Count().Ops[OpConnect]; n != 2 {
		t.Errorf("%d connects, want 2", n)
	}
	first, second := sessions[0].Load(), sessions[1].Load()
	if first == 0 || second != conn.SessionID() || first == second {
		t.Errorf("sessions %#x and %#x, client has %#x: want two, the second the client's", first, second, conn.SessionID())
	}
}
