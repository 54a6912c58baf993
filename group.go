package coord

import (
	"context"
	"iter"
	"time"

	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/group"
)

// GroupOptions may be nil.
type GroupOptions[T any] struct {
	// Codec turns the members' values into the data of their nodes and back. The
	// zero Codec is JSON. All clients of one group should use one codec.
	Codec Codec[T]

	// TakeOver makes Join take the id over from a member that has it. Without
	// TakeOver a member keeps its id, and Join returns ErrDuplicate.
	TakeOver bool
}

// A Group is a set of live members, each with an id and a value: the group membership of
// the ZooKeeper recipe guide. It also serves as a naming service (an id is registered with
// an address and looked up) and for the choice of a service instance ([Picker]).
//
// A member is present from the return of Join until it leaves, its client is closed, or the
// service has not heard from it for the session timeout. A short loss of contact is not
// visible to others. A member that lost its session joins again by itself, which is visible
// as a new incarnation: the same id with another Token.
//
// Every reader sees each id at most once, and a takeover or a new incarnation as one
// change: if several nodes have the same id, the node with the lowest number is the member
// until it is gone. Reads are sequentially consistent, not linearizable: a read may miss a
// member that another client has just registered.
//
// The numbers of one directory last for some two billion joins. Beyond that Join returns
// ErrLimit until the directory has been empty once.
//
// A Group is safe for concurrent use and needs no closing. All Watches and Pickers of one
// Group share their reads from the service, so use one Group for one path. layout.md
// describes the nodes.
type Group[T any] struct {
	g     *group.Group
	codec Codec[T]
}

// NewGroup returns the group at path. It does no I/O; the first call reports a bad
// path.
func NewGroup[T any](c *Client, path string, o *GroupOptions[T]) *Group[T] {
	var codec Codec[T]
	takeOver := false
	if o != nil {
		codec, takeOver = o.Codec, o.TakeOver
	}
	codec = codec.orJSON()
	decode := func(path string, data []byte) (any, error) { return codec.decodeApart(c.core(), path, data) }
	return &Group[T]{group.New(c.core(), path, decode, takeOver), codec}
}

// A Member is one incarnation of a member as it was read. Memory that Value refers
// to is shared with other readers and must not be changed.
type Member[T any] struct {
	ID      string
	Value   T
	Token   int64     // identifies the incarnation; grows with each incarnation of an id (the czxid of its node)
	Session int64     // the session that owns the node
	Since   time.Time // when this incarnation began, by the service's clock
	Path    string    // of its node: absolute, with the namespace
	// Err is set if the Value could not be read: ErrDecode, the codec cannot decode
	// it; ErrDenied, no permission. The member is present all the same.
	Err error
}

func memberOf[T any](x group.Member) Member[T] {
	v, _ := x.Value.(T) // zero if there is no value, or if T is an interface and the value is nil
	return Member[T]{ID: x.ID, Value: v, Token: x.Token, Session: x.Session, Since: x.Since, Path: x.Path, Err: x.Err}
}

func membersOf[T any](list []group.Member) []Member[T] { return faces(list, memberOf[T]) }

// Members returns all members, sorted by ID. It leaves out members that go while
// they are read. A group that no member has joined yet is empty.
func (g *Group[T]) Members(ctx context.Context) ([]Member[T], error) {
	list, err := g.g.Members(ctx)
	return membersOf[T](list), err
}

// Member looks one member up. It returns ErrNotFound if no member has the id.
func (g *Group[T]) Member(ctx context.Context, id string) (Member[T], error) {
	x, err := g.g.Member(ctx, id)
	return memberOf[T](x), err
}

