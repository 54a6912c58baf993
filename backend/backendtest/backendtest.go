// Package backendtest is the test suite for the contract of package backend. A new backend has
// to pass it:
//
//	func TestContract(t *testing.T) {
//		backendtest.Run(t, backendtest.Harness{
//			New:            newService, // a fresh service, taken down by t.Cleanup
//			SessionTimeout: 2 * time.Second,
//			Parallel:       true,
//		})
//	}
//
// [Run] tests a backend against every clause of the contract, faults included: a lost request or
// reply, a session that the service ends, a partition. Each clause is a subtest, group/clause.
// The service has to offer these faults, see [Link]; a proxy before the server can make them.
//
// Clauses that begin with "(may)" describe what ZooKeeper does where the contract leaves it open.
// Harness.Unlike names those that the service keeps otherwise. Harness.Excused names clauses that
// a version of the servers breaks, with the defect; they are skipped.
//
// [Differ] plays one random script on two services and compares all results. The reference is the
// backend memory. If they differ, it prints the seed and a shortened script. [Intercept] puts
// hooks around the calls of a backend, for tests of the layers above.
//
// The tests of this package run the suite on memory, show that it finds each of a list of defects
// in a backend, and compare memory with ZooKeeper on random scripts:
//
//	go test ./backend/backendtest
//	COORD_LONG=1 go test -v -timeout 2h -run TestMemoryAndZooKeeperAgree ./backend/backendtest
//
// The suite has one client or a few, and one fault at a time. It does not show that a backend
// keeps the contract while members of a cluster die: the backend of a cluster needs tests of its
// own for that, as package backend/etcd has.
package backendtest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
)

// A Service is one fresh service under test. Everything happens below its Root.
type Service interface {
	// Root is the path of a node that exists and has neither data nor
	// children. It may be "/".
	Root() string

	// Link returns a connection with faults of its own. The same name returns the same link.
	Link(name string) Link
}

// A Link is a backend whose contact to the service can be broken. The faults of one link do
// not affect the others.
//
// A link may also have a method SetLatency(time.Duration), which delays every request and
// every reply by that time. Then the tests about calls under way hit more of them.
type Link interface {
	backend.Backend

	// Partition breaks the contact until Heal. The sessions of the link become suspended;
	// later they are lost when their lease passes, and the service ends them.
	Partition()

	// Heal ends a partition. Without one it does nothing.
	Heal()

	// Expire makes the service end a session of this link now: its ephemerals are deleted
	// when Expire returns. The client learns of it as soon as it has contact.
	Expire(session int64)

	// DropNextRequest loses the next read or commit over this link before it reaches the
	// service. Pings, and the opening and closing of sessions, do not count. If a Commit takes
	// several requests, the one that writes is lost. The contact breaks for a moment and
	// returns.
	DropNextRequest()

	// DropNextReply lets the service handle the next request, as DropNextRequest counts them,
	// and loses the reply. The contact breaks for a moment and returns.
	DropNextReply()
}

// A Harness tells Run how to make and how to run the services under test.
type Harness struct {
	// New returns a fresh service, and stops it in t.Cleanup. It is called once for each
	// leaf, inside the leaf.
	New func(t *testing.T) Service

	// Leaf runs one leaf of the suite; nil means f(t). A leaf starts no
	// subtests and waits only on channels and timers that were made inside it,
	// so Leaf may be synctest.Test.
	Leaf func(t *testing.T, f func(t *testing.T))

	// SessionTimeout is the timeout that the sessions negotiate. The leaves about time scale
	// with it; most of them take about as long. Below some 300 ms, sessions may be lost on a
	// busy machine.
	SessionTimeout time.Duration

	// Collects says that the service removes an empty container soon, within a few seconds: then
	// the clauses about that are tested.
	Collects bool

	// Parallel runs the leaves in parallel, those of all groups together. Without it they run
	// one by one.
	Parallel bool

	// Unlike has the names, as group/clause, of the clauses that begin with "(may)" and that
	// this service keeps otherwise. They describe what ZooKeeper does and the contract leaves
	// open; Run leaves these out. Any other name is an error.
	Unlike []string

	// Excused has the names, as group/clause, of clauses that the servers under test do not keep,
	// and the reasons: a defect of a version, and where it is described. Run skips these. A name
	// that is no clause is an error, and so is an empty reason.
	Excused map[string]string
}

// may begins the name of a clause that the contract leaves open.
const may = "(may) "

// A leaf is one clause of the contract.
type leaf struct {
	name string
	run  func(s *scene)
}

// A group is a subject of the contract.
type group struct {
	name   string
	leaves []leaf
}

// Run tests a backend against the contract. Each clause is a subtest, named group/clause.
func Run(t *testing.T, h Harness) {
	if name := h.misnamed(); name != "" {
		t.Errorf("%q is no clause that a service may keep otherwise", name)
	}
	if name := h.misexcused(); name != "" {
		t.Errorf("%q is no clause that can be excused, or has no reason", name)
	}
	for _, g := range groups() {
		t.Run(g.name, func(t *testing.T) {
			if h.Parallel {
				t.Parallel()
			}
			for _, l := range g.leaves {
				if slices.Contains(h.Unlike, g.name+"/"+l.name) {
					continue
				}
				t.Run(l.name, func(t *testing.T) {
					if reason := h.Excused[g.name+"/"+l.name]; reason != "" {
						t.Skip(reason)
					}
					if h.Parallel {
						t.Parallel()
					}
					h.leaf(t, func(t *testing.T) { l.run(newScene(t, t, h)) })
				})
			}
		})
	}
}

// misnamed returns a name of Unlike that must not be there, or "".
func (h Harness) misnamed() string {
	var open []string
	for _, g := range groups() {
		for _, l := range g.leaves {
			if strings.HasPrefix(l.name, may) {
				open = append(open, g.name+"/"+l.name)
			}
		}
	}
	for _, name := range h.Unlike {
		if !slices.Contains(open, name) {
			return name
		}
	}
	return ""
}

// misexcused returns a name of Excused that must not be there, or has no reason, or "".
func (h Harness) misexcused() string {
	named := make(map[string]bool)
	for _, g := range groups() {
		for _, l := range g.leaves {
			named[g.name+"/"+l.name] = true
		}
	}
	for name, reason := range h.Excused {
		if !named[name] || reason == "" {
			return name
		}
	}
	return ""
}

func (h Harness) leaf(t *testing.T, f func(t *testing.T)) {
	if h.Leaf == nil {
		f(t)
		return
	}
	h.Leaf(t, f)
}
