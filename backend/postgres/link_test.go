package postgres

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

// script is the server of a link: the test writes its answers.
type script struct {
	t     *testing.T
	back  *pgproto3.Backend
	conn  net.Conn
	asked chan []string // the statements of each group
	forms chan string   // the messages of each group, by their letters
}

func newScript(t *testing.T, early bool, heard func(l *link, payload string)) (*link, *script) {
	client, server := net.Pipe()
	s := &script{t, pgproto3.NewBackend(server, server), server, make(chan []string, 1000), make(chan string, 1000)}
	l := newLink(client, pgproto3.NewFrontend(client, client), nil, early, heard)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var group []string
		form := ""
		for {
			m, err := s.back.Receive()
			if err != nil {
				return
			}
			switch m := m.(type) {
			case *pgproto3.Bind:
				group = append(group, m.PreparedStatement)
				form += "B"
			case *pgproto3.Execute:
				form += "E" + m.Portal
			case *pgproto3.Sync:
				s.asked <- group
				s.forms <- form
				group, form = nil, ""
			}
		}
	}()
	t.Cleanup(func() {
		server.Close()
		l.close()
		<-done
	})
	return l, s
}

// say sends messages to the client, in one write.
func (s *script) say(all ...pgproto3.BackendMessage) {
	s.t.Helper()
	for _, m := range all {
		s.back.Send(m)
	}
	if err := s.back.Flush(); err != nil {
		s.t.Error(err)
	}
}