// GroupUpdate is an element of a Watch: the members, and the changes since the
// previous element that the reader received.
type GroupUpdate[T any] struct {
	Members []Member[T] // all members, sorted by ID

	// Joined are the incarnations in Members that were not in the Members of the previous
	// element. Left are the incarnations that were there and are not in Members. Both
	// are sorted by ID. A member with a new incarnation is in both. If only values
	// have changed, both are empty.
	Joined []Member[T]
	Left   []Member[T]

	// Err is the reason why the watch has ended, set only in the last element:
	// ErrClosed, ErrDenied, ErrBadPath. Members are the last known ones.
	Err error
}

func groupUpdate[T any](u group.Update) GroupUpdate[T] {
	return GroupUpdate[T]{membersOf[T](u.Members), membersOf[T](u.Joined), membersOf[T](u.Left), u.Err}
}

// Watch reports the members, and then every change. The first element has all members in
// Joined, and comes also if the group is empty. While another Watch or a Picker of this Group
// is in use, the first element is the latest state that they have seen.
//
// The channel is latest-wins: a slow reader misses intermediate states but never the newest,
// and the changes of elements that it did not receive are merged into the next one. Watch
// continues over lost sessions, during which Members stay unchanged, and over a missing
// directory. The channel is closed when ctx ends, and after an element with Err.
//
// If the service has trees and batches (see Features of package backend) and all members can
// be read, a join or a change of a value costs one request, and a leave none. Otherwise each
// join or leave costs a list of all members besides.
func (g *Group[T]) Watch(ctx context.Context) <-chan GroupUpdate[T] {
	return group.Watch(ctx, g.g, groupUpdate[T])
}

// Changes is Watch as a loop: it yields the elements of Watch until ctx ends, the watch fails
// for good, or the body breaks off. The end of the loop ends the watch, and waits for that. A
// slow body misses intermediate states, never the newest, and gets their changes in one element.
func (g *Group[T]) Changes(ctx context.Context) iter.Seq[GroupUpdate[T]] {
	return each(ctx, g.Watch)
}

// Wait waits until at least n members are present, and returns them, sorted by ID.
// All of them were present at one moment after the call; some may have gone since.
// Wait ends with ctx, or for the reasons for which a Watch ends.
func (g *Group[T]) Wait(ctx context.Context, n int) ([]Member[T], error) {
	list, err := g.g.Wait(ctx, n)
	return membersOf[T](list), err
}

// A Membership is the caller's own place in a group. It maintains itself: if the
// session is lost, it joins again on the next one, and if another program deletes
// its node, it makes a new one. It ends when its owner leaves, when the client is
// closed, when it joins again and another member has the id (ErrDuplicate), or when
// the service refuses (ErrDenied, ErrLimit). While the service has no space (ErrNoSpace),
// it waits.
//
// A process that is cut off or paused does not notice during that time that it is no
// longer a member. Unlike a lock, a membership is not exclusive.
//
// A Membership is safe for concurrent use.
type Membership[T any] struct {
	m     *group.Membership
	codec Codec[T]
}

// Join enters the group under an id: any text of at most 200 bytes that can be part of a
// node's name, without a slash. It returns when the node exists and the id belongs to it.
// ctx bounds only the joining; if it ends first, Join removes its node, see "What is
// promised" in the package comment.
//
// If the id is taken, Join returns ErrDuplicate. The node of a dead process exists until
// the service has ended its session, so a successor with the same id retries, or uses
// GroupOptions.TakeOver.
//
// With TakeOver, Join removes the other member's node in a commit that checks the new node.
// If several take over at the same time, the last one wins. The Membership that was taken
// over ends with ErrDuplicate when it tries to join again and finds its successor, which
// can be late: it needs contact. If the successor has left by then, the old member joins
// again and stays. A process that must not come back closes its client.
func (g *Group[T]) Join(ctx context.Context, id string, v T) (*Membership[T], error) {
	if err := g.g.CheckMember("join", id); err != nil {
		return nil, err
	}
	data, err := g.codec.encode(v)
	if err != nil {
		return nil, errs.Op("join", g.g.FullPath(), err)
	}
	m, err := g.g.Join(ctx, id, data)
	if err != nil {
		return nil, err
	}
	return &Membership[T]{m, g.codec}, nil
}

