package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"github.com/go-coord/coord/backend"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// What a session has seen, what it finds when it looks again, and whether that is another history.
func TestZooKeeper_WhatShowsThatTheServiceWentBack(t *testing.T) {
	t.Parallel()
	const missing = -1
	stat := func(czxid, mzxid, pzxid int64, version int32) backend.Stat {
		return backend.Stat{Czxid: czxid, Mzxid: mzxid, Pzxid: pzxid, Version: version}
	}
	dir := func(czxid, pzxid int64, children, creations int32) backend.Stat {
		return backend.Stat{Czxid: czxid, Pzxid: pzxid, NumChildren: children, Cversion: 2*creations - children}
	}
	created := past{wrote: sighting{"/a/b/n", 100, 100, 0, missing}}
	set := past{wrote: sighting{"/a/b/n", 50, 100, 7, missing}}
	read := past{read: sighting{"/a/b/n", 50, 100, 7, missing}}
	numbered := past{wrote: sighting{"/a/b/n-0000000005", 100, 100, 0, 5}}
	full := past{wrote: sighting{"/a/b/n-2147483646", 100, 100, 0, 2147483646}}
	wrapped := past{wrote: sighting{"/a/b/n", 50, 100, 2147483647, missing}}
	deleted := past{deleted: sighting{path: "/a/b/n", mzxid: 100}}
	for name, test := range map[string]struct {
		past  past
		found map[string]backend.Stat // others are missing
		back  bool
	}{
		"created, and it is as it was":                  {created, map[string]backend.Stat{"/a/b/n": stat(100, 100, 100, 0)}, false},
		"created, and changed since":                    {created, map[string]backend.Stat{"/a/b/n": stat(100, 120, 100, 3)}, false},
		"created, and created again since":              {created, map[string]backend.Stat{"/a/b/n": stat(110, 120, 100, 3)}, false},
		"created, and it is older":                      {created, map[string]backend.Stat{"/a/b/n": stat(90, 90, 90, 0)}, true},
		"created, and an older one was changed":         {created, map[string]backend.Stat{"/a/b/n": stat(90, 120, 90, 1)}, true},
		"created, and another is at this zxid":          {created, map[string]backend.Stat{"/a/b/n": stat(100, 110, 100, 0)}, true},
		"created, and deleted since":                    {created, map[string]backend.Stat{"/a/b": dir(1, 101, 0, 1), "/a": dir(1, 1, 1, 1)}, false},
		"created and deleted by one commit":             {created, map[string]backend.Stat{"/a/b": dir(1, 100, 0, 1), "/a": dir(1, 1, 1, 1)}, false},
		"created, and never there":                      {created, map[string]backend.Stat{"/a/b": dir(1, 99, 0, 0), "/a": dir(1, 120, 1, 1)}, true},
		"created, and its parent was deleted since":     {created, map[string]backend.Stat{"/a": dir(1, 101, 0, 1), "/": dir(0, 1, 1, 1)}, false},
		"created, and its parent was never there":       {created, map[string]backend.Stat{"/a": dir(1, 99, 0, 1), "/": dir(0, 120, 1, 1)}, true},
		"created, and all above was deleted since":      {created, map[string]backend.Stat{"/": dir(0, 101, 0, 1)}, false},
		"created, and nothing above was ever there":     {created, map[string]backend.Stat{"/": dir(0, 99, 0, 1)}, true},
		"set, and it is as it was":                      {set, map[string]backend.Stat{"/a/b/n": stat(50, 100, 50, 7)}, false},
		"set, and set again since":                      {set, map[string]backend.Stat{"/a/b/n": stat(50, 130, 50, 8)}, false},
		"set, and set again by the same commit":         {set, map[string]backend.Stat{"/a/b/n": stat(50, 100, 50, 8)}, false},
		"set, and it has an earlier version":            {set, map[string]backend.Stat{"/a/b/n": stat(50, 99, 50, 6)}, true},
		"set, and more often before":                    {set, map[string]backend.Stat{"/a/b/n": stat(50, 99, 50, 9)}, true},
		"set, and another client set it less often":     {set, map[string]backend.Stat{"/a/b/n": stat(50, 130, 50, 5)}, true},
		"set, and another client set it as often":       {set, map[string]backend.Stat{"/a/b/n": stat(50, 130, 50, 7)}, true},
		"set, and an older node was set":                {set, map[string]backend.Stat{"/a/b/n": stat(40, 130, 40, 9)}, true},
		"set, and created again since":                  {set, map[string]backend.Stat{"/a/b/n": stat(101, 101, 101, 0)}, false},
		"set, and created again before":                 {set, map[string]backend.Stat{"/a/b/n": stat(60, 99, 60, 9)}, true},
		"set to the last version, and again since":      {wrapped, map[string]backend.Stat{"/a/b/n": stat(50, 130, 50, -2147483648)}, false},
		"read, and it is as it was":                     {read, map[string]backend.Stat{"/a/b/n": stat(50, 100, 50, 7)}, false},
		"read, and it has an earlier version":           {read, map[string]backend.Stat{"/a/b/n": stat(50, 99, 50, 6)}, true},
		"read, and never there":                         {read, map[string]backend.Stat{"/a/b": dir(1, 49, 0, 0)}, true},
		"numbered, and deleted since":                   {numbered, map[string]backend.Stat{"/a/b": dir(1, 120, 0, 6)}, false},
		"numbered, and others came since":               {numbered, map[string]backend.Stat{"/a/b": dir(1, 120, 3, 9)}, false},
		"numbered, and others came instead":             {numbered, map[string]backend.Stat{"/a/b": dir(1, 120, 2, 5)}, true},
		"numbered, and its parent was created again":    {numbered, map[string]backend.Stat{"/a/b": dir(110, 120, 0, 1)}, false},
		"numbered, and its parent was deleted since":    {numbered, map[string]backend.Stat{"/a": dir(1, 120, 0, 1)}, false},
		"numbered by the last number, and others since": {full, map[string]backend.Stat{"/a/b": dir(1, 120, 0, -2147483648)}, false},
		"deleted, and missing":                          {deleted, nil, false},
		"deleted, and created again since":              {deleted, map[string]backend.Stat{"/a/b/n": stat(110, 110, 110, 0)}, false},
		"deleted and created by one commit":             {deleted, map[string]backend.Stat{"/a/b/n": stat(100, 100, 100, 0)}, false},
		"deleted, and there":                            {deleted, map[string]backend.Stat{"/a/b/n": stat(90, 90, 90, 0)}, true},
		"deleted, and there and changed":                {deleted, map[string]backend.Stat{"/a/b/n": stat(90, 130, 90, 1)}, true},
	} {
		sights := test.past.reads()
		if len(sights) == 0 {
			t.Errorf("%s: nothing is looked for", name)
		}
		for i := range sights {
			var ok bool
			if sights[i].stat, ok = test.found[sights[i].path]; !ok {
				sights[i].code = codeNoNode
			}
		}
		if why := test.past.contradicts(sights); (why != "") != test.back {
			t.Errorf("%s: %q", name, why)
		}
		// Nothing is known of a node if its answer is no Stat.
		for _, code := range []int32{codeNoAuth, codeThrottled, codeUnimplemented, 17} {
			for i := range sights {
				sights[i].code = code
			}
			if why := test.past.contradicts(sights); why != "" {
				t.Errorf("%s, and no answer but code %d: %q", name, code, why)
			}
		}
	}
}

