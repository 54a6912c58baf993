// Package backendtest is the contract of package backend made executable.
//
// [Run] holds a backend against every sentence of the contract, faults
// included: a request or a reply that is lost, a session that the service ends,
// a partition. [Differ] plays one random script on two services and compares
// everything they say. [Intercept] puts hooks around the calls of a backend,
// for tests of the layers above.
//
// A backend proves itself by a test of this form:
//
//	func TestContract(t *testing.T) {
//		backendtest.Run(t, backendtest.Harness{
//			New:            newService,
//			SessionTimeout: time.Second,
//		})
//	}
package backendtest

import (
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
)

// A Service is one fresh service under test. Everything happens below Root.
type Service interface {
	// Root is the path of a node that exists and has neither data nor
	// children. It may be "/".
	Root() string

	// Link returns a way in that has faults of its own. The same name gives
	// the same link.
	Link(name string) Link
}

// A Link is a backend whose contact to the service can be broken. The faults
// of one link do not touch the others.
//
// A link that also has a method SetLatency(time.Duration), which delays every
// request and every reply by that time, lets the leaves about calls under way
// meet more of them.
type Link interface {
	backend.Backend

	// Partition breaks the contact until Heal. The sessions of the link become
	// suspended; in time they are lost by their lease, and the service ends
	// them.
	Partition()

	// Heal ends a partition. Without one it does nothing.
	Heal()

	// Expire has the service end a session of this link now: its ephemerals
	// are gone when Expire returns. The client learns of it as soon as it has
	// contact.
	Expire(session int64)

	// DropNextRequest loses the next request over this link, before the
	// service sees it: a read or a commit, no ping, no opening or closing of a
	// session. The contact breaks with it for a moment and returns.
	DropNextRequest()

	// DropNextReply lets the service handle the next request as in
	// DropNextRequest, and loses the reply. The contact breaks with it for a
	// moment and returns.
	DropNextReply()
}

// A Harness tells Run how to make and how to treat the services under test.
type Harness struct {
	// New returns a fresh service, which it takes down by t.Cleanup. It is
	// called once for each leaf, inside it.
	New func(t *testing.T) Service

	// Leaf runs one leaf of the suite; nil means f(t). A leaf starts no
	// subtests and waits only on channels and timers that were made inside it,
	// so Leaf may be synctest.Test.
	Leaf func(t *testing.T, f func(t *testing.T))

	// SessionTimeout is what the sessions negotiate. The leaves about time
	// scale by it; most of them last about as long. Below some 300 ms a busy
	// machine may lose sessions that should live.
	SessionTimeout time.Duration

	// Parallel runs the leaves in parallel with each other. Without it they
	// run one by one.
	Parallel bool
}

// A leaf is one sentence of the contract.
type leaf struct {
	name string
	run  func(s *scene)
}

// A group is a subject of the contract.
type group struct {
	name   string
	leaves []leaf
}

// Run tests a backend against the contract. Each sentence is a subtest, named
// group/sentence.
func Run(t *testing.T, h Harness) {
	for _, g := range groups() {
		t.Run(g.name, func(t *testing.T) {
			for _, l := range g.leaves {
				t.Run(l.name, func(t *testing.T) {
					if h.Parallel {
						t.Parallel()
					}
					h.leaf(t, func(t *testing.T) { l.run(newScene(t, t, h)) })
				})
			}
		})
	}
}

func (h Harness) leaf(t *testing.T, f func(t *testing.T)) {
	if h.Leaf == nil {
		f(t)
		return
	}
	h.Leaf(t, f)
}