// ID returns the id under which the member joined.
func (m *Membership[T]) ID() string { return m.engine().ID() }

// Done returns a channel that is closed when the membership has ended for good. It
// stays open while a lost session is being replaced.
func (m *Membership[T]) Done() <-chan struct{} { return m.engine().Done() }

// Err returns nil until Done is closed. Then the error matches ErrReleased after
// Leave, ErrDuplicate, ErrClosed, or the error with which the service refused.
func (m *Membership[T]) Err() error { return m.engine().Err() }

// engine returns the engine of the membership. A Membership that Join has not returned has not ended.
func (m *Membership[T]) engine() *group.Membership {
	if m.m == nil {
		return new(group.Membership)
	}
	return m.m
}

// Leave ends the membership: it closes Done, removes the node, and returns. It is
// idempotent. It takes no context because it must succeed: without contact it
// waits, but not longer than the session can last, since the end of the session deletes
// the node. If the service refuses the removal, Leave returns that error and retries
// in the background. If the membership had ended before, Leave returns Err.
func (m *Membership[T]) Leave() error { return m.m.Leave() }

// SetValue changes the member's value. After it returns nil, the node has the
// value, and so has every later incarnation. While the membership has no node,
// SetValue waits for the next one, until ctx ends. Concurrent calls are served in
// the order in which they arrive.
//
// If SetValue fails before the outcome is known, for example because ctx ends, the
// error also matches ErrUncertain: the change may become visible, but never after
// the change of a later SetValue. After any other error it does not become visible. If
// the membership ends first, the error matches that of Err.
func (m *Membership[T]) SetValue(ctx context.Context, v T) error {
	data, err := m.codec.encode(v)
	if err != nil {
		return errs.Op("set", m.m.Group().FullPath(), err)
	}
	return m.m.Set(ctx, data)
}

// PickPolicy is the policy by which a Picker picks members.
type PickPolicy int8

const (
	// PickRoundRobin picks the members one after the other in the order of their ids.
	// It begins at a random member, so that processes that start together pick different members.
	PickRoundRobin PickPolicy = iota
	// PickRandom picks any member, each with the same probability.
	PickRandom
)

// String returns the policy in lower case.
func (p PickPolicy) String() string {
	switch p {
	case PickRoundRobin:
		return "round robin"
	case PickRandom:
		return "random"
	}
	return "unknown"
}

// A Picker picks one member of a group for each piece of work: the client side of a
// service with several instances. It follows the group and picks without a request
// to the service. It never picks an incarnation that a Watch of the same Group
// reported as gone before the pick began. A member that has died may be picked
// until the service has noticed.
//
// Members whose value cannot be read are not picked. A Picker is safe for
// concurrent use.
type Picker[T any] struct{ p *group.Picker }

// Picker returns a picker that follows the group until ctx ends. Then the picker picks no
// member any more.
func (g *Group[T]) Picker(ctx context.Context, policy PickPolicy) (*Picker[T], error) {
	p, err := g.g.Picker(ctx, group.Policy(policy))
	if err != nil {
		return nil, err
	}
	return &Picker[T]{p}, nil
}

// Next picks a member. If there is none, it waits for one until ctx ends. It fails
// when the Picker has ended: with the error of the Picker's ctx, ErrClosed, or the
// error with which the service refused.
func (p *Picker[T]) Next(ctx context.Context) (Member[T], error) {
	x, err := p.p.Next(ctx)
	return memberOf[T](x), err
}

// TryNext picks a member, or reports false if none is known at the moment: the
// group is empty or has not been read yet, or the Picker has ended.
func (p *Picker[T]) TryNext() (Member[T], bool) {
	x, ok := p.p.TryNext()
	return memberOf[T](x), ok
}