// answer is a row for each request of a group.
func answer(n int, value []byte) []pgproto3.BackendMessage {
	var all []pgproto3.BackendMessage
	for range n {
		all = append(all, &pgproto3.BindComplete{}, &pgproto3.DataRow{Values: [][]byte{value, value}}, &pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
	}
	return append(all, &pgproto3.ReadyForQuery{TxStatus: 'I'})
}

func (s *script) group(want string) {
	s.t.Helper()
	if got := strings.Join(<-s.asked, " "); got != want {
		s.t.Fatalf("the group %q was sent, want %q", got, want)
	}
}

func notification(secret, payload string) *pgproto3.NotificationResponse {
	return &pgproto3.NotificationResponse{Channel: "coord:coord", Payload: sealOf(secret, payload) + " " + payload}
}

func silent(*link, string) {}

// commitRequest is a commit of two operations.
func commitRequest() *request {
	return newRequest("c_commit", append([][]byte{int8(5), int4(1), bool1(false)}, encode([]backend.Op{
		backend.Create("/a", nil, backend.Persistent), backend.Delete("/b", backend.AnyVersion)})...)...)
}

// Events in one packet with the answer to attach are not lost, so no read waits for them for ever. Notifications of another program
// are ignored.
func TestHub_HasTheEventsRightBehindTheAnswerToAttach(t *testing.T) {
	s := &session{id: 5, cfg: new(config)}
	s.Life = contact.NewLife(contact.Clock(), s.end)
	s.hub = newHub(s)
	l, server := newScript(t, false, s.hub.heard)
	attached := make(chan error, 1)
	go func() {
		_, err := l.ask(t.Context(), func(r row) { s.hub.attach(l, integer(r[0]), "secret") }, "k_attach")
		attached <- err
	}()
	server.group("k_attach")
	server.say(append(answer(1, int8(7)), notification("secret", "8 0.\nc/a"), notification("forged", "99 0.\nd/b"), notification("forged", "99 0.\nx5"))...)
	if err := <-attached; err != nil {
		t.Fatal(err)
	}
	// A watch of a node that this event does not concern makes reads wait for events.
	w := backend.NewWatch()
	r := newRequest("r_get")
	r.see = func(r *request) {
		s.hub.mu.Lock()
		defer s.hub.mu.Unlock()
		s.hub.arm(l, w, "/b", false, true, integer(r.rows[0][0]))
	}
	l.send(r, false)
	server.group("r_get")
	server.say(answer(1, int8(8))...)
	<-r.done
	if s.hub.reached(8) != nil {
		t.Error("a reply at position 8 has to wait for its events")
	}
	if w.Kind() != 0 || s.Ended() != nil || s.hub.position() != 8 {
		t.Errorf("after notifications of another program the watch is %v, the session is over: %v, the position is %d", w.Kind(), s.Ended(), s.hub.position())
	}
}

// The answers of one transaction count when it is committed. If it fails, each of its commits reports that another one may be
// the cause.
func TestLink_CommitsOfOneTransaction(t *testing.T) {
	l, server := newScript(t, false, silent)
	commits := make([]*request, 4)
	for i := range commits {
		commits[i] = commitRequest()
		l.commit(commits[i])
		if i == 0 { // the others wait for it
			server.group("c_commit")
		}
	}
	server.say(answer(1, int8(1))...)
	server.group("c_commit")
	if first, form := <-server.forms, <-server.forms; first != "BE" || form != "BE" {
		t.Errorf("sent in the order %q and %q: the server would keep the turn while it waits for arguments", first, form)
	}
	answers := answer(1, int8(2))
	server.say(answers[0], answers[1], answers[1], answers[1], answers[2])
	server.say(&pgproto3.ErrorResponse{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "53100"}, &pgproto3.ReadyForQuery{TxStatus: 'I'})
	for i, r := range commits {
		<-r.done
		var e *pgconn.PgError
		if failed := errors.As(r.err, &e); failed != (i > 0) || r.shared != (i > 0) || r.unsure {
			t.Errorf("commit %d: %v, shared %v, unsure %v", i, r.err, r.shared, r.unsure)
		}
	}
	alone, other := commitRequest(), commitRequest()
	alone.alone = true
	busy := commitRequest()
	l.commit(busy)
	l.commit(alone)
	l.commit(other)
	for _, r := range []*request{busy, alone, other} {
		server.group("c_commit")
		server.say(answer(1, int8(3))...)
		<-r.done
	}
	// Long ones do not make one long message.
	long := []*request{commitRequest(), commitRequest(), commitRequest()}
	for _, r := range long {
		r.args = append(r.args[:5:5], texts([]string{strings.Repeat("x", mostBytesTogether/2), ""}))
		l.commit(r)
	}
	for _, r := range long {
		server.group("c_commit")
		server.say(answer(1, int8(4))...)
		if <-r.done; r.err != nil {
			t.Fatal(r.err)
		}
	}
}

// An early commit is answered when the answer to the next transaction shows that it is durable. Without that answer its outcome is
// unknown.
func TestLink_AnEarlyCommitIsAnsweredWhenItIsDurable(t *testing.T) {
	l, server := newScript(t, true, silent)
	first, second := commitRequest(), commitRequest()
	l.commit(first)
	server.group("c_commit")
	server.group("k_flush")
	server.say(answer(1, int8(1))...)
	l.commit(second) // it need not wait for the flush
	server.group("c_commit")
	select {
	case <-first.done:
		t.Error("answered before it is durable")
	default:
	}
	server.say(answer(1, nil)...)
	<-first.done
	if first.err != nil || first.unsure {
		t.Errorf("%v, unsure %v", first.err, first.unsure)
	}
	server.say(answer(1, int8(2))...)
	server.group("k_flush")
	server.conn.Close()
	l.close()
	<-second.done
	if !second.unsure {
		t.Errorf("%v, unsure %v", second.err, second.unsure)
	}
}

// A commit whose wait for the standby was canceled is uncertain, although the server says that it is committed.
func TestLink_ACommitWithoutItsStandbyIsUnsure(t *testing.T) {
	l, server := newScript(t, false, silent)
	r := commitRequest()
	l.commit(r)
	server.group("c_commit")
	answers := answer(1, int8(1))
	server.say(answers[:len(answers)-1]...)
	server.back.Send(&pgproto3.NoticeResponse{SeverityUnlocalized: "WARNING", Code: "01000", Routine: "SyncRepWaitForLSN"})
	server.back.Send(answers[len(answers)-1])
	_ = server.back.Flush() // the client may close the connection before it has read all
	select {
	case <-r.done:
	case <-l.ctx.Done():
		l.close()
	}
	if !r.unsure {
		t.Errorf("%v, unsure %v", r.err, r.unsure)
	}
}

// A keep-alive overtakes requests that are not sent yet, and the number of unanswered requests is bounded.
func TestLink_AKeepAliveOvertakesReads(t *testing.T) {
	l, server := newScript(t, false, silent)
	reads := make([]*request, mostSent+20)
	for i := range reads {
		reads[i] = newRequest("r_get")
		l.send(reads[i], false)
	}
	for range mostSent {
		server.group("r_get")
	}
	beat := newRequest("k_beat")
	l.send(beat, true)
	server.group("k_beat")
	for range mostSent + 1 {
		server.say(answer(1, int8(1))...)
	}
	<-beat.done
	for range 20 {
		server.group("r_get")
		server.say(answer(1, int8(1))...)
	}
	for _, r := range reads {
		<-r.done
	}
}

// When the link breaks, the outcome of a request is unknown only if it was sent.
func TestLink_OnlyWhatWasSentIsUnsure(t *testing.T) {
	l, server := newScript(t, false, silent)
	sent, waits, dropped := commitRequest(), commitRequest(), commitRequest()
	l.commit(sent)
	server.group("c_commit")
	l.commit(waits)
	l.commit(dropped)
	if l.drop(sent) || !l.drop(dropped) {
		t.Error("a request that was sent was withdrawn, or one that was not could not be")
	}
	server.conn.Close()
	l.close()
	for _, r := range []*request{sent, waits, dropped} {
		<-r.done
		if r.unsure != (r == sent) || !errors.Is(r.err, errBroken) {
			t.Errorf("unsure %v, %v", r.unsure, r.err)
		}
	}
	after := newRequest("r_get")
	l.send(after, false)
	<-after.done
	if after.err == nil || after.unsure {
		t.Errorf("after the end: %v, unsure %v", after.err, after.unsure)
	}
}

// A refusal shows the state at a position. After a failover that loses this position the session ends, as it does after a read.
func TestSession_ARefusalCountsAsSeen(t *testing.T) {
	s := &session{cfg: new(config), commits: make(map[*request]struct{})}
	s.hub = newHub(s)
	r := newRequest("c_commit")
	r.rows = []row{{[]byte("exists"), int4(0), int8(9)}}
	s.committed(r)
	if z := s.hub.position(); z != 9 {
		t.Errorf("the session has seen position %d, want 9", z)
	}
}

// Open checks the right to execute each function that runs with the rights of the session's role.
func TestOpen_KnowsTheFunctionsOfASession(t *testing.T) {
	for _, function := range strings.Split(first, "CREATE FUNCTION {s}.")[1:] {
		name, rest, _ := strings.Cut(function, "(")
		head, _, _ := strings.Cut(rest, "$$")
		if strings.Contains(sessionFunctions, "'"+name+"'") == strings.Contains(head, "SECURITY DEFINER") {
			t.Errorf("the function %s is in the list, or SECURITY DEFINER: want one of both", name)
		}
	}
}
