package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/queuestat"
	"golang.org/x/sync/errgroup"
)

// inspector is the description of one path under way, on one session.
type inspector struct {
	s    backend.Session
	dir  string // the path; "" for the root
	root string // the client's namespace, with which dir begins
	data bool   // keep what users have stored
	in   *Report

	below []string // names of the nodes that belong to no recipe

	shared *budget // of all inspectors of a Tree, or nil
	mu     sync.Mutex
	reads  int
	left   int
}

// A budget is the reads that several inspectors may make together.
type budget struct {
	mu    sync.Mutex
	reads int
	left  int
	short bool // an inspector wanted more
}

// take is takeN of an inspector.
func (b *budget) take(n int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left < n {
		b.short = true
		return false
	}
	b.reads, b.left = b.reads+n, b.left-n
	return true
}

// count counts a read that is made whatever the limit is.
func (x *inspector) count() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.reads++
	x.left--
}

// take reports whether one more read may be made, and counts it.
func (x *inspector) take() bool { return x.takeN(1) }

// takeN is take for n reads that belong together.
func (x *inspector) takeN(n int) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.left < n || !x.shared.take(n) {
		x.in.Truncated = true
		return false
	}
	x.reads, x.left = x.reads+n, x.left-n
	return true
}

func (in *Report) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(in.Notes, text) {
		in.Notes = append(in.Notes, text)
	}
}

// seen is the result of reading one node.
type seen struct {
	data   []byte
	stat   backend.Stat
	gone   bool   // the node does not exist
	unread string // why there is no data, and perhaps no Stat
	skip   bool   // the limit was reached
}

// unreadable is why there is no data of a node that the user may not read.
const unreadable = "no permission"

// want is a node to be read. Without contents only its Stat is read.
type want struct {
	path     string
	contents bool
}

// get reads one node.
func (x *inspector) get(ctx context.Context, path string, contents bool) (seen, error) {
	got, err := x.getAll(ctx, want{path, contents})
	return got[0], err
}

// getAll reads nodes, until the limit is reached.
func (x *inspector) getAll(ctx context.Context, wants ...want) ([]seen, error) {
	got := make([]seen, len(wants))
	n := 0
	for n < len(wants) && x.take() {
		n++
	}
	for i := n; i < len(wants); i++ {
		got[i].skip = true
	}
	results, err := x.readAll(ctx, wants[:n])
	for i := 0; i < n && err == nil; i++ {
		got[i], err = x.judge(ctx, wants[i], results[i])
	}
	return got, err
}

// readAll reads nodes: those with contents in one request for many, if the service has
// batches, and the others several at a time.
func (x *inspector) readAll(ctx context.Context, wants []want) ([]backend.ReadResult, error) {
	results := make([]backend.ReadResult, len(wants))
	var reads []backend.Read
	if x.s.Features().Has(backend.Batches) {
		for _, w := range wants {
			if w.contents {
				reads = append(reads, backend.Read{Path: w.path})
			}
		}
	}
	var batch []backend.ReadResult
	if len(reads) > 1 {
		var err error
		batch, err = x.s.ReadMany(ctx, reads...)
		if err != nil && !errors.Is(err, backend.ErrUnsupported) {
			return nil, err
		}
	}
	var all errgroup.Group
	all.SetLimit(mostAtOnce)
	for i, w := range wants {
		r := &results[i]
		switch {
		case w.contents && len(batch) > 0:
			*r, batch = batch[0], batch[1:]
		case w.contents:
			all.Go(func() error {
				r.Data, r.Stat, r.Err = x.s.Get(ctx, w.path, nil)
				return nil
			})
		default:
			all.Go(func() error {
				r.Stat, r.Err = x.s.Exists(ctx, w.path, nil)
				return nil
			})
		}
	}
	return results, all.Wait()
}

// small reports whether to read the data of nodes whose data is small, such as members. Batches
// read only nodes with their data, and one request for many nodes is worth the bytes.
func (x *inspector) small() bool { return x.data || x.s.Features().Has(backend.Batches) }

