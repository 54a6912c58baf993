//go:build linux

package faulttest

import (
	"fmt"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
)

// checkCounts returns an error if the counts of children in a cache do not belong to its nodes.
func checkCounts(k *coord.Cache, root string) error {
	below, counts := make(map[string]int32), make(map[string]int32)
	for p, n := range k.Walk(root) {
		below[path.Dir(p)]++
		counts[p] = n.Stat.NumChildren
	}
	for p, n := range counts {
		if n != below[p] {
			return fmt.Errorf("the copy of %s has %d children and counts %d", p, below[p], n)
		}
	}
	return nil
}

// sightings are the states of nodes that caches have shown. All caches show one commit of a
// node in the same way, and data of a node begins with its path.
type sightings struct {
	mu   sync.Mutex
	seen map[sighting]coordtest.NodeState
}

type sighting struct {
	path  string
	mzxid int64
}

// judge returns why a state is wrong that a cache has shown.
func (s *sightings) judge(p string, is coordtest.NodeState) string {
	if !strings.HasPrefix(is.Data, p+" ") {
		return fmt.Sprintf("%+v has the data of another node", is)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := sighting{p, is.Mzxid}
	if other, known := s.seen[at]; known && other != is {
		return fmt.Sprintf("%+v was told elsewhere as %+v", is, other)
	}
	s.seen[at] = is
	return ""
}

func TestSightings_FindAStateThatIsToldInTwoWays(t *testing.T) {
	all := &sightings{seen: make(map[sighting]coordtest.NodeState)}
	for _, tc := range []struct {
		is   coordtest.NodeState
		want string
	}{
		{coordtest.NodeState{Czxid: 2, Mzxid: 6, Data: "/t/a 6"}, ""},
		{coordtest.NodeState{Czxid: 2, Mzxid: 6, Data: "/t/a 6"}, ""},
		{coordtest.NodeState{Czxid: 2, Mzxid: 7, Data: "/t/a 7"}, ""},
		{coordtest.NodeState{Czxid: 2, Mzxid: 6, Version: 7, Data: "/t/a 6"}, "told elsewhere"},
		{coordtest.NodeState{Czxid: 2, Mzxid: 8, Data: "/t/a/b 3"}, "another node"},
	} {
		if why := all.judge("/t/a", tc.is); !strings.Contains(why, tc.want) || tc.want == "" && why != "" {
			t.Errorf("%+v: %q, want %q", tc.is, why, tc.want)
		}
	}
}

// fold returns a reader of the events of a cache.
func (s *sightings) fold(flash coordtest.Flash) *coordtest.Fold {
	f := coordtest.NewFold(churned)
	f.Flash, f.Judge = flash, s.judge
	return f
}

// flashes says when a cache in this session may tell of a deletion that has not happened.
func flashes(s backend.Session) coordtest.Flash {
	if s.Features().Has(backend.Trees) {
		return coordtest.FlashNever
	}
	return coordtest.FlashWithParent
}
