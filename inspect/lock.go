package inspect

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-coord/coord/internal/layout"
)

// A Line is the contenders for a lock or for leadership: holders and
// waiters, in order.
type Line struct {
	Holders    int         `json:"holders"`
	Waiting    int         `json:"waiting"`
	Contenders []Contender `json:"contenders"`
}

// A Contender holds a lock or leads, or waits for that. Its Since is when
// it arrived, not when it was granted.
type Contender struct {
	Node
	Role  string `json:"role"` // "exclusive", "reader", "writer" or "candidate"
	Holds bool   `json:"holds"`
	Token int64  `json:"token,omitempty"` // the present or future token of the hold; readers have none

	// WaitsFor are the names of the nodes that must go first. The nodes for which
	// those wait in turn are not repeated.
	WaitsFor []string `json:"waits_for,omitempty"`

	// Revocation is the request in the node to give up the lock.
	Revocation *Revocation `json:"revocation,omitempty"`

	ID string `json:"id,omitempty"`

	// Host is the address of the contender's host, which Curator stores in a node by default.
	Host string `json:"host,omitempty"`

	// Keep is the time for which the node's client may keep the lock after its last
	// release, see coord.MutexOptions. Whether it does, only that client knows.
	Keep string `json:"keep,omitempty"`

	// Of candidates only.
	Ready            bool   `json:"ready,omitempty"`             // it has called Announce
	Announcement     []byte `json:"announcement,omitempty"`      // with Options.Data
	AnnouncementSize int    `json:"announcement_size,omitempty"` // in bytes
}

// A Revocation is a request to give the lock up, see coord.Revocation.
type Revocation struct {
	By     string    `json:"by,omitempty"`
	Reason string    `json:"reason,omitempty"`
	At     time.Time `json:"at,omitzero"`
	Force  bool      `json:"force,omitempty"`
}

// lines describes mutexes, readers-writer locks and elections.
func (x *inspector) lines(ctx context.Context, k *nameKinds, add func(recipe, summary string)) error {
	if k.lock || k.kazoo && !k.latch {
		l, err := x.line(ctx, k.all, layout.LockLine)
		if err != nil {
			return err
		}
		x.in.Mutex = l
		add("mutex", l.summary("held"))
		if k.kazoo && !k.lock {
			x.in.note("these names are of kazoo's Lock, and of its Election too")
		}
	}
	if k.shared {
		l, err := x.line(ctx, k.all, layout.SharedLine)
		if err != nil {
			return err
		}
		x.in.RWMutex = l
		by := "held"
		if len(l.Contenders) > 0 {
			if n := plural(l.Holders, l.Contenders[0].Role); l.Contenders[0].Holds {
				by = "held by " + n
			}
		}
		add("rwmutex", l.summary(by))
	}
	if !k.latch {
		k.foreign = append(k.foreign, k.ready...)
		return nil
	}
	l, err := x.line(ctx, k.all, layout.LatchLine)
	if err != nil {
		return err
	}
	x.in.Election = l
	if err := x.announcements(ctx, l, k); err != nil {
		return err
	}
	by := "led"
	if len(l.Contenders) > 0 && l.Contenders[0].Holds {
		first := l.Contenders[0]
		if by = "led by " + strconv.Quote(layout.Clip(first.ID)); first.Ready {
			by += ", which is ready"
		}
	}
	add("election", l.summary(by))
	return nil
}

func (l *Line) summary(held string) string {
	if l.Holders == 0 {
		held = "free"
	}
	return held + waitText(l.Waiting)
}

// waitText returns the end of a summary for n waiters.
func waitText(n int) string {
	switch n {
	case 0:
		return ", no waiters"
	case 1:
		return ", 1 waits"
	}
	return fmt.Sprintf(", %d wait", n)
}