// judge returns what the read of a node shows.
func (x *inspector) judge(ctx context.Context, w want, read backend.ReadResult) (seen, error) {
	r, err := seen{data: read.Data, stat: read.Stat}, read.Err
	if w.contents && errors.Is(err, backend.ErrDenied) && x.take() {
		r.unread = unreadable
		r.stat, err = x.s.Exists(ctx, w.path, nil) // the Stat may be readable by all
	}
	switch {
	case isNotFound(err):
		return seen{gone: true}, nil
	case errors.Is(err, backend.ErrDenied):
		return seen{unread: unreadable}, nil
	case errors.Is(err, backend.ErrBadPath):
		return seen{unread: "bad name"}, nil // an outsider created it
	}
	return r, err
}

// list lists the children of a node. ok is false if there is no list. If the
// permission is missing, a note says so.
func (x *inspector) list(ctx context.Context, path string) (names []string, ok bool, err error) {
	all, err := x.lists(ctx, []string{path})
	if err != nil {
		return nil, false, err
	}
	slices.Sort(all[0].names)
	return all[0].names, all[0].ok, nil
}

// listed reports whether there is a list of the node, whose Children returned err.
func (x *inspector) listed(path string, err error) (ok bool, _ error) {
	switch {
	case err == nil:
		return true, nil
	case isNotFound(err), errors.Is(err, backend.ErrBadPath):
		return false, nil
	case errors.Is(err, backend.ErrDenied):
		x.in.note("no permission to read %s", printable(strings.TrimPrefix(path, x.dir+"/")))
		return false, nil
	}
	return false, err
}

// children is the list of a node, unless ok is false.
type children struct {
	names []string
	ok    bool
}

// lists is list for many nodes, in few requests if the service has batches. Those beyond
// the limit have no list.
func (x *inspector) lists(ctx context.Context, paths []string) ([]children, error) {
	n := 0
	for n < len(paths) && x.take() {
		n++
	}
	got, err := x.readLists(ctx, paths[:n])
	all := make([]children, len(paths))
	for i := 0; i < len(got) && err == nil; i++ {
		all[i].names = got[i].Names
		all[i].ok, err = x.listed(paths[i], got[i].Err)
	}
	return all, err
}

// readLists reads the lists of the children of nodes.
func (x *inspector) readLists(ctx context.Context, paths []string) ([]queuestat.List, error) {
	p, pooled := x.s.(*pool)
	if !pooled || len(paths) != 1 || !p.Features().Has(backend.Batches) {
		return queuestat.Lists(ctx, x.s, paths...)
	}
	got, err := p.ReadMany(ctx, backend.Read{Path: paths[0], Children: true})
	if err != nil {
		return nil, err
	}
	return []queuestat.List{{Names: got[0].Names, Err: got[0].Err}}, nil
}

const (
	mostAtOnce = 16 // reads under way
	mostLists  = 8  // of one directory, while nodes of it vanish
)

// isNotFound reports whether err means that a node is missing.
func isNotFound(err error) bool { return answers(err, backend.ErrNotFound) }