// Which nodes of a commit are remembered.
func TestZooKeeper_WhatASessionRemembersOfACommit(t *testing.T) {
	t.Parallel()
	set := backend.Result{Stat: backend.Stat{Czxid: 5, Mzxid: 100, Version: 3}}
	node := func(path string) backend.Result { return backend.Result{Path: path} }
	long := "/" + strings.Repeat("n", 2000)
	for name, test := range map[string]struct {
		ops     []backend.Op
		results []backend.Result
		want    past
	}{
		"a creation": {[]backend.Op{backend.Create("/a", nil, backend.Ephemeral)}, []backend.Result{node("/a")}, past{wrote: sighting{"/a", 100, 100, 0, -1}}},
		"a number":   {[]backend.Op{backend.Create("/a/n-", nil, backend.EphemeralSequential)}, []backend.Result{node("/a/n-0000000012")}, past{wrote: sighting{"/a/n-0000000012", 100, 100, 0, 12}}},
		"a number after the last one": {[]backend.Op{backend.Create("/a/n-", nil, backend.PersistentSequential)}, []backend.Result{node("/a/n--2147483648")},
			past{wrote: sighting{"/a/n--2147483648", 100, 100, 0, -1}}},
		"a short name with a number": {[]backend.Op{backend.Create("/", nil, backend.PersistentSequential)}, []backend.Result{node("/1")}, past{wrote: sighting{"/1", 100, 100, 0, -1}}},
		"a name that looks like a number": {[]backend.Op{backend.Create("/a/n-0000000012", nil, backend.Ephemeral)}, []backend.Result{node("/a/n-0000000012")},
			past{wrote: sighting{"/a/n-0000000012", 100, 100, 0, -1}}},
		"a change":   {[]backend.Op{backend.SetData("/a", nil, 2)}, []backend.Result{set}, past{wrote: sighting{"/a", 5, 100, 3, -1}}},
		"a deletion": {[]backend.Op{backend.Delete("/a", 2)}, make([]backend.Result, 1), past{deleted: sighting{path: "/a", mzxid: 100}}},
		"a check":    {[]backend.Op{backend.Check("/a", 2)}, make([]backend.Result, 1), past{}},
		"an absence": {[]backend.Op{backend.Absent("/a")}, make([]backend.Result, 1), past{}},
		"all of it": {[]backend.Op{backend.SetData("/a", nil, 2), backend.Create("/a/n-", nil, backend.EphemeralSequential), backend.Create("/b", nil, backend.Persistent), backend.SetData("/b", nil, 0), backend.Delete("/c", 0)},
			[]backend.Result{set, node("/a/n-0000000012"), node("/b"), set, {}},
			past{wrote: sighting{"/a/n-0000000012", 100, 100, 0, 12}, deleted: sighting{path: "/c", mzxid: 100}}},
		"a node with a long path": {[]backend.Op{backend.Create(long, nil, backend.Ephemeral)}, []backend.Result{node(long)}, past{}},
	} {
		var p past
		p.committed(test.ops, test.results, 100)
		if p != test.want {
			t.Errorf("%s: %+v, want %+v", name, p, test.want)
		}
		p.committed(test.ops, test.results, 0) // no zxid of a service
		if p != test.want {
			t.Errorf("%s, and once more with an earlier zxid: %+v", name, p)
		}
	}
	var p past
	p.saw("/a", &backend.Stat{Czxid: 1, Mzxid: 9, Version: 4})
	p.saw("/b", &backend.Stat{Czxid: 2, Mzxid: 8, Version: 7})
	p.saw("/", &backend.Stat{})
	if want := (past{read: sighting{"/a", 1, 9, 4, -1}}); p != want {
		t.Errorf("after two reads: %+v", p)
	}
}