// line reads the contenders of one kind among names.
func (x *inspector) line(ctx context.Context, names []string, kinds layout.LineKinds) (*Line, error) {
	order := func(names []string) (list []string) {
		for _, q := range kinds.Order(names) {
			// A group's member can have an id that looks like a contender.
			if _, member := layout.ParseMember(q.Name); !member {
				list = append(list, q.Name)
			}
		}
		return list
	}
	standing, all, err := x.getStanding(ctx, x.dir, names, true, order)
	if err != nil {
		return nil, err
	}
	queue := kinds.Order(standing)
	in := &Line{Contenders: []Contender{}}
	for i, q := range queue {
		b := layout.Blocker(queue, i)
		if b < 0 {
			in.Holders++
		} else {
			in.Waiting++
		}
		r := all[q.Name]
		if r.skip {
			continue
		}
		e := Contender{Node: x.node(q.Name, r), Role: roleOf(kinds, q), Holds: b < 0}
		if !q.Shared {
			e.Token = r.stat.Czxid
		}
		for ; b >= 0; b-- {
			e.WaitsFor = append(e.WaitsFor, queue[b].Name)
			// A writer waits for all readers before it, up to the next writer.
			if q.Shared || !queue[b].Shared || b > 0 && !queue[b-1].Shared {
				break
			}
		}
		slices.Reverse(e.WaitsFor)
		asked, own := layout.OpenEnvelope(r.data)
		if asked != nil {
			e.Revocation = &Revocation{By: asked.By, Reason: asked.Reason, Force: asked.Force}
			if !asked.At.IsZero() {
				e.Revocation.At = asked.At.UTC()
			}
			e.Size = len(own)
		}
		if kinds == layout.LatchLine {
			j := layout.OpenCandidate(own)
			e.ID, own = strings.ToValidUTF8(j.ID, "?"), j.Data
			e.Size = len(own)
		} else if id, rest := layout.OpenContender(own); len(rest) != len(own) {
			if keep := layout.KeepOf(own); keep > 0 {
				e.Keep = keep.String()
			}
			e.ID, own = strings.ToValidUTF8(id, "?"), rest
			e.Size = len(own)
		}
		if host, err := netip.ParseAddr(string(own)); err == nil {
			e.Host = host.WithZone("").String()
		}
		e.Data = x.keep(own)
		in.Contenders = append(in.Contenders, e)
	}
	return in, nil
}

func roleOf(k layout.LineKinds, q layout.Position) string {
	switch {
	case k == layout.LatchLine:
		return "candidate"
	case k == layout.LockLine:
		return "exclusive"
	case q.Shared:
		return "reader"
	}
	return "writer"
}

// announcements reads the announcements of candidates. Announcements without a
// candidate are noted.
func (x *inspector) announcements(ctx context.Context, l *Line, k *nameKinds) error {
	var strays []string
	for _, name := range k.ready {
		i := slices.IndexFunc(l.Contenders, func(e Contender) bool { return layout.ReadyPath(e.Name) == name })
		if i < 0 {
			strays = append(strays, name)
			continue
		}
		r, err := x.get(ctx, x.dir+"/"+name, x.data)
		if err != nil {
			return err
		}
		if r.gone || r.skip {
			continue
		}
		e := &l.Contenders[i]
		e.Ready, e.Announcement, e.AnnouncementSize = true, x.keep(r.data), int(r.stat.DataLength)
	}
	if x.in.Truncated {
		return nil
	}
	for i, name := range strays {
		if i == mostStrays {
			x.in.note("%d more announcements have no candidate", len(strays)-i)
			break
		}
		x.in.note("the announcement %s has no candidate: it left during the read, or an outsider made the announcement", printable(name))
	}
	return nil
}

// mostStrays bounds the announcements without a candidate that are named.
const mostStrays = 5

// A Semaphore is a semaphore: its limit, and the requests for permits in
// order.
type Semaphore struct {
	Limit    int      `json:"limit"` // 0 if unknown
	Held     int64    `json:"held"`  // permits in use
	Holders  int      `json:"holders"`
	Waiting  int      `json:"waiting"` // requests
	Requests []Permit `json:"requests"`
}

// A Permit is a request for permits of a semaphore. Its Since is when it
// arrived.
type Permit struct {
	Node
	ID      string `json:"id,omitempty"`
	Weight  int    `json:"weight"` // the number of permits
	Granted bool   `json:"granted"`

	// WaitsFor are the names of the nodes that the request waits for: the request
	// before it, which it cannot pass; or, if that is granted, all holders. Of these
	// some must release permits, at least Short.
	WaitsFor []string `json:"waits_for,omitempty"`
	Short    int64    `json:"short,omitempty"`
}

