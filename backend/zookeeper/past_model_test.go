package zookeeper

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/go-coord/coord/backend"
)

// historyTree is a model of the tree of a service, with the numbers in its Stats.
type historyTree struct {
	zxid  int64
	nodes map[string]historyNode
}

type historyNode struct {
	czxid, mzxid, pzxid        int64
	version, creates, children int32
}

func newHistoryTree() *historyTree {
	return &historyTree{nodes: map[string]historyNode{"/": {}}}
}

func (h *historyTree) copy() *historyTree { return &historyTree{h.zxid, maps.Clone(h.nodes)} }

func (h *historyTree) exists(path string) sight {
	n, ok := h.nodes[path]
	if !ok {
		return sight{path: path, code: codeNoNode}
	}
	return sight{path: path, stat: backend.Stat{
		Czxid: n.czxid, Mzxid: n.mzxid, Pzxid: n.pzxid, Version: n.version, Cversion: 2*n.creates - n.children, NumChildren: n.children,
	}}
}

// apply makes a commit, or reports that it is refused.
func (h *historyTree) apply(ops []backend.Op) (results []backend.Result, ok bool) {
	next := &historyTree{h.zxid + 1, maps.Clone(h.nodes)}
	for i := range ops {
		op := &ops[i]
		parent := parentOf(op.Path)
		node, there := next.nodes[op.Path]
		above, inside := next.nodes[parent]
		var result backend.Result
		switch op.Kind {
		case backend.OpCreate:
			path := op.Path
			if op.Mode == backend.PersistentSequential {
				path = fmt.Sprintf("%s%010d", op.Path, above.creates)
				_, there = next.nodes[path]
			}
			if there || !inside {
				return nil, false
			}
			next.nodes[path] = historyNode{czxid: next.zxid, mzxid: next.zxid, pzxid: next.zxid}
			above.creates++
			above.children++
			above.pzxid = next.zxid
			next.nodes[parent] = above
			result.Path = path
		case backend.OpSetData:
			if !there {
				return nil, false
			}
			node.version++
			node.mzxid = next.zxid
			next.nodes[op.Path] = node
			result.Stat = next.exists(op.Path).stat
		case backend.OpDelete:
			if !there || node.children > 0 {
				return nil, false
			}
			delete(next.nodes, op.Path)
			above.children--
			above.pzxid = next.zxid
			next.nodes[parent] = above
		}
		results = append(results, result)
	}
	*h = *next
	return results, true
}

// historyClient makes random commits and reads.
type historyClient struct {
	rand *rand.Rand
	past past
	seen int64

	// The latest of its own, as the model knows it.
	deleted   string
	deletedAt int64
	wroteAt   int64
}

func (c *historyClient) path(h *historyTree) string {
	path := ""
	for range 1 + c.rand.IntN(3) {
		path += "/" + string(rune('a'+c.rand.IntN(2)))
	}
	if c.rand.IntN(3) == 0 { // a sequential node
		names := slices.DeleteFunc(slices.Sorted(maps.Keys(h.nodes)), func(p string) bool { return !strings.Contains(p, "n-") })
		if len(names) > 0 {
			return names[c.rand.IntN(len(names))]
		}
	}
	return path
}

func (c *historyClient) op(h *historyTree) backend.Op {
	path := c.path(h)
	switch c.rand.IntN(8) {
	case 0, 1:
		return backend.Create(path, nil, backend.Persistent)
	case 2, 3:
		return backend.Create(strings.TrimSuffix(parentOf(path), "/")+"/n-", nil, backend.PersistentSequential)
	case 4:
		return backend.SetData(path, nil, backend.AnyVersion)
	}
	return backend.Delete(path, backend.AnyVersion)
}

func (c *historyClient) step(h *historyTree) {
	if c.rand.IntN(4) == 0 {
		if at := h.exists(c.path(h)); at.code == codeOK {
			c.past.saw(at.path, &at.stat)
			c.seen = h.zxid
		}
		return
	}
	ops := []backend.Op{c.op(h)}
	for c.rand.IntN(3) == 0 {
		ops = append(ops, c.op(h))
		if same := c.op(h); c.rand.IntN(2) == 0 {
			same.Path = ops[0].Path
			ops = append(ops, same)
		}
	}
	if results, ok := h.apply(ops); ok {
		c.past.committed(ops, results, h.zxid)
		c.seen = h.zxid
		for i := range ops {
			switch ops[i].Kind {
			case backend.OpCreate, backend.OpSetData:
				c.wroteAt = h.zxid
			case backend.OpDelete:
				if c.deletedAt < h.zxid {
					c.deleted, c.deletedAt = ops[i].Path, h.zxid
				}
			}
		}
	}
}

// look makes the reads of a look, while others continue.
func (c *historyClient) look(h *historyTree, others *historyClient) string {
	sights := c.past.reads()
	for i := range sights {
		for c.rand.IntN(3) == 0 {
			others.step(h)
		}
		sights[i] = h.exists(sights[i].path)
	}
	return c.past.contradicts(sights)
}

// A session is never told that the service has gone back while the service continues its history. After a
// restoration of an earlier state the session is told so if the restoration has undone its latest deletion, or its
// latest write, and no client has written the node or a directory above it since.
func TestZooKeeper_OnlyAnotherHistoryContradictsWhatASessionHasSeen(t *testing.T) {
	rounds := 6000
	shown, hidden, undone := 0, 0, 0
	for seed := range uint64(rounds) {
		r := rand.New(rand.NewPCG(seed, 1))
		c, others := &historyClient{rand: r}, &historyClient{rand: r}
		h := newHistoryTree()
		steps := func(n int, clients ...*historyClient) {
			for range n {
				clients[r.IntN(len(clients))].step(h)
			}
		}
		steps(r.IntN(30), c, others)
		backup := h.copy()
		steps(1+r.IntN(30), c, others)
		goesOn := h.copy()
		for range 3 { // reconnections
			if why := c.look(goesOn, others); why != "" {
				t.Fatalf("seed %d: a history that goes on contradicts: %s", seed, why)
			}
			h = goesOn
			steps(r.IntN(20), c, others, others)
		}
		if c.seen <= backup.zxid {
			continue // the session has seen nothing that the backup does not have
		}
		h = backup.copy()
		if r.IntN(2) == 0 {
			h.zxid += 1 << 32
		}
		quiet := r.IntN(3) == 0
		if quiet { // the others write elsewhere
			h.zxid = max(h.zxid, c.seen)
		}
		for h.zxid < c.seen {
			others.step(h)
		}
		must := false
		if at := h.exists(c.deleted); at.code == codeOK && at.stat.Czxid < c.deletedAt {
			must = true
		}
		if quiet && c.wroteAt > backup.zxid {
			must = true
		}
		if must {
			undone++
		}
		sights := c.past.reads()
		for i := range sights {
			sights[i] = h.exists(sights[i].path)
		}
		switch why := c.past.contradicts(sights); {
		case why != "":
			shown++
		case must:
			t.Fatalf("seed %d: nothing shows another history: wrote at %d, deleted %s at %d", seed, c.wroteAt, c.deleted, c.deletedAt)
		default:
			hidden++
		}
	}
	if undone < rounds/20 || shown < 4*hidden {
		t.Errorf("of %d histories that began again %d showed it; %d had to", shown+hidden, shown, undone)
	}
	t.Logf("of %d histories that began again %d showed it; %d had to", shown+hidden, shown, undone)
}
