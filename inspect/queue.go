package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/queuestat"
)

// A Queue is the state of a queue: its items, and the claims on them.
type Queue struct {
	Items   int `json:"items"`   // all items
	Ready   int `json:"ready"`   // of these: those that can be taken
	Claimed int `json:"claimed"` // of these: those that a consumer has claimed
	Delayed int `json:"delayed"` // of these: those that are not due, or put off, by this client's clock

	NextDue time.Time `json:"next_due,omitzero"` // when the first delayed item can be taken

	// Next is the item that the next Take would get, if this client's clock is right.
	Next *Item `json:"next,omitempty"`

	// Oldest is since when the ready item that has waited longest has been in the queue, or
	// since when it has been due, if that is later. It is zero if no item is ready.
	Oldest time.Time `json:"oldest,omitzero"`

	// Claims are the claims in the order of the items.
	Claims []Claim `json:"claims,omitempty"`

	Takers  int `json:"takers"`           // clients that wait for an item
	Buckets int `json:"buckets"`          // nodes that hold the items
	Litter  int `json:"litter,omitempty"` // nodes left of items that an outsider, or the end of a session, deleted

	// Dead is the number of dead letters at their default path.
	Dead int `json:"dead"`
}

// An Item is an item of a queue.
type Item struct {
	ID       string    `json:"id"` // as Put returned it
	Priority int64     `json:"priority,omitempty"`
	Due      time.Time `json:"due,omitzero"`
	Attempts int       `json:"attempts"`       // how often it was taken, including a present claim
	Since    time.Time `json:"since,omitzero"` // when it was put, by the service's clock
	Size     int       `json:"size"`           // in bytes
	Data     []byte    `json:"data,omitempty"` // with Options.Data
	Unread   string    `json:"unread,omitempty"`
}

// A Claim is an item that a consumer has claimed.
type Claim struct {
	Item    Item      `json:"item"`
	Name    string    `json:"name"`    // of the node of the claim
	Session string    `json:"session"` // the session that holds the claim
	Since   time.Time `json:"since,omitzero"`
}

// queue describes a queue of any kind.
func (x *inspector) queue(ctx context.Context, k *nameKinds, add func(recipe, summary string)) error {
	if !k.fixed["items"] && !k.fixed["waiters"] {
		return nil
	}
	items, waiters := x.dir+"/items", x.dir+"/waiters"
	in := &Queue{}
	var names []string
	var err error
	if k.fixed["items"] {
		if names, _, err = x.list(ctx, items); err != nil {
			return err
		}
		names = slices.DeleteFunc(names, layout.CountsQueue)
	}
	var takers []string
	if k.fixed["waiters"] {
		if takers, _, err = x.list(ctx, waiters); err != nil {
			return err
		}
	}
	in.Takers = queuestat.Waiting(takers)
	buckets := layout.Buckets(items, names)
	switch {
	case len(names) > 0 && len(buckets) == 0, len(takers) > 0 && in.Takers == 0:
		return nil // only the names are those of a queue
	case len(buckets) == 0 && in.Takers == 0:
		x.in.note("recognized by the names of its directories alone: nothing is in them")
	}
	k.claim("items", "keys", "waiters", "producers", "dead")
	x.in.Queue = in
	in.Buckets = len(buckets)
	kind, err := x.items(ctx, in, buckets)
	if err != nil {
		return err
	}
	if slices.Contains(k.all, "dead") {
		if in.Dead, err = x.deadLetters(ctx, x.dir+"/dead/items"); err != nil {
			return err
		}
	}
	say := plural(in.Items, "item")
	if in.Items > 0 {
		say += fmt.Sprintf(": %d ready, %d claimed, %d delayed", in.Ready, in.Claimed, in.Delayed)
	}
	if in.Dead > 0 {
		say += ", " + plural(in.Dead, "dead letter")
	}
	if in.Takers > 0 {
		say += ", " + plural(in.Takers, "client") + " waiting to take"
	}
	add(kind, say)
	return nil
}

// entry is an item with its claim.
type entry struct {
	layout.QueueEntry
	key  int64
	mark string // name of the node of the claim
}

// items counts the items, reads the claims, and recognizes the kind of the queue.
func (x *inspector) items(ctx context.Context, in *Queue, buckets []layout.Bucket) (kind string, err error) {
	scan, err := x.scan(ctx, in, buckets)
	if err != nil {
		return "", err
	}
	if kind = scan.kind(in.Items); kind == "queue" && in.Items > 0 {
		x.in.note("a PriorityQueue in which everything has the priority 0 looks the same")
	}
	var wants []want
	for i := range scan.claims {
		e := &scan.claims[i]
		wants = append(append(wants, want{e.Bucket + "/" + e.mark, true}), x.wants(e)...)
	}
	if scan.next != nil {
		wants = append(wants, x.wants(scan.next)...)
	}
	got, err := x.getAll(ctx, wants...)
	if err != nil {
		return "", err
	}
	for i := range scan.claims {
		e, mark := &scan.claims[i], got[0]
		item, ok, rest := x.item(e, kind, got[1:])
		got = rest
		if ok && !mark.gone && !mark.skip {
			in.Claims = append(in.Claims, Claim{Item: item, Name: e.mark, Session: hexSession(mark.stat), Since: utc(mark.stat.Ctime)})
		}
	}
	if scan.next != nil {
		if item, ok, _ := x.item(scan.next, kind, got); ok {
			in.Next = &item
		}
	}
	redriven := scan.next != nil && scan.next.Due < 0
	return kind, x.oldest(ctx, in, kind == "queue" && !redriven, &scan.tally)
}