// pastServer serves a session that has created /a/n with zxid 100, and then breaks the connection.
type pastServer struct {
	digest bool
	conns  atomic.Int32
	// again serves the connections after the first one, whose connect request was answered. It answers one
	// request, and reports whether to continue.
	again func(conn net.Conn, n int, r []byte) bool
}

func replyAt(xid, code int32, zxid int64, body []byte) []byte {
	out := reply(xid, code, body...)
	binary.BigEndian.PutUint64(out[4:], uint64(zxid))
	return framed(out)
}

func rawStat(czxid, mzxid, pzxid int64) []byte {
	stat := make([]byte, statSize)
	binary.BigEndian.PutUint64(stat, uint64(czxid))
	binary.BigEndian.PutUint64(stat[8:], uint64(mzxid))
	binary.BigEndian.PutUint64(stat[60:], uint64(pzxid))
	return stat
}

// right answers a request as the service did before.
func (p *pastServer) right(conn net.Conn, r []byte) bool {
	xid, op := int32At(r, 0), int32At(r, 4)
	switch {
	case answerPing(conn, r):
	case op == opAuth:
		conn.Write(framed(reply(xidAuth, 0)))
	case op == opClose:
		return false
	case op == opExists && strings.Contains(string(r), "/a/n"):
		conn.Write(replyAt(xid, 0, 100, rawStat(100, 100, 100)))
	case op == opExists:
		conn.Write(replyAt(xid, 0, 100, rawStat(1, 1, 100)))
	case op == opCreate:
		conn.Write(replyAt(xid, 0, 100, str(nil, "/a/n")))
	default:
		conn.Write(replyAt(xid, 0, 100, str(nil, "/")))
	}
	return true
}

func (p *pastServer) serve(conn net.Conn, n int) {
	p.conns.Store(int32(n))
	welcome(conn, 9000)
	for r := range requests(conn) {
		answer := p.again
		if n == 1 {
			answer = func(conn net.Conn, _ int, r []byte) bool { return int32At(r, 4) != opSync && p.right(conn, r) }
		}
		if !answer(conn, n, r) {
			return
		}
	}
}

