package coordtest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-coord/coord"
)

// A GroupReader checks the elements of one Group.Watch as they are received.
type GroupReader struct {
	Last coord.GroupUpdate[string]
	Gone map[string]bool // paths that were reported to have left
}

// Take checks that the changes, applied to the list before, give the list, and
// that no incarnation comes back.
func (x *GroupReader) Take(m coord.GroupUpdate[string]) error {
	type key struct {
		id    string
		token int64
	}
	if x.Gone == nil {
		x.Gone = make(map[string]bool)
	}
	have := make(map[key]bool)
	for _, e := range x.Last.Members {
		have[key{e.ID, e.Token}] = true
	}
	for _, e := range m.Left {
		k := key{e.ID, e.Token}
		if !have[k] {
			return fmt.Errorf("%s left, but was not listed", e.Path)
		}
		delete(have, k)
		x.Gone[e.Path] = true
	}
	for _, e := range m.Joined {
		k := key{e.ID, e.Token}
		if have[k] {
			return fmt.Errorf("%s joined, but was listed already", e.Path)
		}
		if x.Gone[e.Path] {
			return fmt.Errorf("%s joined again under the same name", e.Path)
		}
		have[k] = true
	}
	for _, list := range [][]coord.Member[string]{m.Members, m.Joined, m.Left} {
		if !slices.IsSortedFunc(list, func(a, b coord.Member[string]) int { return strings.Compare(a.ID, b.ID) }) {
			return fmt.Errorf("not sorted: %v", list)
		}
	}
	for i, e := range m.Members {
		if !have[key{e.ID, e.Token}] {
			return fmt.Errorf("%s is listed, but not after the changes", e.Path)
		}
		if i > 0 && m.Members[i-1].ID == e.ID {
			return fmt.Errorf("%q is listed twice", e.ID)
		}
	}
	if len(have) != len(m.Members) {
		return fmt.Errorf("%d by the changes, %d in the list", len(have), len(m.Members))
	}
	x.Last = m
	return nil
}