// oldest sets Oldest. In a Queue that is the next item, but not in a PriorityQueue with a single
// priority, which looks the same, if a Redrive has put that item back.
func (x *inspector) oldest(ctx context.Context, in *Queue, next bool, tally *queuestat.Tally) error {
	if next {
		if in.Next != nil {
			in.Oldest = in.Next.Since
		}
		return nil
	}
	since, err := tally.Oldest(ctx, counted{x.s, x})
	if since > 0 {
		in.Oldest = utc(since)
	}
	if errors.Is(err, errNoReads) || answers(err, backend.ErrDenied) {
		return nil
	}
	return err
}

// counted is a session whose Exists counts as a read of x, and fails when the limit is reached.
type counted struct {
	backend.Session
	x *inspector
}

var errNoReads = errors.New("the limit of reads is reached")

func (c counted) Exists(ctx context.Context, path string, w *backend.Watch) (backend.Stat, error) {
	if !c.x.take() {
		return backend.Stat{}, errNoReads
	}
	return c.Session.Exists(ctx, path, w)
}

// queueScan is the result of listing the buckets, beside the numbers of items.
type queueScan struct {
	tally               queuestat.Tally
	claims              []entry
	next                *entry
	keys, dues, minutes bool // some key is not 0, some item is due at a time, all keys are minutes
}

// kind returns the kind of a queue with that number of items.
func (q *queueScan) kind(items int) string {
	switch {
	case q.dues, q.keys && items == 0 && q.minutes:
		return "delayqueue"
	case q.keys:
		return "priorityqueue"
	}
	return "queue"
}

// scan lists the buckets and counts the items.
func (x *inspector) scan(ctx context.Context, in *Queue, buckets []layout.Bucket) (*queueScan, error) {
	now := x.in.At.UnixMilli()
	q := &queueScan{minutes: true}
	tally := &q.tally
	for _, b := range buckets {
		q.keys = q.keys || b.Key != 0
		q.minutes = q.minutes && (b.Key == 0 || b.Key%layout.DelayGrain == 0 && b.Key > 1e12) // since 2001
	}
	err := x.eachBucket(ctx, buckets, func(b layout.Bucket, names []string) {
		marks := make(map[string]string)
		for _, name := range names {
			if id, _, ok := layout.CutID(name, layout.MarkPrefix); ok {
				marks[id] = name
			}
		}
		tally.Add(b, layout.ParseBucket(b.Path, names, 0), now, func(e *layout.QueueEntry, is queuestat.State) {
			q.dues = q.dues || e.Due > 0 // less: an item that was a dead letter
			switch i := (entry{*e, b.Key, marks[e.ID]}); {
			case is == queuestat.Claimed:
				q.claims = append(q.claims, i)
			case is == queuestat.Ready && q.next == nil:
				q.next = &i
			}
		})
	})
	in.Items, in.Ready, in.Claimed, in.Delayed, in.Litter = tally.Items, tally.Ready, tally.Claimed, tally.Delayed, tally.Litter
	if tally.Delayed > 0 {
		in.NextDue = utc(tally.NextDue)
	}
	return q, err
}

// eachBucket lists buckets, and calls f with each that exists, in order.
func (x *inspector) eachBucket(ctx context.Context, buckets []layout.Bucket, f func(b layout.Bucket, names []string)) error {
	paths := make([]string, len(buckets))
	for i, b := range buckets {
		paths[i] = b.Path
	}
	lists, err := x.lists(ctx, paths)
	for i, l := range lists {
		if l.ok {
			f(buckets[i], l.names)
		}
	}
	return err
}

// wants returns the nodes of an item.
func (x *inspector) wants(e *entry) []want {
	wants := []want{{e.Path(), x.data}}
	if e.State {
		wants = append(wants, want{e.StateAt(), true})
	}
	return wants
}

// item describes an item, of whose nodes got begins with what was read. It returns the
// rest. ok is false if the item is gone meanwhile, or MaxReads was reached.
func (x *inspector) item(e *entry, kind string, got []seen) (it Item, ok bool, rest []seen) {
	r, rest := got[0], got[1:]
	state := seen{skip: true}
	if e.State {
		state, rest = rest[0], rest[1:]
	}
	if r.gone || r.skip {
		return it, false, rest
	}
	it = Item{ID: e.ID, Size: int(r.stat.DataLength), Data: x.keep(r.data), Unread: r.unread}
	if r.stat.Czxid != 0 {
		it.Since = utc(r.stat.Ctime)
	}
	if e.Due > 0 {
		it.Due = utc(e.Due)
	}
	if kind == "priorityqueue" {
		it.Priority = e.key
	}
	if !state.gone && !state.skip {
		var err error
		it.Attempts, err = strconv.Atoi(strings.TrimSpace(string(state.data)))
		if err != nil || it.Attempts < 1 && e.Marked {
			it.Attempts = 1 // overwritten by an outsider; a claimed item was taken at least once
		}
	}
	return it, true, rest
}

// deadLetters counts the items of a queue of dead letters, whose buckets are in items.
func (x *inspector) deadLetters(ctx context.Context, items string) (n int, err error) {
	names, _, err := x.list(ctx, items)
	if err != nil {
		return 0, err
	}
	err = x.eachBucket(ctx, layout.Buckets(items, names), func(b layout.Bucket, names []string) {
		n += len(layout.ParseBucket(b.Path, names, 0).Items)
	})
	return n, err
}