func (p *pastServer) run(t *testing.T, test func(t *testing.T, s backend.Session)) {
	t.Helper()
	var o Options
	if p.digest {
		o.Digest = "user:secret"
	}
	inBubble(t, o, p.serve, func(t *testing.T, b backend.Backend) {
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := s.Commit(t.Context(), backend.Create("/a/n", nil, backend.Ephemeral)); err != nil {
			t.Fatal(err)
		}
		test(t, s)
	})
}

// A session whose node is older than it was is lost at once, before any call of the new connection.
func TestZooKeeper_ServiceThatWentBackEndsTheSession(t *testing.T) {
	t.Parallel()
	for _, digest := range []bool{false, true} {
		p := &pastServer{digest: digest}
		var others atomic.Int32
		p.again = func(conn net.Conn, n int, r []byte) bool {
			if int32At(r, 0) != xidLook {
				if op := int32At(r, 4); op != opAuth && op != opPing {
					others.Add(1)
				}
				return p.right(conn, r)
			}
			time.Sleep(100 * time.Millisecond)
			conn.Write(replyAt(xidLook, 0, 200, rawStat(90, 90, 90)))
			return true
		}
		p.run(t, func(t *testing.T, s backend.Session) {
			begin := time.Now()
			err := s.Sync(t.Context(), "/")
			if !errors.Is(err, backend.ErrSessionLost) || !strings.Contains(err.Error(), "the service has returned to an earlier state, as after restoring a backup") {
				t.Errorf("digest %v: %v", digest, err)
			}
			if time.Since(begin) > time.Second || others.Load() > 0 {
				t.Errorf("digest %v: after %v and %d requests", digest, time.Since(begin), others.Load())
			}
		})
	}
}

// No odd answer to a look ends the session. The session keeps the connection if the answer follows the protocol.
func TestZooKeeper_OddAnswersToTheLookShowNothing(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer []byte
		conns  int32
		lost   bool
	}{
		"too short a Stat":        {replyAt(xidLook, 0, 200, make([]byte, 9)), 2, false},
		"no permission":           {replyAt(xidLook, codeNoAuth, 200, nil), 2, false},
		"throttled":               {replyAt(xidLook, codeThrottled, 200, nil), 2, false},
		"an unknown code":         {replyAt(xidLook, 17, 200, nil), 2, false},
		"a longer Stat":           {replyAt(xidLook, 0, 200, append(rawStat(100, 100, 100), 1, 2, 3, 4)), 2, false},
		"another xid":             {replyAt(xidLook+1, 0, 200, rawStat(1, 1, 1)), 3, false},
		"half a frame":            {[]byte{0, 0, 0, 99, 1, 2}, 3, false},
		"a forbidden length":      {[]byte{0xff, 0xff, 0xff, 0xff}, 3, false},
		"the session has moved":   {replyAt(xidLook, codeSessionMoved, 200, nil), 3, false},
		"the server is closing":   {replyAt(xidLook, codeClosing, 200, nil), 3, false},
		"the end of the session":  {replyAt(xidLook, codeSessionExpired, 200, nil), 2, true},
		"the end of the session,": {replyAt(xidLook, codeUnknownSession, 200, nil), 2, true},
		"nothing":                 {nil, 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &pastServer{}
			p.again = func(conn net.Conn, n int, r []byte) bool {
				if n == 2 && int32At(r, 0) == xidLook {
					conn.Write(test.answer)
					if len(test.answer) < 16 && test.answer != nil {
						return false
					}
					return true
				}
				return p.right(conn, r)
			}
			p.run(t, func(t *testing.T, s backend.Session) {
				err := s.Sync(t.Context(), "/")
				if test.lost != errors.Is(err, backend.ErrSessionLost) || !test.lost && err != nil || err != nil && strings.Contains(err.Error(), "earlier state") {
					t.Errorf("sync: %v", err)
				}
				if n := p.conns.Load(); n != test.conns {
					t.Errorf("%d connections, want %d", n, test.conns)
				}
			})
		})
	}
}

