package coord_test

import (
	"bytes"
	"cmp"
	"runtime"
	"slices"
	"testing/synctest"
	"time"
)

// name lets those go on who want a name, one after the other.
func (x *arbiter) name() {
	var list []*simCall
	for {
		x.mu.Lock()
		list = append(list, x.drawing...)
		x.drawing = nil
		x.mu.Unlock()
		if len(list) == 0 {
			return
		}
		slices.SortStableFunc(list, func(a, b *simCall) int { return cmp.Compare(a.path, b.path) })
		if len(list) > 1 && list[0].path == list[1].path {
			x.ties++
			x.tell("tie:", list[0].path)
		}
		close(list[0].done)
		list = list[1:]
		synctest.Wait()
	}
}

// mix makes a number of some others.
func mix(v uint64, parts ...string) uint64 {
	for _, p := range parts {
		for i := range len(p) {
			v = (v ^ uint64(p[i])) * 1099511628211
		}
		v = (v ^ 0xff) * 1099511628211
	}
	v ^= v >> 30
	v *= 0xbf58476d1ce4e5b9
	v ^= v >> 27
	v *= 0x94d049bb133111eb
	return v ^ v>>31
}

// drawer is where one client, that several actors may share, takes its random
// numbers from. A name is drawn by one
// goroutine at a time, in an order that what it is for, and for which actor, gives:
// so it also puts those in order that are about to do the same. What is no name
// depends on the time alone.
func (x *arbiter) drawer(name string, shared *bool) func(what string) uint64 {
	n := make(map[string]uint64) // one draws at a time
	seed := mix(x.seed, name)
	return func(what string) uint64 {
		switch what {
		case "pause", "spread", "pick", "open":
			return mix(seed^uint64(time.Now().UnixNano()), what)
		}
		c := &simCall{op: "draw", path: name + " " + what, done: make(chan struct{})}
		if *shared {
			c.path += x.self() // which takes time
		}
		x.mu.Lock()
		x.drawing = append(x.drawing, c)
		x.mu.Unlock()
		x.rouse()
		<-c.done
		n[what]++
		return mix(seed+n[what]<<32, what)
	}
}

// self names the actor that runs in this goroutine, if one does.
func (x *arbiter) self() string {
	id := goroutine()
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.names[id]
}

// goroutine is the number of this goroutine: nothing else tells an actor's calls
// from another's deep inside of the library.
func goroutine() string {
	var buf [40]byte
	text := buf[len("goroutine "):runtime.Stack(buf[:], false)]
	return string(text[:bytes.IndexByte(text, ' ')])
}
