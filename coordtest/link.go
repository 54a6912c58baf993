package coordtest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// A Link is the connection of the clients that were opened over it to a Service. It is a backend
// whose contact can be broken: the package comment has the table of the faults. It is safe for
// concurrent use.
type Link struct {
	service *Service
	name    string
	conn    Connection
	backend backend.Backend // conn with the faults of commits

	mu       sync.Mutex
	sessions []int64 // opened, and not expired by the test
	faults   []*Fault
	replies  map[*backend.Op]*Fault // of commits under way, which their operations identify
	closed   bool
}

func newLink(s *Service, name string, c Connection) *Link {
	l := &Link{service: s, name: name, conn: c, replies: make(map[*backend.Op]*Fault)}
	l.backend = backendtest.Intercept(c, backendtest.Hooks{Before: l.before, After: l.after})
	return l
}

// Open starts a session over the link. Clients call it.
func (l *Link) Open(ctx context.Context) (backend.Session, error) {
	s, err := l.backend.Open(ctx)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sessions = append(l.sessions, s.ID())
	return s, nil
}

// Cut breaks the connections of the link, once. The clients connect again, and their sessions
// stay. Commits under way are uncertain.
func (l *Link) Cut() { l.conn.Cut() }

// Refuse breaks the connections of the link and refuses new ones while it is on. A client is
// suspended at once, and loses its holds when its lease passes. It is what a client sees of servers
// that are down, or of a firewall that rejects.
func (l *Link) Refuse(on bool) { l.conn.Refuse(on) }

// Blackhole loses everything in both directions while it is on, and resets no connection: neither
// side notices it at once. It is what a client sees of a network that fails. In memory it is the same as
// Refuse.
func (l *Link) Blackhole(on bool) { l.conn.Blackhole(on) }

// Delay makes each request and each reply take d longer, from now on; 0 ends it.
func (l *Link) Delay(d time.Duration) { l.conn.Delay(d) }

// Expire makes the service end all sessions of the link now, as if their timeout had passed. When
// it returns, their ephemeral nodes are deleted. A client learns of it at once if it has contact,
// else when its lease passes; it then opens another session. If the link has no session, Expire
// fails the test.
func (l *Link) Expire() {
	tb := l.service.tb
	tb.Helper()
	l.mu.Lock()
	sessions := l.sessions
	l.sessions = nil
	l.mu.Unlock()
	if len(sessions) == 0 {
		tb.Errorf("coordtest: link %q has no session to expire", l.name)
	}
	for _, id := range sessions {
		if err := l.conn.Expire(id); err != nil {
			tb.Errorf("coordtest: link %q: expire session %#x: %v", l.name, id, err)
		}
	}
}

// DropRequest loses the n-th commit from now on, counted from 1, that names the node at path or one
// below it; "" means any node. It never reaches the service. The path is that of a recipe of a
// client without a Namespace of its own; else it begins with that. A commit that another fault
// of the link loses already is not lost twice: the fault that was armed later strikes at the next.
func (l *Link) DropRequest(n int, path string) *Fault { return l.arm(n, path, true) }

// DropReply lets the service answer the n-th commit as DropRequest counts them, and loses the
// answer. If the commit was not refused, it is applied.
func (l *Link) DropReply(n int, path string) *Fault { return l.arm(n, path, false) }

func (l *Link) arm(n int, path string, request bool) *Fault {
	what := "reply"
	if request {
		what = "request"
	}
	f := newFault(l.service.tb, fmt.Sprintf("the %s of commit %d at %q over link %q", what, n, path, l.name), n)
	f.path, f.request = path, request
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = append(l.faults, f)
	return f
}

// before counts a commit for the faults, and loses the request.
func (l *Link) before(ctx context.Context, c backendtest.Call) error {
	f := l.count(c)
	if f == nil {
		return nil
	}
	l.breakFor(ctx, c)
	f.happened()
	return backend.ErrUncertain
}

// after loses the reply to a commit.
func (l *Link) after(ctx context.Context, c backendtest.Call, err error) error {
	f := l.answered(c)
	if f == nil {
		return err
	}
	l.breakFor(ctx, c)
	f.happened()
	if backend.IsUncertain(err) {
		return err // lost already, and the error says why
	}
	return backend.ErrUncertain
}

// breakFor cuts the link, and returns when the session of a call has noticed it. Otherwise the next
// commit could be sent over the broken connection, and be lost too.
func (l *Link) breakFor(ctx context.Context, c backendtest.Call) {
	phase, changed := c.Session.Status()
	l.conn.Cut()
	if phase != backend.PhaseConnected {
		return
	}
	select {
	case <-changed:
	case <-ctx.Done():
	}
}

// count counts a call for each fault. It returns the fault that loses its request, and remembers the
// one that loses its reply.
func (l *Link) count(c backendtest.Call) (lost *Fault) {
	if c.Op != "commit" || len(c.Ops) == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := false
	for _, f := range l.faults {
		if !l.names(c, f.path) || !f.count(taken) {
			continue
		}
		taken = true
		if f.request {
			lost = f
		} else {
			l.replies[&c.Ops[0]] = f
		}
	}
	return lost
}

// answered returns the fault that loses the reply to a call.
func (l *Link) answered(c backendtest.Call) *Fault {
	if c.Op != "commit" || len(c.Ops) == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.replies[&c.Ops[0]]
	delete(l.replies, &c.Ops[0])
	return f
}

// names reports whether a commit names the node at path, or one below it.
func (l *Link) names(c backendtest.Call, path string) bool {
	for _, op := range c.Ops {
		if below(strings.TrimPrefix(op.Path, l.service.Root()), path) {
			return true
		}
	}
	return false
}

// below reports whether node is at path or below it.
func below(node, path string) bool {
	path = strings.TrimSuffix(path, "/")
	return path == "" || node == path || strings.HasPrefix(node, path+"/")
}

func (l *Link) heal() {
	l.mu.Lock()
	faults := l.faults
	l.mu.Unlock()
	for _, f := range faults {
		f.expire()
	}
	l.conn.Refuse(false)
	l.conn.Blackhole(false)
	l.conn.Delay(0)
}

func (l *Link) close() {
	l.mu.Lock()
	closed := l.closed
	l.closed = true
	l.mu.Unlock()
	if closed {
		return
	}
	l.heal()
	if err := l.conn.Close(); err != nil {
		l.service.tb.Errorf("coordtest: close link %q: %v", l.name, err)
	}
}
