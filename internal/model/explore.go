// Package model explores small models of protocols: every state that can be
// reached, by every order of steps. What a simulation meets by luck, a model
// meets by counting. The models themselves are in the tests.
package model

import (
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
)

// A Model is a protocol with states S and actions A. A state is a value: what is
// equal is the same state. An action is only the name of a step, for the trace.
type Model[S comparable, A any] struct {
	Start S
	// Next calls step for every action that is possible in s, with the state
	// after it, in an order that depends on nothing but s. It returns what is
	// wrong with s, if anything is. (It has just seen whether s is at rest.)
	Next func(s S, step func(A, S)) error
	// Free reports whether a step comes by itself, and not because of a decision
	// or a fault. If it is not nil, ErrEndless is what is wrong with a state from
	// which free steps alone can go on for ever.
	Free func(a A) bool
}

// ErrEndless is what is wrong with a state from which free steps go on for ever.
var ErrEndless = errors.New("can go on for ever by itself")

// Result is what an exploration found.
type Result[A any] struct {
	States int   // that were met
	Steps  int   // between them
	Depth  int   // the longest of the shortest ways to a state
	Full   bool  // every state that can be reached was looked at
	Err    error // what is wrong with the first bad state, nil if there was none
	Trace  []A   // a shortest way to it
}

// String returns the trace, one numbered action in a line, and what is wrong at
// its end.
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

// Explore visits the states breadth first, until it meets a bad one, or has met
// all, or limit of them. The trace to a bad state is therefore a shortest one.
// The same model gives the same result.
//
// It keeps each state once and 16 bytes or less beside it, and with Free another
// 8 bytes for each state and free step.
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
	end := 1 // of the states that are as far from the start as the one at hand
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
	states []S      // in the order in which they were met
	from   []uint32 // the index of the state before
	slots  []uint32 // a hash table of indices, one more than they are
	free   [][2]uint32
}

// slot returns where s is in the table, or where it belongs.
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

// endless returns the index of the first state from which free steps can go on
// for ever, or -1. It takes away the states that have no free step, then those
// whose steps all led there, and so on; such a state is what is left.
func (x *explorer[S, A]) endless() int {
	if len(x.free) == 0 {
		return -1
	}
	steps := make([]uint32, len(x.states))   // from each state, to those that are left
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

// trace finds the actions on the way to the state at index i. It plays the steps
// again, so that nothing had to be kept of them.
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