// answers reports whether err matches target, and not just as the cause of an ended
// context.
func answers(err, target error) bool {
	return errors.Is(err, target) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// base returns the name of a node, and parent the path of its directory.
func base(path string) string   { return path[strings.LastIndexByte(path, '/')+1:] }
func parent(path string) string { return path[:max(strings.LastIndexByte(path, '/'), 0)] }

// getStanding reads the nodes of a directory that pick chooses and orders. If one of
// them has vanished, it lists the directory again, since another node can have taken
// its place: a reader that of a writer, an incarnation that of the one before. names
// is the first list. getStanding returns the chosen names that exist, and what was
// read.
func (x *inspector) getStanding(ctx context.Context, dir string, names []string, contents bool, pick func([]string) []string) ([]string, map[string]seen, error) {
	all := make(map[string]seen)
	for lists := 1; ; lists++ {
		chosen := pick(names)
		var wants []want
		var fresh []string
		for _, name := range chosen {
			if _, ok := all[name]; !ok {
				wants, fresh = append(wants, want{dir + "/" + name, contents}), append(fresh, name)
			}
		}
		got, err := x.getAll(ctx, wants...)
		if err != nil {
			return nil, nil, err
		}
		vanished := false
		for i, name := range fresh {
			all[name] = got[i]
			vanished = vanished || got[i].gone
		}
		gone := func(name string) bool { return all[name].gone }
		if vanished && lists < mostLists {
			again, ok, err := x.list(ctx, dir)
			if err != nil {
				return nil, nil, err
			}
			if ok {
				names = slices.DeleteFunc(again, gone)
				continue
			}
		}
		return slices.DeleteFunc(chosen, gone), all, nil
	}
}

// node describes the node called name, of which r was read.
func (x *inspector) node(name string, r seen) Node {
	n := Node{Name: name, Unread: r.unread}
	if r.stat.Czxid != 0 {
		n.Session, n.Since, n.Size = hexSession(r.stat), utc(r.stat.Ctime), int(r.stat.DataLength)
	}
	return n
}

// keep returns data if it may be shown.
func (x *inspector) keep(data []byte) []byte {
	if !x.data || len(data) == 0 {
		return nil
	}
	return data
}

// nameKinds is the names at a path, sorted by the recipes that create them.
type nameKinds struct {
	all      []string
	lock     bool            // contenders of a mutex, Curator's names
	kazoo    bool            // of kazoo's Lock or Election
	latch    bool            // candidates
	shared   bool            // readers and writers
	ready    []string        // announcements
	members  bool            // of a group
	branches []string        // in the inbox of a site
	fixed    map[string]bool // names that recipes use within their directory
	parts    []string        // the parts of recipes to which nodes belong
	foreign  []string
}

// claim removes fixed names from those that would be foreign.
func (k *nameKinds) claim(names ...string) {
	for _, name := range names {
		delete(k.fixed, name)
	}
}

// sortNames sorts names by the recipes that create them.
func sortNames(names []string) *nameKinds {
	k := &nameKinds{all: names, fixed: make(map[string]bool)}
	for _, name := range names {
		switch kind, _ := layout.Parse(name); kind {
		case layout.KindGroup:
			k.members = true
		case layout.KindElection:
			k.latch = true
		case layout.KindRWMutex:
			k.shared = true
		case layout.KindMutex:
			k.lock = true
		case layout.KindKazooLock:
			k.kazoo = true
		case layout.KindReady:
			k.ready = append(k.ready, name)
		case layout.KindInbox:
			k.branches = append(k.branches, name)
		default:
			what := partOf(name, kind)
			switch {
			case slices.Contains(fixedNames, name):
				k.fixed[name] = true
			case what == "":
				k.foreign = append(k.foreign, name)
			case !slices.Contains(k.parts, what):
				k.parts = append(k.parts, what)
			}
		}
	}
	return k
}

// fixedNames are the names that recipes give to nodes within their directory.
var fixedNames = []string{"limit", "requests", "members", "ready", "items", layout.KeysName, "waiters", "producers", "dead", "tx", "sites", "serving", "present", layout.WorkersName, layout.ShardsName, layout.StateName, layout.LeaderName}

// partOf returns the part of a recipe in which a name of that kind occurs, or "" if there
// is none.
func partOf(name string, kind layout.RecipeKind) string {
	switch {
	case kind == layout.KindRequests:
		return "the requests of a semaphore"
	case kind == layout.KindMembers && layout.IsOurs(name):
		return "the members of a double barrier"
	case kind == layout.KindWaiters && layout.IsOurs(name):
		return "the waiters of a queue"
	case kind == layout.KindBucket:
		return "the items of a queue"
	case kind == layout.KindItem:
		return "a bucket of a queue"
	case kind == layout.KindRecord:
		return "the record of a transaction"
	}
	return ""
}