// semaphore describes a semaphore.
func (x *inspector) semaphore(ctx context.Context, k *nameKinds, add func(recipe, summary string)) error {
	if !k.fixed["limit"] && !k.fixed["requests"] {
		return nil
	}
	dir := x.dir
	in := &Semaphore{Requests: []Permit{}}
	changed, bad, err := x.limit(ctx, k, in)
	if err != nil {
		return err
	}
	var names []string
	if k.fixed["requests"] {
		if names, _, err = x.list(ctx, dir+"/requests"); err != nil {
			return err
		}
	}
	order := func(names []string) (list []string) {
		for _, q := range layout.OrderPermits(names) {
			list = append(list, q.Name)
		}
		return list
	}
	if in.Limit == 0 && len(order(names)) == 0 {
		return nil // only the names are those of a semaphore
	}
	k.claim("limit", "requests")
	if bad != "" {
		x.in.note("%s", bad)
	}
	standing, all, err := x.getStanding(ctx, dir+"/requests", names, true, order)
	if err != nil {
		return err
	}
	in.requests(x, standing, all, changed)
	x.in.Semaphore = in
	limit := strconv.Itoa(in.Limit)
	if in.Limit == 0 {
		limit = "an unknown number of"
	}
	add("semaphore", fmt.Sprintf("%d of %s permits held by %d", in.Held, limit, in.Holders)+waitText(in.Waiting))
	return nil
}

// limit reads the limit of a semaphore. It returns the zxid of the limit's last
// change, and in bad why the limit is not usable.
func (x *inspector) limit(ctx context.Context, k *nameKinds, in *Semaphore) (changed int64, bad string, err error) {
	if !k.fixed["limit"] {
		return 0, "the node of the limit is missing: the next client that acquires creates it", nil
	}
	r, err := x.get(ctx, x.dir+"/limit", true)
	if err != nil {
		return 0, "", err
	}
	n, ok := layout.ParseLimit(r.data)
	switch {
	case r.skip || r.gone:
	case r.unread != "":
		bad = "the limit cannot be read: " + r.unread
	case !ok:
		bad = "the node of the limit holds no limit: no client can acquire"
	default:
		in.Limit, changed = n, r.stat.Mzxid
	}
	return changed, bad, nil
}

// requests describes the requests called names. all has what was read of them.
// changed is the zxid of the limit's last change.
func (in *Semaphore) requests(x *inspector, names []string, all map[string]seen, changed int64) {
	queue := layout.OrderPermits(names)
	granted, sum := 0, int64(0) // the head of the queue holds sum permits
	for i, q := range queue {
		sum += int64(q.Weight)
		if sum <= int64(in.Limit) || all[q.Name].stat.Version > 0 {
			granted, in.Held = i+1, sum
		}
	}
	in.Holders, in.Waiting = granted, len(queue)-granted
	if slices.ContainsFunc(queue[granted:], func(q layout.Permit) bool { z := all[q.Name].stat.Czxid; return z != 0 && z < changed }) {
		x.in.note("the limit was changed after some of the waiters had arrived: those may have been granted before, without waiting, and hold their permits still")
	}
	sum = 0
	for i, q := range queue {
		sum += int64(q.Weight)
		r := all[q.Name]
		if r.skip {
			continue
		}
		e := Permit{Node: x.node(q.Name, r), Weight: q.Weight, Granted: i < granted}
		id, own := layout.OpenContender(r.data)
		if len(own) != len(r.data) {
			e.ID, e.Size = strings.ToValidUTF8(id, "?"), len(own)
		}
		e.Data = x.keep(own)
		switch {
		case e.Granted:
		case i == granted:
			e.WaitsFor = names[:granted:granted]
			if in.Limit > 0 {
				e.Short = sum - int64(in.Limit)
			}
		default:
			e.WaitsFor = names[i-1 : i : i]
		}
		in.Requests = append(in.Requests, e)
	}
}
