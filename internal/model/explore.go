// Package model explores small models of protocols: every reachable state, by every order of
// steps. A simulation reaches a state by chance; a model reaches all of them. The models
// themselves are in the tests: the queue of contenders of locks and elections, also with readers
// and writers; the callers of one client that share a place in it; kept locks; LockAll; the
// semaphore; the double barrier; the consumers of a queue that wait with slots, the Acks of Work that
// claim the next item, and the keys of items; the moves of shards; the claims of a schedule; and the two-phase commit.
//
// A step is one request to the service or one decision of a client. Servers lag, replies are
// lost, clients crash, give up, and lose their sessions, and writes of dead processes arrive
// late, each as far as the comment of the model says. A state is bad if it breaks a promise, such
// as two holders, or if it is at rest and a client waits that should not.
//
// Most models have rules that can be left out, one at a time. The tests find a shortest way to a
// bad state without each of these rules, so a promise depends on it.
//
// A model is written by hand beside the code: it shows that the protocol is right, not that the
// code follows it. It has few clients, two or three for most protocols. The code is compared with
// the same promises in internal/simulation.
//
//	go test -v ./internal/model                           # -v shows the numbers of states
//	COORD_LONG=1 go test -v -timeout 1h ./internal/model  # larger scopes, up to 5 GB of memory
//
// The race detector leaves the models out.
package model

import (
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
)

// A Model is a protocol with states S and actions A. A state is a value: equal values are the
// same state. An action is only the name of a step, for the trace.
type Model[S comparable, A any] struct {
	Start S
	// Next calls step for every action that is possible in s, with the state after it, in an
	// order that depends only on s. It returns an error if s is bad. (By then it has called
	// step for every action, so it knows whether s is at rest.)
	Next func(s S, step func(A, S)) error
	// Free reports whether a step happens without a decision or a fault. If Free is not nil,
	// a state is bad, with ErrEndless, if free steps alone can continue for ever from it.
	Free func(a A) bool
}

// ErrEndless is the error of a state from which free steps can continue for ever.
var ErrEndless = errors.New("free steps can go on for ever")

// Result is the outcome of an exploration.
type Result[A any] struct {
	States int   // states visited
	Steps  int   // steps between them
	Depth  int   // the length of the longest shortest path to a state
	Full   bool  // every reachable state was visited
	Err    error // the error of the first bad state, nil if there is none
	Trace  []A   // a shortest path to it
}

// String returns the trace, one numbered action on each line, and the error of its last
// state.
func (r Result[A]) String() string {
	var b strings.Builder
	for i, a := range r.Trace {
		fmt.Fprintf(&b, "%3d  %v\n", i+1, a)
	}
	if r.Err != nil {
		fmt.Fprintf(&b, "     => %v\n", r.Err)
	}
	return b.String()
}

// Explore visits the states breadth first, until it finds a bad one, or has visited all of
// them, or limit of them. So the trace to a bad state is a shortest one. The same model gives
// the same result.
//
// It stores each state once, with at most 16 further bytes, and with Free another 8 bytes for
// each state and free step.
func Explore[S comparable, A any](m Model[S, A], limit int) Result[A] {
	x := explorer[S, A]{m: m, seed: maphash.MakeSeed(), slots: make([]uint32, 1<<10)}
	var r Result[A]
	x.add(m.Start, 0)
	at := 0
	full := true
	step := func(a A, s S) {
		r.Steps++
		if len(x.states) >= limit && !x.known(s) {
			full = false
			return
		}
		to := x.add(s, uint32(at))
		if m.Free != nil && m.Free(a) {
			x.free = append(x.free, [2]uint32{uint32(at), to})
		}
	}
	end := 1 // end of the states with the same distance from the start as the current one
	for ; at < len(x.states) && r.Err == nil; at++ {
		if at == end {
			r.Depth++
			end = len(x.states)
		}
		r.Err = m.Next(x.states[at], step)
	}
	r.States = len(x.states)
	switch endless := x.endless(); {
	case r.Err != nil:
		r.Trace = x.trace(at - 1)
		full = false
	case endless >= 0:
		r.Err = ErrEndless
		r.Trace = x.trace(endless)
	}
	r.Full = full
	return r
}

type explorer[S comparable, A any] struct {
	m      Model[S, A]
	seed   maphash.Seed
	states []S      // in the order of the first visit
	from   []uint32 // the index of the preceding state
	slots  []uint32 // a hash table of indices plus one
	free   [][2]uint32
}

// slot returns the index of s in the table, or the free slot for it.
func (x *explorer[S, A]) slot(s S) int {
	mask := len(x.slots) - 1
	i := int(maphash.Comparable(x.seed, s)) & mask
	for x.slots[i] != 0 && x.states[x.slots[i]-1] != s {
		i = (i + 1) & mask
	}
	return i
}

func (x *explorer[S, A]) known(s S) bool { return x.slots[x.slot(s)] != 0 }

// add returns the index of s, which it adds if it is new.
func (x *explorer[S, A]) add(s S, from uint32) uint32 {
	i := x.slot(s)
	if x.slots[i] != 0 {
		return x.slots[i] - 1
	}
	x.states = append(x.states, s)
	x.from = append(x.from, from)
	x.slots[i] = uint32(len(x.states))
	if 3*len(x.states) >= 2*len(x.slots) {
		x.slots = make([]uint32, 2*len(x.slots))
		for i, s := range x.states {
			x.slots[x.slot(s)] = uint32(i + 1)
		}
	}
	return uint32(len(x.states) - 1)
}

// endless returns the index of the first state from which free steps can continue for ever, or
// -1. It removes the states without a free step, then those whose free steps all lead to
// removed states, and so on. Any state that remains is one.
func (x *explorer[S, A]) endless() int {
	if len(x.free) == 0 {
		return -1
	}
	steps := make([]uint32, len(x.states))   // number of free steps from each state to remaining states
	first := make([]uint32, len(x.states)+1) // the index in before of each state's first
	for _, e := range x.free {
		steps[e[0]]++
		first[e[1]+1]++
	}
	for i := range x.states {
		first[i+1] += first[i]
	}
	before := make([]uint32, len(x.free))
	next := slices.Clone(first)
	for _, e := range x.free {
		before[next[e[1]]] = e[0]
		next[e[1]]++
	}
	var done []uint32
	for i, n := range steps {
		if n == 0 {
			done = append(done, uint32(i))
		}
	}
	for len(done) > 0 {
		i := done[len(done)-1]
		done = done[:len(done)-1]
		for _, j := range before[first[i]:first[i+1]] {
			if steps[j]--; steps[j] == 0 {
				done = append(done, j)
			}
		}
	}
	return slices.IndexFunc(steps, func(n uint32) bool { return n > 0 })
}

// trace returns the actions on the path to the state at index i. It replays the steps, so
// that they need not be stored.
func (x *explorer[S, A]) trace(i int) []A {
	if i == 0 {
		return nil
	}
	from := int(x.from[i])
	t := x.trace(from)
	var taken A
	found := false
	_ = x.m.Next(x.states[from], func(a A, s S) {
		if !found && s == x.states[i] {
			taken, found = a, true
		}
	})
	return append(t, taken)
}