// A server that does not answer the look gives no contact and renews no lease, although it answers pings. One that
// closes the connection is not asked again in a tight loop.
func TestZooKeeper_LookWithoutAnAnswerIsAFailedHandshake(t *testing.T) {
	t.Parallel()
	for name, closes := range map[string]bool{"silent": false, "closing": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &pastServer{}
			var event = framed(append(reply(xidEvent, 0), append([]byte{0, 0, 0, eventDeleted, 0, 0, 0, 3}, str(nil, "/a/n")...)...))
			p.again = func(conn net.Conn, n int, r []byte) bool {
				if int32At(r, 0) == xidLook {
					conn.Write(event)
					return !closes
				}
				return p.right(conn, r)
			}
			p.run(t, func(t *testing.T, s backend.Session) {
				begin := time.Now()
				w := backend.NewWatch()
				if _, err := s.Exists(t.Context(), "/a/n", w); err != nil {
					t.Fatal(err)
				}
				contacts := make(chan int)
				go func() {
					n := -1 // the present one
					for {
						phase, change := s.Status()
						if phase == backend.PhaseConnected {
							n++
						}
						if phase == backend.PhaseLost {
							contacts <- n
							return
						}
						<-change
					}
				}()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := s.Sync(ctx, "/")
				lease := 9 * time.Second * 2 / 3
				if after := time.Since(begin); !errors.Is(err, backend.ErrSessionLost) || after > lease+time.Millisecond {
					t.Errorf("after %v: %v", after, err)
				}
				s.Close()
				if n := <-contacts; n > 0 {
					t.Errorf("%d new contacts", n)
				}
				if w.Kind() == backend.Deleted {
					t.Error("an event before the answer counts")
				}
				if n := p.conns.Load(); n < 3 || n > 40 {
					t.Errorf("%d connections", n)
				}
			})
		})
	}
}

// A session that servers refuse asks for a zxid. It is lost at once if that is not larger than what it has seen.
func TestZooKeeper_RefusedSessionAsksWhetherTheServiceWentBack(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		zxid int64
		code int32
		xid  int32
		back bool
	}{
		"it is behind":                      {99, codeOK, xidLook, true},
		"it has the same zxid":              {100, codeOK, xidLook, true},
		"it is behind, and denies the read": {99, codeNoAuth, xidLook, true},
		"it is not behind":                  {101, codeOK, xidLook, false},
		"it throttles":                      {0, codeThrottled, xidLook, false},
		"it is read-only":                   {99, codeNotReadOnly, xidLook, false},
		"another xid":                       {99, codeOK, 5, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked, closed, refused atomic.Int32
			p := &pastServer{}
			serve := func(conn net.Conn, n int) {
				if n == 1 {
					p.serve(conn, n)
					return
				}
				r, err := nextRequest(conn)
				if err != nil {
					return
				}
				if binary.BigEndian.Uint64(r[16:]) != 0 {
					refused.Add(1)
					return
				}
				if seen := binary.BigEndian.Uint64(r[4:]); seen != 0 {
					t.Errorf("the new session has seen %d", seen)
				}
				b := be.AppendUint32(be.AppendUint32(nil, 0), 4000)
				conn.Write(framed(str(be.AppendUint64(b, 0x78), strings.Repeat("p", 16))))
				for r := range requests(conn) {
					switch int32At(r, 4) {
					case opMulti:
						asked.Add(1)
						conn.Write(replyAt(test.xid, test.code, test.zxid, nil))
					case opClose:
						closed.Add(1)
						return
					default:
						t.Errorf("request %d", int32At(r, 4))
					}
				}
			}
			inBubble(t, Options{}, serve, func(t *testing.T, b backend.Backend) {
				s, err := b.Open(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := s.Commit(t.Context(), backend.Create("/a/n", nil, backend.Ephemeral)); err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				err = s.Sync(t.Context(), "/")
				after := time.Since(begin)
				if !errors.Is(err, backend.ErrSessionLost) || strings.Contains(err.Error(), "the service has returned to an earlier state") != test.back {
					t.Errorf("after %v: %v", after, err)
				}
				if test.back && (after > time.Second || refused.Load() != 2 || asked.Load() != 1) {
					t.Errorf("lost after %v, %d refusals and %d questions", after, refused.Load(), asked.Load())
				}
				if n := asked.Load(); n < 1 || n > 7 {
					t.Errorf("%d questions in %v", n, after)
				}
				s.Close()
				if asked.Load() != closed.Load() {
					t.Errorf("%d sessions, of which %d were closed", asked.Load(), closed.Load())
				}
			})
		})
	}
}
