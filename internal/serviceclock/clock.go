// Package serviceclock has a session's knowledge of the clock of the service: an interval that contains
// the difference of that clock from the local one (offset.go). Each session of package core has a Clock.
// Package queue uses it for the due time of an item that is put or given back (put.go, claim_end.go), to decide
// whether an item is due (walk.go, wait.go) or was claimed too early (claim.go), and for the ages in
// Stats (stats.go).
package serviceclock

import (
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
)

// Local is the clock of this process.
type Local interface {
	// Monotonic returns the time since some moment. A step of the wall clock changes nothing.
	Monotonic() int64
	Wall() time.Time
}

// Clock is a session's knowledge of the clock of the service. Its samples are commits of all recipes
// whose replies have the time of the commit: those of CommitOnce, and those that create the node of a
// contender. So the samples cost no request.
//
// After a break of the contact the session may reach the service through another server, which has
// another clock. So the samples count only as long as the Status of the session is
// unchanged.
type Clock struct {
	exists bool // the service has a clock, see backend.Clock
	local  Local

	mu      sync.Mutex
	offset  offset
	contact <-chan struct{} // of Status when the samples were made: closed when they do not count any more
	refused bool            // this session cannot learn the time
}

// New returns the clock of a session. exists says whether the service has a clock.
func New(exists bool, local Local) *Clock { return &Clock{exists: exists, local: local} }

// Exists reports whether the service has a clock.
func (k *Clock) Exists() bool { return k.exists }

// Moment is a session's knowledge of the time by the service's clock. If the service has no clock, or refuses the
// writes by which the session learns its time, it is the time by the clock of this process.
type Moment struct {
	Known       bool
	stale       bool            // Least and Most are far apart, and a sample would bring them closer
	Least, Most int64           // the service's clock shows a time between them: nanoseconds since 1970
	Moved       <-chan struct{} // closed when the times of the service's clock may have changed; nil: never
}

// verdict says whether a time has come.
type verdict int8

const (
	NotYet verdict = iota + 1
	Reached
	InDoubt // a sample is needed
)

// IsFresh reports whether the time is known, and a sample would not improve that.
func (m *Moment) IsFresh() bool { return m.Known && !m.stale }

// Judge says whether the service's clock has reached a time, in milliseconds since 1970. It never returns
// Reached too early.
func (m *Moment) Judge(at int64) verdict {
	switch t := nanoseconds(at); {
	case at <= 0 || m.Known && t <= m.Least:
		return Reached
	case !m.Known, m.stale && t <= m.Most:
		return InDoubt
	}
	return NotYet
}

// After returns the time, in milliseconds since 1970, at which d has certainly passed by the
// service's clock.
func (m *Moment) After(d time.Duration) int64 {
	return Milliseconds(time.Unix(0, m.Most).Add(max(d, 0)))
}

// Milliseconds returns t as items store it. It rounds up, because no item may be
// taken early.
func Milliseconds(t time.Time) int64 { return t.Add(time.Millisecond - 1).UnixMilli() }

// nanoseconds returns a time that items store, in milliseconds, in nanoseconds. Times before 1970
// count as 1970, and those after the year 2223 as that year.
func nanoseconds(ms int64) int64 {
	return min(max(ms, 0), maxStamp) * int64(time.Millisecond)
}

// Now returns the session's knowledge of the present time by the service's clock.
func (k *Clock) Now() Moment {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.exists || k.refused {
		t := k.local.Wall().UnixNano()
		return Moment{Known: true, Least: t, Most: t}
	}
	k.expire()
	local := k.local.Monotonic()
	m := Moment{Known: k.offset.known, Moved: k.contact}
	if m.Known {
		m.stale = k.offset.stale(local)
		m.Least, m.Most = k.offset.service(local)
	}
	return m
}

// UntilDue returns how long to wait before the session looks again whether a time has come, in
// milliseconds since 1970.
func (k *Clock) UntilDue(at int64) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.exists || k.refused {
		return time.UnixMilli(at).Sub(k.local.Wall())
	}
	k.expire()
	if !k.offset.known {
		return 0
	}
	return time.Duration(k.offset.until(nanoseconds(at)) - k.local.Monotonic())
}

// expire forgets the samples if the contact has changed. The caller holds k.mu.
func (k *Clock) expire() {
	select {
	case <-k.contact:
		k.offset, k.contact = offset{}, nil
	default:
	}
}

// Sending is a commit under way that will be a sample.
type Sending struct {
	at      int64
	contact <-chan struct{}
}

// Send notes that a commit is about to be sent. contact is the channel of the present Status.
func (k *Clock) Send(contact <-chan struct{}) Sending {
	return Sending{k.local.Monotonic(), contact}
}

// Sent adds a commit as a sample. stat is the Stat of a node whose data the commit set or carried. If the
// service did not write the data (see backend.Carry), or the contact has changed since the
// commit was sent, the commit is no sample. Sent reports false if the stamp is no time.
func (k *Clock) Sent(p Sending, stat *backend.Stat) bool {
	if !k.exists || stat.Mzxid != stat.AsOf {
		return true
	}
	return k.learn(sample{sent: p.at, answered: k.local.Monotonic(), stamp: stat.Mtime, zxid: stat.Mzxid}, p.contact)
}

// Precedes reports whether a commit was made before a time, in milliseconds since 1970, by the service's
// clock. stat is the Stat of a node whose data the commit set. Its stamp and the time are whole milliseconds,
// so the answer is exact. It is false if the clock of this process counts.
func (k *Clock) Precedes(stat *backend.Stat, at int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.exists && !k.refused && stat.Mtime > 0 && nanoseconds(stat.Mtime) < nanoseconds(at)
}

// learn adds a sample that was sent under a contact. It reports false if the stamp is no time.
func (k *Clock) learn(x sample, contact <-chan struct{}) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-contact:
		return true
	default:
	}
	if k.contact != contact {
		k.offset, k.contact = offset{}, contact // the samples are from an earlier contact
	}
	return k.offset.add(x)
}

// Refuse makes the clock of this process count for the session. It reports false if that clock counted already.
func (k *Clock) Refuse() (first bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	first = !k.refused
	k.refused = true
	return first
}
